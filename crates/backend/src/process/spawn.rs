//! Spawns an engine's process: sets its command line, environment, working directory and output streams.

use std::fs::File;
use std::io;
use std::process::Stdio;

use secrecy::ExposeSecret as _;
use tokio::process::{Child, Command};

use super::Options;
use super::label::{Label, PROCESS_NAME};
use crate::LaunchSpec;
use crate::engine_folder::EngineFolder;

/// Variables inherited from the orchestrator's environment, with the defaults for those that are not set there.
const INHERITED_ENV: [(&str, Option<&str>); 3] =
    [("PATH", Some("/usr/local/bin:/usr/bin:/bin")), ("LANG", Some("C.UTF-8")), ("TZ", None)];

/// Builds the command that runs the engine. Its environment starts empty, so that no variable of the
/// orchestrator, above all its master key, reaches an engine.
pub(super) fn command(
    options: &Options,
    label: &Label,
    launch: &LaunchSpec,
    folder: &EngineFolder,
) -> Command {
    let mut command = Command::new(&options.program);
    command.arg0(PROCESS_NAME).args(label.arguments()).env_clear();
    for (name, default) in INHERITED_ENV {
        if let Some(value) = std::env::var_os(name).or_else(|| default.map(Into::into)) {
            command.env(name, value);
        }
    }
    for (name, value) in &launch.env {
        command.env(name, value.expose_secret());
    }
    command
        .env("HOME", folder.path())
        .env("ENGINE_KEY_HASH", launch.key_hash.to_hex())
        .env("SQLITE_DB_PATH", folder.path().join("brain.sqlite"))
        .env("CATALOG_DIR", &options.catalog)
        .env("ENGINE_HOST", "127.0.0.1")
        .current_dir(folder.path());
    if let Some(port) = launch.placement.host_port() {
        command.env("ENGINE_PORT", port.to_string());
    }
    command
}

/// Spawns `command` with its output in `log`. The engine itself creates its session as its first action:
/// doing it between fork and exec would require a real `fork` of the orchestrator, which takes longer the
/// more memory the orchestrator has, and delays its threads meanwhile.
pub(super) fn spawn(mut command: Command, log: File) -> io::Result<Child> {
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()
}
