//! The files of a site before they are compressed.

use std::collections::BTreeMap;
use std::path::Path;
use std::{fs, io};

use sha2::{Digest as _, Sha256};

/// Browsers resolve no bare names, so those of vendored modules are replaced by their files.
const BARE_NAMES: [(&str, &str); 1] = [("from\"preact\"", "from\"./preact.mjs\"")];

/// Site files by their path in the site.
pub(crate) type Files = BTreeMap<String, Vec<u8>>;

/// Reads all files below `folder`.
pub(crate) fn read_folder(folder: &Path, prefix: &str, files: &mut Files) -> io::Result<()> {
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
pub(crate) fn read_vendored(folder: &Path, files: &mut Files) -> io::Result<()> {
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

/// Takes a text file out of a site's files.
pub(crate) fn take_text(files: &mut Files, path: &str) -> io::Result<String> {
    let content = files.remove(path).ok_or_else(|| invalid(&format!("a site has no {path}")))?;
    String::from_utf8(content).map_err(|_| invalid(&format!("{path} is not UTF-8")))
}

/// The modules that `module` imports statically, directly or not, and the module itself.
pub(crate) fn imported(files: &Files, module: &str) -> Vec<String> {
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
pub(crate) fn resolve(folder: &str, path: &str) -> String {
    let mut names: Vec<&str> = folder.split('/').filter(|name| !name.is_empty()).collect();
    for name in path.split('/') {
        match name {
            "." | "" => {}
            ".." => {
                names.pop();
            }
            name => names.push(name),
        }
    }
    names.join("/")
}

pub(crate) fn has_extension(path: &str, extensions: &[&str]) -> bool {
    path.rsplit_once('.').is_some_and(|(_, extension)| extensions.contains(&extension))
}

pub(crate) fn invalid(message: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}
