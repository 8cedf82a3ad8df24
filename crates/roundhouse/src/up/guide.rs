//! The text that `roundhouse up` prints once it is running: the commands to try next.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;

use super::folder::PLATFORM_KEY_FILE;

/// The values that the guide's commands need. Each command is one line that works by itself in any shell.
pub(super) struct Guide<'a> {
    /// The orchestrator's address.
    pub(super) address: SocketAddr,
    /// The folder of this `up`.
    pub(super) folder: &'a Path,
    /// Whether that is the default folder, which commands can omit.
    pub(super) is_default_folder: bool,
    /// The model in use.
    pub(super) model: &'a str,
}

impl fmt::Display for Guide<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, folder, is_default_folder: default, model } = self;
        let key = shell_quoted(&folder.join(PLATFORM_KEY_FILE));
        // Keys are passed to curl on standard input, since other users of the machine can read command lines.
        let admit = format!(
            "sed 's/^/X-Platform-Key: /' {key} | curl -sS -X POST http://{address}/engines/ada/admit -H @- \
             -d '{{\"auto_provision\": true, \"auto_wake\": true}}'"
        );
        let field =
            |name: &str, before: &str| format!("sed 's/.*\"{name}\":\"\\([^\"]*\\)\".*/{before}\\1/'");
        let execute = format!(
            "E=$({admit}); case \"$E\" in *'\"url\":\"'*) echo \"$E\" | {} | curl -sSN \
             \"$(echo \"$E\" | {})/execute\" -H @- -d '{{\"task_id\": \"hello\", \"message\": \"Hello!\"}}';; \
             *) echo \"$E\";; esac",
            field("api_key", "X-Engine-Key: "),
            field("url", ""),
        );
        let program =
            std::env::current_exe().map_or_else(|_| "roundhouse".into(), |path| shell_quoted(&path));
        let dir = if *default { String::new() } else { format!(" --dir {}", shell_quoted(folder)) };
        writeln!(f, "Roundhouse is up at http://{address}")?;
        writeln!(f, "  product  demo, its key in {}", folder.join(PLATFORM_KEY_FILE).display())?;
        writeln!(f, "  folder   {} (keys, registry, engines, catalog)", folder.display())?;
        writeln!(f, "  model    {model}")?;
        writeln!(f, "\nIn another terminal, as the user `ada`:\n")?;
        writeln!(f, "Admit her (her engine is created or woken if needed):\n  {admit}\n")?;
        writeln!(f, "Send her engine a message and watch the answer stream:\n  {execute}\n")?;
        writeln!(f, "Talk to it:\n  {program} chat --user ada{dir}\n")?;
        write!(f, "Ctrl-C puts the engines to sleep and ends.")
    }
}

/// Quotes a path as one word of a shell.
fn shell_quoted(path: &Path) -> String {
    let text = path.to_string_lossy();
    let plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte));
    if plain { text.into_owned() } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_one_word() {
        assert_eq!(shell_quoted(Path::new("/a/b-c.d")), "/a/b-c.d");
        assert_eq!(shell_quoted(Path::new("/my files/it's")), r"'/my files/it'\''s'");
    }
}
