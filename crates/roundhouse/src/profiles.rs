//! Profiles: orchestrators and their keys by name, in a file that only its owner can read.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use reqwest::Url;
use serde::Deserialize;

use crate::error::Failure;
use crate::terminal::single_line;

/// The longest file of profiles.
const MAX_BYTES: u64 = 1024 * 1024;

/// An orchestrator and the keys to it. It has no `Debug`, because of the keys.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Profile {
    pub(crate) url: Url,
    pub(crate) platform_key: Option<String>,
    pub(crate) admin_key: Option<String>,
}

/// The file with the profiles: `roundhouse/profiles.toml` in the user's folder for configuration.
pub(crate) fn file() -> Result<PathBuf, Failure> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = set("XDG_CONFIG_HOME").or_else(|| set("HOME").map(|home| home.join(".config")));
    let folder = folder.ok_or_else(|| {
        Failure::usage("profiles are looked for in XDG_CONFIG_HOME or HOME, and neither is set")
    })?;
    Ok(folder.join("roundhouse").join("profiles.toml"))
}

/// Reads the profile of this name.
pub(crate) fn read(file: &Path, name: &str) -> Result<Profile, Failure> {
    let shown = file.display();
    let text = read_private(file)?;
    let mut profiles: BTreeMap<String, Profile> = toml::from_str(&text).map_err(|error| {
        // The error's own text shows the line, which may contain a key.
        let line = error.span().and_then(|span| text.get(..span.start)).map(|before| before.lines().count().max(1));
        let place = line.map(|line| format!(" (line {line})")).unwrap_or_default();
        Failure::usage(format!(
            "{shown} is not a file of profiles{place}: {}; a profile has `url`, and `platform_key`, `admin_key` or \
             both",
            single_line(error.message(), 200)
        ))
    })?;
    profiles.remove(name).ok_or_else(|| {
        let known: Vec<_> = profiles.keys().map(String::as_str).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        Failure::usage(format!(
            "{shown} has no profile `{}`; it has {}",
            single_line(name, 100),
            single_line(&known, 1_000)
        ))
    })
}

/// Reads a file that only its owner can read. It is checked as it is open, so that it is the one that is read.
fn read_private(path: &Path) -> Result<String, Failure> {
    let shown = path.display();
    let file = File::open(path).map_err(|error| {
        Failure::usage(match error.kind() {
            io::ErrorKind::NotFound => format!("there is no file of profiles: {shown} does not exist"),
            _ => format!("the profiles in {shown} cannot be read: {error}"),
        })
    })?;
    let metadata = file.metadata().with_context(|| format!("{shown} cannot be read"))?;
    let me = rustix::process::geteuid().as_raw();
    if metadata.uid() != me && metadata.uid() != 0 {
        return Err(Failure::usage(format!(
            "{shown} belongs to another user, who could change where your keys are sent: make a copy of your own"
        )));
    }
    if metadata.mode() & 0o077 != 0 {
        return Err(Failure::usage(format!(
            "other users can read the keys in {shown}, or change them: run `chmod 600 {shown}`, and consider the \
             keys in it known to others"
        )));
    }
    let mut text = String::new();
    file.take(MAX_BYTES).read_to_string(&mut text).with_context(|| format!("{shown} cannot be read"))?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn read_text(text: &str, mode: u32, name: &str) -> Result<Profile, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        fs::set_permissions(file.path(), Permissions::from_mode(mode)).unwrap();
        read(file.path(), name).map_err(|failure| failure.to_string())
    }

    const PROFILES: &str = "[home]\nurl = \"http://127.0.0.1:8000\"\nplatform_key = \"pk-svc-x\"\n\n\
                            [work]\nurl = \"https://fleet.example.com\"\nadmin_key = \"secret\"\n";

    #[test]
    fn a_profile_is_found_by_its_name() {
        let work = read_text(PROFILES, 0o600, "work").ok().unwrap();
        assert_eq!(
            (work.url.as_str(), work.platform_key, work.admin_key),
            ("https://fleet.example.com/", None, Some("secret".into()))
        );
        let missing = read_text(PROFILES, 0o400, "wrok\u{1b}").err().unwrap();
        assert!(missing.contains("no profile `wrok\\u{1b}`; it has home, work"), "{missing}");
    }

    #[test]
    fn what_others_can_read_is_refused_with_the_remedy() {
        for mode in [0o640, 0o604, 0o660, 0o622] {
            let refused = read_text(PROFILES, mode, "home").err().unwrap();
            assert!(refused.contains("chmod 600 "), "{mode:o} {refused}");
        }
    }

    #[test]
    fn a_fault_is_named_without_the_key_beside_it() {
        for text in [
            "[home]\nurl = \"http://h\"\nadmin_key = \"top secret\n",
            "[home]\nurl = 1\nkey = \"top secret\"",
        ] {
            let refused = read_text(text, 0o600, "home").err().unwrap();
            assert!(refused.contains("line ") && !refused.contains("top secret"), "{refused}");
        }
    }
}
