//! The command line: lists the mutants, or makes the mutated copy of the workspace. `.ci/mutants` uses it.

mod definitions;
mod edits;
mod files;
mod workspace_copy;

use std::io::{self, Write as _};
use std::path::Path;

use anyhow::Context as _;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "Makes a copy of the workspace in which guarantees can be switched off")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Prints the mutants of a crate's regressions, each with the guarantee that it breaks.
    List {
        /// The crate whose regressions catch them, such as `engine`.
        crate_name: String,
    },
    /// Writes the mutated copy of the workspace to `target/mutants`.
    Apply,
}

fn main() -> anyhow::Result<()> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    match Cli::parse().command {
        Command::List { crate_name } => {
            for mutant in definitions::read(&package.join(format!("{crate_name}.toml")))? {
                writeln!(io::stdout(), "{:24} {}", mutant.name, mutant.breaks)?;
            }
        }
        Command::Apply => {
            let root = package.join("../..").canonicalize()?;
            let mutants = definitions::read_all(package)?;
            let files = workspace_copy::mutate(files::read(&root)?, &mutants)
                .context("the mutants do not fit the source: adapt their edits to it")?;
            files::write(&files, &root.join("target/mutants"), workspace_copy::FOLDER)?;
        }
    }
    Ok(())
}
