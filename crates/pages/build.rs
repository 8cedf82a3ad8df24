//! Compresses the files of each site, and writes a table of them for the crate.
//!
//! A site is a folder of this crate plus the vendored libraries that it names. Its address has the hash of all its
//! files, so browsers keep them for ever and never mix two versions. Building needs nothing but Rust: the files are what
//! the browser loads.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest as _, Sha256};

/// The file that a site's own address serves.
const INDEX: &str = "index.html";
/// Where the module that starts a site is.
const ENTRY: &str = "app.js";
/// In the index, the folder with the assets.
const ASSETS_PLACEHOLDER: &str = "{assets}";
/// In the index, the line that is replaced by links to all modules that are loaded in any case: a browser then asks for
/// them at once, and not when it has read the modules that import them.
const PRELOAD_PLACEHOLDER: &str = "<!-- preload -->";
/// Browsers resolve no bare names, so those of vendored modules are replaced by their files.
const BARE_NAMES: [(&str, &str); 1] = [("from\"preact\"", "from\"./preact.mjs\"")];

/// Site files by their path in the site.
type Files = BTreeMap<String, Vec<u8>>;

fn main() -> io::Result<()> {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").ok_or_else(|| invalid("no manifest folder"))?);
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or_else(|| invalid("no output folder"))?);
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=console");
    println!("cargo::rerun-if-changed=vendor");
    let mut files = Files::new();
    read_folder(&root.join("console"), "", &mut files)?;
    read_vendored(&root.join("vendor"), &mut files)?;
    let table = site("CONSOLE", "console", files, &out)?;
    fs::write(out.join("sites.rs"), table)
}

/// Reads all files below `folder`.
fn read_folder(folder: &Path, prefix: &str, files: &mut Files) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().into_string().map_err(|_| invalid("a file's name is not UTF-8"))?;
        let path = format!("{prefix}{name}");
        if entry.file_type()?.is_dir() {
            read_folder(&entry.path(), &format!("{path}/"), files)?;
        } else {
            files.insert(path, fs::read(entry.path())?);
        }
    }
    Ok(())
}

/// Reads the libraries that `VENDORED` lists, each of which must be the file that was published.
fn read_vendored(folder: &Path, files: &mut Files) -> io::Result<()> {
    let list = fs::read_to_string(folder.join("VENDORED"))?;
    for line in list.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
        let mut words = line.split_whitespace();
        let (Some(name), Some(sum)) = (words.next(), words.next()) else {
            return Err(invalid(&format!("VENDORED: `{line}` is not a name and a sum")));
        };
        let mut content = fs::read(folder.join(name))?;
        if hex::encode(Sha256::digest(&content)) != sum {
            return Err(invalid(&format!("vendor/{name} is not the published file; see vendor/fetch")));
        }
        if has_extension(name, &["mjs"]) {
            let mut text = String::from_utf8(content).map_err(|_| invalid("a module is not UTF-8"))?;
            for (bare, file) in BARE_NAMES {
                text = text.replace(bare, file);
            }
            content = text.into_bytes();
        }
        files.insert(format!("vendor/{name}"), content);
    }
    Ok(())
}

/// Writes the compressed files of a site, and returns the Rust source of its table.
fn site(constant: &str, mount: &str, mut files: Files, out: &Path) -> io::Result<String> {
    let mut hash = Sha256::new();
    for (path, content) in &files {
        hash.update((path.len() as u64).to_be_bytes());
        hash.update(path);
        hash.update((content.len() as u64).to_be_bytes());
        hash.update(content);
    }
    let hash = hex::encode(hash.finalize()).chars().take(16).collect::<String>();
    let index = files.remove(INDEX).ok_or_else(|| invalid("a site has no index"))?;
    let index = String::from_utf8(index).map_err(|_| invalid("an index is not UTF-8"))?;
    // Relative, so that the site also works below another path of a reverse proxy.
    let assets = format!("{mount}/{hash}");
    let mut preload = String::new();
    for module in imported(&files, ENTRY) {
        let _ = writeln!(preload, "<link rel=\"modulepreload\" href=\"{ASSETS_PLACEHOLDER}/{module}\">");
    }
    let index = index.replace(PRELOAD_PLACEHOLDER, preload.trim_end()).replace(ASSETS_PLACEHOLDER, &assets);

    let mut source = String::new();
    let add = |path: &str, content: &[u8]| -> io::Result<String> {
        let name = format!("{mount}-{}.gz", path.replace('/', "-"));
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(content)?;
        fs::write(out.join(&name), encoder.finish()?)?;
        let etag = hex::encode(Sha256::digest(content)).chars().take(16).collect::<String>();
        Ok(format!(
            "Asset {{ path: {path:?}, content_type: {:?}, etag: \"\\\"{etag}\\\"\", size: {}, \
             gzip: include_bytes!(concat!(env!(\"OUT_DIR\"), \"/{name}\")) }}",
            content_type(path)?,
            content.len(),
        ))
    };
    let index = add(INDEX, index.as_bytes())?;
    let _ = writeln!(
        source,
        "/// The site of `/{mount}`.\npub static {constant}: Site = Site {{ mount: {mount:?}, hash: {hash:?}, index: {index}, assets: &["
    );
    // Sorted by path: a map is.
    for (path, content) in &files {
        let _ = writeln!(source, "    {},", add(path, content)?);
    }
    source.push_str("] };\n");
    Ok(source)
}

/// The modules that `module` imports statically, directly or not, and the module itself.
fn imported(files: &Files, module: &str) -> Vec<String> {
    let mut found = vec![module.to_owned()];
    let mut next = 0;
    while let Some(module) = found.get(next).cloned() {
        next += 1;
        let folder = module.rsplit_once('/').map_or("", |(folder, _)| folder);
        let text = files.get(&module).map(|content| String::from_utf8_lossy(content)).unwrap_or_default();
        for quoted in text.split("from").skip(1) {
            let Some(path) = quoted.trim_start().strip_prefix('"').and_then(|rest| rest.split('"').next())
            else {
                continue;
            };
            let path = resolve(folder, path);
            if files.contains_key(&path) && !found.contains(&path) {
                found.push(path);
            }
        }
    }
    found
}

/// Resolves a relative path.
fn resolve(folder: &str, path: &str) -> String {
    let mut names: Vec<&str> = folder.split('/').filter(|name| !name.is_empty()).collect();
    for name in path.split('/') {
        match name {
            "." => {}
            ".." => {
                names.pop();
            }
            name => names.push(name),
        }
    }
    names.join("/")
}

fn content_type(path: &str) -> io::Result<&'static str> {
    Ok(match path.rsplit_once('.').map(|(_, extension)| extension) {
        Some("html") => "text/html; charset=utf-8",
        Some("js" | "mjs") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => return Err(invalid(&format!("{path}: files of this type are not served"))),
    })
}

fn has_extension(path: &str, extensions: &[&str]) -> bool {
    path.rsplit_once('.').is_some_and(|(_, extension)| extensions.contains(&extension))
}

fn invalid(message: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}
