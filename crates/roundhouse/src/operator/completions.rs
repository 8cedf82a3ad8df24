//! `roundhouse completions` and `roundhouse man`: what a shell completes, and the manual.

use std::path::PathBuf;

use clap::Command;
use clap_complete::Shell;

use super::output;
use crate::error::Failure;

const NAME: &str = "roundhouse";

/// Arguments of `roundhouse completions`.
#[derive(clap::Args)]
pub(crate) struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

/// Arguments of `roundhouse man`.
#[derive(clap::Args)]
pub(crate) struct ManArgs {
    /// The folder to write the pages into; it is made if it is missing.
    #[arg(value_hint = clap::ValueHint::DirPath)]
    folder: PathBuf,
}

/// Prints a script that teaches a shell the command line.
pub(crate) fn completions(args: &CompletionsArgs, mut command: Command) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, NAME, &mut script);
    output::write(&String::from_utf8(script)?)
}

/// Writes a manual page for each command.
pub(crate) fn man(args: &ManArgs, command: Command) -> Result<(), Failure> {
    let folder = &args.folder;
    let unusable =
        |error: std::io::Error| Failure::usage(format!("{} cannot be written to: {error}", folder.display()));
    std::fs::create_dir_all(folder).map_err(unusable)?;
    clap_mangen::generate_to(command, folder).map_err(unusable)
}
