//! The text that `roundhouse up` prints once it is running: the commands to try next.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;

use super::folder::{PLATFORM_HEADER_FILE, PLATFORM_KEY_FILE};
use super::{CONSOLE_PATH, DOCS_PATH};

/// The values that the guide's commands need.
pub(super) struct Guide<'a> {
    /// The orchestrator's base URL on this machine.
    pub(super) base: String,
    /// What it listens on.
    pub(super) bound: SocketAddr,
    /// The folder of this `up`.
    pub(super) folder: &'a Path,
    /// Whether that is the default folder, which commands can omit.
    pub(super) is_default_folder: bool,
    /// The model in use.
    pub(super) model: &'a str,
}

/// Each command stands below a line that ends with a colon. A backslash continues a command on the next line, so that
/// it can be read, and copied, on a narrow terminal.
impl fmt::Display for Guide<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { base, bound, folder, is_default_folder: default, model } = self;
        let header = shell_quoted(&folder.join(PLATFORM_HEADER_FILE));
        let program =
            std::env::current_exe().map_or_else(|_| "roundhouse".into(), |path| shell_quoted(&path));
        let dir = if *default { String::new() } else { format!(" \\\n    --dir {}", shell_quoted(folder)) };
        writeln!(f, "Roundhouse is up at {base}")?;
        writeln!(f, "  folder   {}", folder.display())?;
        writeln!(f, "  product  demo, its key in {PLATFORM_KEY_FILE} of the folder")?;
        writeln!(f, "  model    {model}")?;
        writeln!(f, "  console  {base}{CONSOLE_PATH}")?;
        writeln!(f, "  docs     {base}{DOCS_PATH}")?;
        if !bound.ip().is_loopback() {
            write_warning(f, *bound)?;
        }
        writeln!(f, "\nIn another terminal, as the user `ada`.\n")?;
        writeln!(f, "Talk to her engine:\n  {program} chat --user ada{dir}\n")?;
        writeln!(f, "Or over HTTP: admit her, which creates or wakes her engine if needed:")?;
        writeln!(f, "  curl -sS -H @{header} \\")?;
        writeln!(f, "    -d '{{\"auto_provision\": true, \"auto_wake\": true}}' \\")?;
        writeln!(f, "    {base}/engines/ada/admit\n")?;
        writeln!(f, "Then send the engine a message and watch the answer stream:")?;
        writeln!(f, "  curl -sSN -H @{header} \\")?;
        writeln!(f, "    -d '{{\"task_id\": \"hello\", \"message\": \"Hello!\"}}' \\")?;
        writeln!(f, "    {base}/engines/ada/proxy/execute\n")?;
        write!(f, "Ctrl-C puts the engines to sleep and ends.")
    }
}

/// Says what listening on an address that others can reach means.
fn write_warning(f: &mut fmt::Formatter<'_>, bound: SocketAddr) -> fmt::Result {
    let (ip, port) = (bound.ip(), bound.port());
    let whom = if ip.is_unspecified() { "every address of this machine".into() } else { ip.to_string() };
    writeln!(f, "\nWARNING: others can reach port {port} at {whom}.")?;
    writeln!(f, "Calls need a key, but keys and answers are not encrypted: use this only in a")?;
    writeln!(f, "container, or in a network whose members you trust. From elsewhere, engines are")?;
    writeln!(f, "reached through the orchestrator, under /engines/USER/proxy/, and by")?;
    writeln!(f, "`roundhouse chat --proxy --url http://ADDRESS:{port}`, with the product's key")?;
    writeln!(f, "in ROUNDHOUSE_PLATFORM_KEY.")
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

    fn guide(bound: &str) -> String {
        let folder = Path::new("/home/ada/.local/share/roundhouse");
        let base = "http://127.0.0.1:8000".to_owned();
        let bound = bound.parse().unwrap();
        Guide { base, bound, folder, is_default_folder: true, model: "scripted" }.to_string()
    }

    #[test]
    fn everything_fits_80_columns() {
        let program = std::env::current_exe().unwrap();
        for bound in ["127.0.0.1:8000", "0.0.0.0:8000"] {
            let guide = guide(bound).replace(program.to_str().unwrap(), "roundhouse");
            for line in guide.lines() {
                assert!(line.chars().count() <= 80, "{line}");
            }
        }
    }

    #[test]
    fn who_listens_to_others_is_warned() {
        assert!(!guide("127.0.0.1:8000").contains("WARNING") && !guide("[::1]:8000").contains("WARNING"));
        assert!(guide("0.0.0.0:8000").contains("WARNING: others can reach port 8000 at every address"));
        assert!(guide("192.168.1.2:80").contains("WARNING: others can reach port 80 at 192.168.1.2"));
    }

    #[test]
    fn paths_stay_one_word() {
        assert_eq!(shell_quoted(Path::new("/a/b-c.d")), "/a/b-c.d");
        assert_eq!(shell_quoted(Path::new("/my files/it's")), r"'/my files/it'\''s'");
    }
}
