//! Engine image references: `[registry/…/]name:MAJOR.MINOR.PATCH[-pre]`.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use utoipa::openapi::{ObjectBuilder, RefOr, Schema, Type};

/// A reference to an engine image, pinned to an exact version. Floating tags such as `latest` are refused.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EngineImage {
    text: Box<str>,
    /// The offset of the tag in `text`.
    tag: usize,
    major: u64,
}

/// The error for a text that is not a pinned image reference.
#[derive(Debug, thiserror::Error)]
#[error("must be an image pinned to an exact version, such as svc-engine:1.2.3 (no floating tag)")]
pub struct InvalidImage;

/// The longest accepted reference, in bytes.
const MAX_BYTES: usize = 512;

impl EngineImage {
    /// Returns the complete reference.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the image without its version, such as `registry.example/svc-engine`.
    pub fn name(&self) -> &str {
        self.text.get(..self.tag.saturating_sub(1)).unwrap_or_default()
    }

    /// Returns the version, such as `1.2.3`.
    pub fn version(&self) -> &str {
        self.text.get(self.tag..).unwrap_or_default()
    }

    /// Returns the major version, within which engines follow the deployment's image.
    pub const fn major(&self) -> u64 {
        self.major
    }
}

impl FromStr for EngineImage {
    type Err = InvalidImage;

    fn from_str(text: &str) -> Result<Self, InvalidImage> {
        let (name, version) = text.rsplit_once(':').ok_or(InvalidImage)?;
        if text.len() > MAX_BYTES || !is_name(name) {
            return Err(InvalidImage);
        }
        let (core, pre) = match version.split_once('-') {
            Some((core, pre)) => (core, Some(pre)),
            None => (version, None),
        };
        let mut numbers = core.split('.').map(number);
        let (Some(Some(major)), Some(Some(_)), Some(Some(_)), None) =
            (numbers.next(), numbers.next(), numbers.next(), numbers.next())
        else {
            return Err(InvalidImage);
        };
        if pre.is_some_and(|pre| !is_pre_release(pre)) {
            return Err(InvalidImage);
        }
        Ok(Self { tag: name.len() + 1, major, text: text.into() })
    }
}

/// Parses a semver number: digits without a leading zero.
fn number(text: &str) -> Option<u64> {
    let is_number =
        text.bytes().all(|byte| byte.is_ascii_digit()) && (text.len() == 1 || !text.starts_with('0'));
    if is_number { text.parse().ok() } else { None }
}

fn is_pre_release(text: &str) -> bool {
    text.split('.')
        .all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-'))
}

/// Whether `name` consists of path parts that image registries accept. The first part may be a host with a port.
fn is_name(name: &str) -> bool {
    let mut parts = name.split('/').enumerate();
    parts.all(|(index, part)| {
        let allowed = |byte: u8| {
            byte.is_ascii_lowercase()
                || byte.is_ascii_digit()
                || b"._-".contains(&byte)
                || (index == 0 && name.contains('/') && (byte == b':' || byte.is_ascii_uppercase()))
        };
        part.starts_with(|first: char| first.is_ascii_alphanumeric()) && part.bytes().all(allowed)
    })
}

impl fmt::Display for EngineImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for EngineImage {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for EngineImage {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Cow::<str>::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl utoipa::PartialSchema for EngineImage {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(Type::String)
            .description(Some("An engine image pinned to an exact version"))
            .examples(["svc-engine:1.2.3"])
            .into()
    }
}

impl utoipa::ToSchema for EngineImage {
    fn name() -> Cow<'static, str> {
        "EngineImage".into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinned_references_are_taken() {
        for (text, version, major) in [
            ("svc-engine:1.2.3", "1.2.3", 1),
            ("svc-engine:0.1.0-rc.1", "0.1.0-rc.1", 0),
            ("registry.example.com:5000/team/svc-engine:10.0.0", "10.0.0", 10),
        ] {
            let image: EngineImage = text.parse().unwrap();
            assert_eq!((image.as_str(), image.version(), image.major()), (text, version, major));
        }
    }

    #[test]
    fn floating_and_malformed_references_are_refused() {
        for text in [
            "",
            ":",
            "svc-engine",
            "svc-engine:",
            "svc-engine:latest",
            "svc-engine:1",
            "svc-engine:1.2",
            "svc-engine:1.2.3.4",
            "svc-engine:01.2.3",
            "svc-engine:1.2.3-",
            "svc-engine:1.2.x",
            "svc-engine:v1.2.3",
            "SVC:1.2.3",
            "a b:1.2.3",
            "/svc:1.2.3",
            "../svc:1.2.3",
            "a//b:1.2.3",
            "svc-engine:1.2.99999999999999999999",
        ] {
            assert!(text.parse::<EngineImage>().is_err(), "{text:?} was accepted");
        }
    }
}
