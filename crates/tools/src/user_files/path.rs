//! Paths of the workspace as they appear in URLs.
//!
//! Names of files are bytes. In a URL each name is percent-encoded, so that every file can be addressed,
//! whatever its name; nothing is normalized.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use super::FileError;
use crate::beneath::{is_temporary, split_last};

/// A path relative to the workspace, with plain names only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilePath(OsString);

impl FilePath {
    /// Parses the path of a URL, in which each name is percent-encoded. A slash at its end is ignored; an
    /// empty path is the workspace itself.
    ///
    /// # Errors
    /// A name is empty, `.`, `..`, reserved for the engine's temporary files, or contains an encoded slash or
    /// NUL.
    pub fn parse(encoded: &str) -> Result<Self, FileError> {
        let encoded = encoded.strip_suffix('/').unwrap_or(encoded);
        if encoded.is_empty() {
            return Ok(Self::default());
        }
        let mut path = Vec::new();
        for name in encoded.split('/') {
            let name = decode(name)?;
            check_name(&name)?;
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend(name);
        }
        Ok(Self(OsString::from_vec(path)))
    }

    /// Whether it is the workspace itself.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the form for a URL.
    pub fn encoded(&self) -> String {
        let names = self.0.as_bytes().split(|byte| *byte == b'/');
        names.map(|name| encode(OsStr::from_bytes(name))).collect::<Vec<_>>().join("/")
    }

    /// Returns the number of names.
    pub fn depth(&self) -> usize {
        if self.is_root() { 0 } else { self.0.as_bytes().split(|byte| *byte == b'/').count() }
    }

    /// Returns the last name; empty for the workspace itself.
    pub fn name(&self) -> &OsStr {
        split_last(&self.0).1
    }

    /// Returns the path of the folder, relative to the workspace.
    pub(super) fn folder(&self) -> &OsStr {
        split_last(&self.0).0.unwrap_or(OsStr::new("."))
    }

    /// Returns the folders above the one that the file is in, up to the workspace, relative to it.
    pub(super) fn ancestors(&self) -> impl Iterator<Item = &OsStr> {
        let mut folder = self.folder();
        std::iter::from_fn(move || {
            if folder == "." {
                return None;
            }
            folder = split_last(folder).0.unwrap_or(OsStr::new("."));
            Some(folder)
        })
    }

    /// Returns the path for the file system, relative to the workspace.
    pub(super) fn as_os_str(&self) -> &OsStr {
        if self.is_root() { OsStr::new(".") } else { &self.0 }
    }
}

fn check_name(name: &[u8]) -> Result<(), FileError> {
    match name {
        b"" => Err(FileError::InvalidPath("must not contain empty names")),
        b"." | b".." => Err(FileError::InvalidPath("must not contain `.` or `..`")),
        name if name.contains(&b'/') => Err(FileError::InvalidPath("must not contain an encoded slash")),
        name if name.contains(&0) => Err(FileError::InvalidPath("must not contain NUL")),
        name if is_temporary(OsStr::from_bytes(name)) => {
            Err(FileError::InvalidPath("has a name that is reserved for the engine's temporary files"))
        }
        _ => Ok(()),
    }
}

fn decode(encoded: &str) -> Result<Vec<u8>, FileError> {
    let mut name = Vec::with_capacity(encoded.len());
    let mut bytes = encoded.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let mut digit = || bytes.next().and_then(|byte| char::from(byte).to_digit(16));
            let value = digit().zip(digit()).and_then(|(high, low)| u8::try_from(high * 16 + low).ok());
            name.push(value.ok_or(FileError::InvalidPath("has a malformed escape"))?);
        } else {
            name.push(byte);
        }
    }
    Ok(name)
}

/// Percent-encodes a name for a URL, and for a header's extended value (RFC 8187).
pub fn encode(name: &OsStr) -> String {
    let mut encoded = String::with_capacity(name.len());
    for byte in name.as_bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            encoded.push(char::from(*byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

/// Returns the name as text: as it is, or percent-encoded if it is not UTF-8.
pub fn display_name(name: &OsStr) -> String {
    name.to_str().map_or_else(|| encode(name), str::to_owned)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn plain_names_are_accepted_in_any_encoding() {
        for (encoded, path) in [
            ("a", "a"),
            ("a/b%20c/d", "a/b c/d"),
            ("a/", "a"),
            ("%61", "a"),
            ("..a/.b/...", "..a/.b/..."),
            ("%E6%97%A5%E6%9C%AC", "日本"),
            ("日本", "日本"),
            ("%25", "%"),
            ("a%5C..%5Cb", "a\\..\\b"),
            (".tmp", ".tmp"),
        ] {
            assert_eq!(FilePath::parse(encoded).unwrap().0, path, "{encoded}");
        }
        assert!(FilePath::parse("").unwrap().is_root() && FilePath::parse("/").unwrap().is_root());
    }

    #[test]
    fn other_paths_are_refused() {
        for encoded in [
            "..",
            "a/..",
            "../a",
            "%2e%2e",
            "%2E./a",
            ".",
            "a/./b",
            "/a",
            "a//b",
            "//",
            "a%2fb",
            "%2Fa",
            "..%2f..%2fetc",
            "a%00",
            "%",
            "%g0",
            "a%2",
            ".writing-1.tmp",
            "a/.writing-1.tmp/b",
        ] {
            assert!(matches!(FilePath::parse(encoded), Err(FileError::InvalidPath(_))), "{encoded}");
        }
    }

    #[test]
    fn a_name_that_is_not_utf8_has_an_encoded_form() {
        let path = FilePath::parse("a/%FF%20").unwrap();
        assert_eq!((path.encoded().as_str(), path.depth()), ("a/%FF%20", 2));
        assert_eq!(display_name(path.name()), "%FF%20");
        assert_eq!(path.folder(), "a");
        let path = FilePath::parse("a/b/c/d").unwrap();
        assert!(path.ancestors().eq(["a/b", "a", "."]));
        assert_eq!(FilePath::parse("a").unwrap().ancestors().count(), 0);
    }

    proptest! {
        #[test]
        fn an_encoded_path_is_parsed_to_the_same_path(names in prop::collection::vec("[^/\0]{1,8}", 1..4)) {
            let encoded = names.iter().map(|name| encode(OsStr::new(name))).collect::<Vec<_>>().join("/");
            if let Ok(path) = FilePath::parse(&encoded) {
                prop_assert_eq!(path.encoded(), encoded);
                prop_assert_eq!(path.0.to_str().unwrap(), names.join("/"));
            } else {
                prop_assert!(names.iter().any(|name| check_name(name.as_bytes()).is_err()));
            }
        }

        #[test]
        fn no_path_leads_out(encoded in "[a-z%./0-9]{0,16}") {
            if let Ok(path) = FilePath::parse(&encoded) {
                let names: Vec<_> = path.0.as_bytes().split(|byte| *byte == b'/').collect();
                prop_assert!(path.is_root() || names.iter().all(|name| !matches!(*name, b"" | b"." | b"..")));
            }
        }
    }
}
