//! Compresses the files of a site, and writes the table of them.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::{fs, io};

use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest as _, Sha256};

use crate::files::{Files, invalid};

/// A site as it will be served.
pub(crate) struct Source {
    /// The name of its constant.
    pub(crate) constant: &'static str,
    /// The first part of its address.
    pub(crate) mount: &'static str,
    /// The hash of its assets.
    pub(crate) hash: String,
    /// The page at its address.
    pub(crate) index: String,
    /// The pages below its address, by name.
    pub(crate) pages: Files,
    /// What its pages load.
    pub(crate) assets: Files,
}

/// The hash of files, which names their folder.
pub(crate) fn hash(files: &Files) -> String {
    let mut hash = Sha256::new();
    for (path, content) in files {
        hash.update((path.len() as u64).to_be_bytes());
        hash.update(path);
        hash.update((content.len() as u64).to_be_bytes());
        hash.update(content);
    }
    hex::encode(hash.finalize()).chars().take(16).collect()
}

impl Source {
    /// Writes the compressed files, and returns the Rust source of the site's table.
    pub(crate) fn write(&self, out: &Path) -> io::Result<String> {
        let Self { constant, mount, hash, .. } = self;
        let html = "text/html; charset=utf-8";
        let index = self.add(out, "index.html", html, self.index.as_bytes())?;
        let mut source = format!(
            "/// The site of `/{mount}`.\npub static {constant}: Site = Site {{ mount: {mount:?}, hash: {hash:?}, \
             index: {index}, pages: &["
        );
        // Sorted by path: a map is.
        for (path, content) in &self.pages {
            let _ = writeln!(source, "    {},", self.add(out, path, html, content)?);
        }
        source.push_str("], assets: &[\n");
        for (path, content) in &self.assets {
            let _ = writeln!(source, "    {},", self.add(out, path, content_type(path)?, content)?);
        }
        source.push_str("] };\n");
        Ok(source)
    }

    /// Compresses a file and returns its entry in the table.
    fn add(&self, out: &Path, path: &str, content_type: &str, content: &[u8]) -> io::Result<String> {
        let name = format!("{}-{}.gz", self.mount, path.replace('/', "-"));
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(content)?;
        fs::write(out.join(&name), encoder.finish()?)?;
        let etag = hex::encode(Sha256::digest(content)).chars().take(16).collect::<String>();
        Ok(format!(
            "Asset {{ path: {path:?}, content_type: {content_type:?}, etag: \"\\\"{etag}\\\"\", size: {}, \
             gzip: include_bytes!(concat!(env!(\"OUT_DIR\"), \"/{name}\")) }}",
            content.len(),
        ))
    }
}

fn content_type(path: &str) -> io::Result<&'static str> {
    Ok(match path.rsplit_once('.').map(|(_, extension)| extension) {
        Some("js" | "mjs") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        Some("jpg") => "image/jpeg",
        Some("webp") => "image/webp",
        Some("json") => "application/json",
        _ => return Err(invalid(&format!("{path}: files of this type are not served"))),
    })
}
