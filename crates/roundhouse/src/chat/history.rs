//! The messages that were written at this terminal, for the arrow keys: in memory, and in a file that only its owner
//! can read.
//!
//! The file has one JSON string per line, because a message may have several lines. A message that begins with a
//! space is not kept.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use api::UserId;

/// The most messages that are kept.
const MAX_ENTRIES: usize = 1_000;
/// The longest message that is kept.
const MAX_ENTRY_BYTES: usize = 64 * 1024;
/// How much of the file is read. A file of twice the size is written anew.
const MAX_READ_BYTES: u64 = 1024 * 1024;
/// The longest name of a file that every file system takes.
const MAX_NAME_BYTES: usize = 255;

/// The messages, oldest first.
#[derive(Debug, Default)]
pub(super) struct History {
    entries: VecDeque<String>,
    file: Option<PathBuf>,
}

impl History {
    /// Loads the history of the messages to `user`'s engine. Without a folder for it, it is kept in memory only.
    ///
    /// # Errors
    /// Fails if there is a file that cannot be read. Its path is part of the error.
    pub(super) fn load(user: &UserId) -> io::Result<Self> {
        match state_folder(|name| std::env::var_os(name).map(PathBuf::from)).zip(file_name(user)) {
            Some((folder, name)) => Self::load_from(&folder.join(name)),
            None => Ok(Self::default()),
        }
    }

    fn load_from(file: &Path) -> io::Result<Self> {
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", file.display()));
        if let Some(folder) = file.parent() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(named)?;
        }
        let mut history = Self { entries: VecDeque::new(), file: Some(file.to_owned()) };
        let (text, size) = match read_end(file) {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(history),
            Err(error) => return Err(named(error)),
        };
        // A line that is damaged, or of which only the end was read, is left out.
        for entry in text.lines().filter_map(|line| serde_json::from_str::<String>(line).ok()) {
            history.remember(&entry);
        }
        if size > MAX_READ_BYTES * 2 {
            history.write_anew(file).map_err(named)?;
        }
        Ok(history)
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn get(&self, index: usize) -> Option<&str> {
        self.entries.get(index).map(String::as_str)
    }

    /// Adds a message, in memory and in the file. A file that cannot be written costs the next session its history,
    /// and nothing else.
    pub(super) fn add(&mut self, text: &str) {
        if self.remember(text)
            && let Some(file) = &self.file
        {
            let _ = append(file, text);
        }
    }

    /// Adds a message in memory. Returns whether it is kept.
    fn remember(&mut self, text: &str) -> bool {
        let is_repeated = self.entries.back().is_some_and(|last| last == text);
        if text.trim().is_empty() || text.starts_with(' ') || text.len() > MAX_ENTRY_BYTES || is_repeated {
            return false;
        }
        if self.entries.len() == MAX_ENTRIES {
            self.entries.pop_front();
        }
        self.entries.push_back(text.to_owned());
        true
    }

    fn write_anew(&self, file: &Path) -> io::Result<()> {
        let draft = file.with_extension("new");
        let lines: String = self.entries.iter().map(|entry| line_of(entry)).collect();
        let mut options = OpenOptions::new();
        options
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&draft)?
            .write_all(lines.as_bytes())?;
        fs::rename(&draft, file)
    }
}

/// Reads the end of the file. Returns it with the size of the whole file.
fn read_end(path: &Path) -> io::Result<(String, u64)> {
    let mut file = File::open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a file"));
    }
    file.set_permissions(fs::Permissions::from_mode(0o600))?;
    file.seek(SeekFrom::Start(metadata.len().saturating_sub(MAX_READ_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(MAX_READ_BYTES).read_to_end(&mut bytes)?;
    Ok((String::from_utf8_lossy(&bytes).into_owned(), metadata.len()))
}

/// Appends an entry in one write, so that those of two terminals do not mix.
fn append(file: &Path, text: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o600).open(file)?.write_all(line_of(text).as_bytes())
}

fn line_of(text: &str) -> String {
    format!("{}\n", serde_json::Value::from(text))
}

/// The folder of the user's state, by the XDG Base Directory Specification.
fn state_folder(variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    let set = |name: &str| variable(name).filter(|path| path.is_absolute());
    let state = set("XDG_STATE_HOME").or_else(|| set("HOME").map(|home| home.join(".local/state")));
    Some(state?.join("roundhouse"))
}

/// The file's name: the user's id, with everything but letters, digits, `-` and `_` percent-encoded.
fn file_name(user: &UserId) -> Option<String> {
    use std::fmt::Write as _;

    let mut name = String::from("chat-");
    for byte in user.as_str().bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => name.push(char::from(byte)),
            // Writing to a `String` cannot fail.
            other => drop(write!(name, "%{other:02X}")),
        }
    }
    name.push_str(".history");
    (name.len() <= MAX_NAME_BYTES).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(history: &History) -> Vec<&str> {
        history.entries.iter().map(String::as_str).collect()
    }

    #[test]
    fn messages_are_there_again_and_only_their_owner_can_read_them() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("state/chat-ada.history");
        let mut history = History::load_from(&file).unwrap();
        for text in ["one", "two\nlines \u{1b}", "two\nlines \u{1b}", " a secret", "  ", "日本"] {
            history.add(text);
        }
        let again = History::load_from(&file).unwrap();
        assert_eq!(entries(&again), ["one", "two\nlines \u{1b}", "日本"]);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&file), mode(file.parent().unwrap())), (0o600, 0o700));
        assert_eq!(fs::read_to_string(&file).unwrap().lines().count(), 3, "control characters are escaped");
    }

    #[test]
    fn a_file_that_others_can_read_is_closed_to_them_and_damage_costs_a_line() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("history");
        fs::write(&file, b"\"one\"\n\xff\xff\n{}\n\"two\"\n\"thr").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(entries(&History::load_from(&file).unwrap()), ["one", "two"]);
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let refused = History::load_from(folder.path()).unwrap_err().to_string();
        assert!(refused.contains("not a file"), "{refused}");
    }

    #[test]
    fn neither_the_file_nor_the_memory_grows_without_end() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("history");
        let entry = |number: usize| format!("{number} {}", "x".repeat(4_000));
        let lines: String = (0..1_000).map(|number| line_of(&entry(number))).collect();
        fs::write(&file, lines).unwrap();
        let history = History::load_from(&file).unwrap();
        assert_eq!(history.get(history.len() - 1), Some(entry(999).as_str()));
        assert!(fs::metadata(&file).unwrap().len() <= MAX_READ_BYTES);
        let mut history = History::default();
        for number in 0..MAX_ENTRIES + 5 {
            history.add(&number.to_string());
        }
        assert_eq!((history.len(), history.get(0)), (MAX_ENTRIES, Some("5")));
        history.add(&"x".repeat(MAX_ENTRY_BYTES + 1));
        assert_eq!(history.get(MAX_ENTRIES - 1), Some("1004"));
    }

    #[test]
    fn the_folder_follows_the_specification_and_no_user_leaves_it() {
        let folder = |state: Option<&str>, home: Option<&str>| {
            state_folder(|name| match name {
                "XDG_STATE_HOME" => state.map(PathBuf::from),
                _ => home.map(PathBuf::from),
            })
        };
        assert_eq!(folder(Some("/s"), Some("/h")), Some("/s/roundhouse".into()));
        assert_eq!(folder(Some("relative"), Some("/h")), Some("/h/.local/state/roundhouse".into()));
        assert_eq!(folder(None, Some("")), None);
        let name = |user: &str| file_name(&UserId::new(user.to_owned()).unwrap());
        assert_eq!(name("../a/é").as_deref(), Some("chat-%2E%2E%2Fa%2F%C3%A9.history"));
        assert_eq!(name(&"é".repeat(60)), None);
    }
}
