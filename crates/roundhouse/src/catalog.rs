//! The default catalog, embedded in the binary.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use include_dir::{Dir, include_dir};

static SHIPPED_CATALOG: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../catalog");

/// The file in an unpacked catalog that lists the entries taken from the shipped one, one a line.
const SHIPPED_LIST_FILE: &str = ".shipped";

/// Entries that make a catalog a custom one: with any of these it defines by itself who the agent is and what it
/// can do.
const CUSTOM_CATALOG_ENTRIES: [&str; 3] = ["soul.md", "agents", "skills"];

/// Unpacks the default catalog into the folder `to`. A folder that was unpacked before only gets the entries that
/// are new in this version: what a person edited or removed in it stays so, and a custom catalog stays as it is. A
/// folder that has only settings, such as an `mcp.json` written before the first start, gets the default catalog
/// beside them.
pub(crate) fn unpack(to: &Path) -> Result<(), String> {
    let with_draft = |work: &dyn Fn(&Path) -> io::Result<()>| {
        // Written beside the target and renamed into place, so that an interrupted start leaves no partial
        // catalog.
        let draft = to.with_extension(format!("new-{}", std::process::id()));
        if draft.exists() {
            std::fs::remove_dir_all(&draft)?;
        }
        std::fs::create_dir_all(&draft)?;
        SHIPPED_CATALOG.extract(&draft)?;
        std::fs::write(draft.join(SHIPPED_LIST_FILE), entry_lines(&shipped_entries()))?;
        let result = work(&draft);
        if draft.exists() {
            std::fs::remove_dir_all(&draft)?;
        }
        result
    };
    if !to.exists() {
        let renamed = with_draft(&|draft| match std::fs::rename(draft, to) {
            // Of two concurrent starts, the first one's catalog is kept.
            Err(_) if to.exists() => Ok(()),
            renamed => renamed,
        });
        return renamed
            .map_err(|error| format!("the catalog cannot be unpacked to {}: {error}", to.display()));
    }
    let known: BTreeSet<_> = match std::fs::read_to_string(to.join(SHIPPED_LIST_FILE)) {
        Ok(entries) => entries.lines().map(str::to_owned).collect(),
        Err(_)
            if CUSTOM_CATALOG_ENTRIES.iter().any(|name| std::fs::symlink_metadata(to.join(name)).is_ok()) =>
        {
            return Ok(());
        }
        Err(_) => BTreeSet::new(),
    };
    let new: BTreeSet<_> = shipped_entries().difference(&known).cloned().collect();
    if !new.is_empty()
        && let Err(error) = with_draft(&|draft| add_entries(&new, draft, to, &known))
    {
        // The existing catalog still works as before.
        tracing::warn!(
            %error, folder = %to.display(), "New entries of the shipped catalog could not be added to this one."
        );
    }
    Ok(())
}

/// Adds the entries `new` of the complete catalog in `draft`, unless an entry of the same name exists.
fn add_entries(new: &BTreeSet<String>, draft: &Path, to: &Path, known: &BTreeSet<String>) -> io::Result<()> {
    for entry in new {
        let target = to.join(entry);
        if std::fs::symlink_metadata(&target).is_ok() {
            continue;
        }
        if let Some(folder) = target.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::rename(draft.join(entry), target)?;
    }
    std::fs::write(draft.join(SHIPPED_LIST_FILE), entry_lines(&known.union(new).cloned().collect()))?;
    std::fs::rename(draft.join(SHIPPED_LIST_FILE), to.join(SHIPPED_LIST_FILE))
}

/// Returns the units that are added or left out as a whole: an agent's file, a skill's folder, `soul.md`.
fn shipped_entries() -> BTreeSet<String> {
    let path = |path: &Path| path.to_string_lossy().into_owned();
    let files = SHIPPED_CATALOG.files().map(|file| path(file.path()));
    let inner = SHIPPED_CATALOG.dirs().flat_map(|dir| dir.entries().iter().map(|entry| path(entry.path())));
    files.chain(inner).collect()
}

fn entry_lines(entries: &BTreeSet<String>) -> String {
    entries.iter().flat_map(|entry| [entry.as_str(), "\n"]).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Returns the files of a folder with their contents.
    fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
        let mut found = Vec::new();
        let mut queue = vec![folder.to_owned()];
        while let Some(inner) = queue.pop() {
            for entry in fs::read_dir(inner).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    queue.push(path);
                } else {
                    let name = path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
                    found.push((name, fs::read(&path).unwrap()));
                }
            }
        }
        found.sort();
        found
    }

    /// Unpacks a catalog and removes `without`, as if by a version that did not have these entries.
    fn unpack_without(to: &Path, without: &[&str]) {
        unpack(to).unwrap();
        let listed = fs::read_to_string(to.join(SHIPPED_LIST_FILE)).unwrap();
        let kept = listed.lines().filter(|line| !without.contains(line)).flat_map(|line| [line, "\n"]);
        fs::write(to.join(SHIPPED_LIST_FILE), kept.collect::<String>()).unwrap();
        for entry in without {
            let path = to.join(entry);
            if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.unwrap();
        }
    }

    #[test]
    fn all_of_it_is_unpacked_nested_files_too() {
        let home = tempfile::tempdir().unwrap();
        let to = home.path().join("state/catalog");
        unpack(&to).unwrap();
        let shipped_catalog = files(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../catalog")));
        let mut unpacked = files(&to);
        unpacked.retain(|(name, _)| name != SHIPPED_LIST_FILE);
        assert_eq!(unpacked, shipped_catalog);
        assert!(shipped_catalog.iter().any(|(name, _)| name == "skills/summarize-table/scripts/summary.sh"));
        assert_eq!(fs::read_dir(home.path().join("state")).unwrap().count(), 1, "no draft is left");
    }

    #[test]
    fn what_a_person_edited_removed_or_added_stays_while_what_is_new_comes() {
        let home = tempfile::tempdir().unwrap();
        let to = home.path().join("catalog");
        let new = ["agents/reviewer.md", "skills/summarize-table", "agents/writer.md"];
        unpack_without(&to, &new);
        fs::write(to.join("soul.md"), "You are a lighthouse keeper.").unwrap();
        fs::write(to.join("skills/write-clearly/references/forms.md"), "Mine.").unwrap();
        fs::remove_file(to.join("agents/researcher.md")).unwrap();
        fs::remove_dir_all(to.join("skills/meeting-notes")).unwrap();
        fs::write(to.join("agents/writer.md"), "My own.").unwrap();
        for _ in 0..2 {
            unpack(&to).unwrap();
            let content = |name: &str| fs::read_to_string(to.join(name)).ok();
            assert_eq!(content("soul.md").as_deref(), Some("You are a lighthouse keeper."));
            assert_eq!(content("skills/write-clearly/references/forms.md").as_deref(), Some("Mine."));
            assert_eq!(content("agents/writer.md").as_deref(), Some("My own."));
            assert_eq!(
                [content("agents/researcher.md"), content("skills/meeting-notes/SKILL.md")],
                [None, None]
            );
            assert!(content("agents/reviewer.md").is_some());
            assert!(content("skills/summarize-table/scripts/summary.sh").is_some());
            fs::remove_file(to.join("agents/reviewer.md")).unwrap();
            unpack(&to).unwrap();
            assert_eq!(content("agents/reviewer.md"), None, "what came is theirs too");
            fs::write(to.join("agents/reviewer.md"), "Back.").unwrap();
        }
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1, "no draft is left");
    }

    #[test]
    fn settings_that_were_there_first_are_kept_and_get_an_agent() {
        let home = tempfile::tempdir().unwrap();
        let to = home.path().join("catalog");
        for mine in [&["mcp.json", "permissions.json"][..], &[]] {
            fs::create_dir(&to).unwrap();
            for name in mine {
                fs::write(to.join(name), "{}").unwrap();
            }
            for _ in 0..2 {
                unpack(&to).unwrap();
                assert!(mine.iter().all(|name| fs::read_to_string(to.join(name)).unwrap() == "{}"));
                assert!(to.join("soul.md").is_file() && to.join("skills/summarize-table/SKILL.md").is_file());
                assert!(to.join("permissions.json").is_file());
            }
            fs::remove_dir_all(&to).unwrap();
        }
    }

    #[test]
    fn a_folder_of_their_own_is_left_alone() {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join("soul.md"), "You are mine.").unwrap();
        unpack(home.path()).unwrap();
        assert_eq!(files(home.path()), [("soul.md".to_owned(), b"You are mine.".to_vec())]);
        for own in ["agents", "skills"] {
            let home = tempfile::tempdir().unwrap();
            fs::create_dir(home.path().join(own)).unwrap();
            unpack(home.path()).unwrap();
            assert_eq!(files(home.path()), [], "{own}");
        }
    }
}
