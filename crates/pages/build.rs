//! Compresses the files of each site, and writes a table of them for the crate.
//!
//! A site's assets have an address with the hash of them all, so browsers keep them for ever and never mix two versions.
//! Building needs nothing but Rust: scripts and styles are what the browser loads, and the documentation is rendered from
//! the Markdown of the repository.

#[path = "build/contents.rs"]
mod contents;
#[path = "build/docs.rs"]
mod docs;
#[path = "build/files.rs"]
mod files;
#[path = "build/markdown.rs"]
mod markdown;
#[path = "build/openapi.rs"]
mod openapi;
#[path = "build/site.rs"]
mod site;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use crate::files::{Files, imported, invalid, read_folder, read_vendored, take_text};

/// In the console's index, the folder with the assets.
const ASSETS_PLACEHOLDER: &str = "{assets}";
/// In the console's index, the line that is replaced by links to all modules that are loaded in any case: a browser then
/// asks for them at once, and not when it has read the modules that import them.
const PRELOAD_PLACEHOLDER: &str = "<!-- preload -->";

fn main() -> io::Result<()> {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").ok_or_else(|| invalid("no manifest folder"))?);
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or_else(|| invalid("no output folder"))?);
    for read in ["build.rs", "build", "console", "docs", "vendor"] {
        println!("cargo::rerun-if-changed={read}");
    }
    let workspace = root.join("../..");
    let snapshots = openapi::SNAPSHOTS.map(|(_, snapshot)| snapshot);
    for read in contents::sources().chain(snapshots).chain([docs::IMAGES]) {
        println!("cargo::rerun-if-changed={}", workspace.join(read).display());
    }
    let mut files = Files::new();
    read_folder(&root.join("console"), "", &mut files)?;
    read_vendored(&root.join("vendor"), &mut files)?;
    let mut table = docs::site(&root, &workspace, &files)?.write(&out)?;
    table.push_str(&console(files)?.write(&out)?);
    fs::write(out.join("sites.rs"), table)
}

/// The console: the vendored libraries and its own folder.
fn console(files: Files) -> io::Result<site::Source> {
    let (constant, mount, hash) = ("CONSOLE", "console", site::hash(&files));
    let mut assets = files;
    let index = take_text(&mut assets, "index.html")?;
    let preload = preload(&assets, "app.js");
    let index = index.replace(PRELOAD_PLACEHOLDER, &preload);
    // Relative, so that the site also works below another path of a reverse proxy.
    let index = index.replace(ASSETS_PLACEHOLDER, &format!("{mount}/{hash}"));
    Ok(site::Source { constant, mount, hash, index, pages: Files::new(), assets })
}

/// The links that load a module and all that it imports.
fn preload(files: &Files, entry: &str) -> String {
    let mut links = String::new();
    for module in imported(files, entry) {
        let _ = writeln!(links, "<link rel=\"modulepreload\" href=\"{ASSETS_PLACEHOLDER}/{module}\">");
    }
    links.trim_end().to_owned()
}

/// Reads a file of the repository.
fn read_text(workspace: &Path, path: &str) -> io::Result<String> {
    fs::read_to_string(workspace.join(path)).map_err(|error| invalid(&format!("{path}: {error}")))
}
