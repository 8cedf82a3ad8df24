//! Origins of pages, as browsers write them in the header `Origin`.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, de};
use url::Url;
use utoipa::ToSchema;

/// The most origins of a product.
const MAX_ORIGINS: usize = 32;
/// The longest origin, in bytes.
const MAX_ORIGIN_BYTES: usize = 300;

/// An origin: a scheme, a host and, unless it is the scheme's own, a port. A page's header is compared with it as text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(value_type = String)]
pub struct Origin(String);

/// The error for a text that is not an origin.
#[derive(Debug, thiserror::Error)]
#[error(
    "must be an origin as browsers send it: `https://` or `http://`, the host in lower case, and a port only if it is \
     not the scheme's own; no path, no `*` and no `null`"
)]
pub struct InvalidOrigin;

impl Origin {
    /// Parses an origin. Only the form that browsers send is one: anything else would match no page.
    pub fn parse(text: &str) -> Result<Self, InvalidOrigin> {
        let url = Url::parse(text).map_err(|_| InvalidOrigin)?;
        let is_web = matches!(url.scheme(), "http" | "https") && !text.contains('*');
        if is_web && text.len() <= MAX_ORIGIN_BYTES && url.origin().ascii_serialization() == text {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidOrigin)
        }
    }

    /// Returns the origin's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Origin {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&Cow::<str>::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

/// At most 32 different origins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[schema(value_type = Vec<String>)]
pub struct Origins(Vec<Origin>);

impl Origins {
    /// Whether a page with this header `Origin` is one of the product's.
    pub fn allow(&self, origin: &str) -> bool {
        self.0.iter().any(|allowed| allowed.as_str() == origin)
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The origins.
    pub fn iter(&self) -> impl Iterator<Item = &Origin> {
        self.0.iter()
    }
}

impl<'de> Deserialize<'de> for Origins {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut origins = Vec::<Origin>::deserialize(deserializer)?;
        let mut seen = std::collections::HashSet::new();
        origins.retain(|origin| seen.insert(origin.0.clone()));
        if origins.len() > MAX_ORIGINS {
            return Err(de::Error::custom(format!("must have at most {MAX_ORIGINS} origins")));
        }
        Ok(Self(origins))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_what_browsers_send() {
        for origin in [
            "https://app.example.com",
            "http://localhost:3000",
            "https://example.com:8443",
            "http://[::1]:5173",
        ] {
            assert_eq!(Origin::parse(origin).unwrap().as_str(), origin);
        }
        for wrong in [
            "*",
            "null",
            "",
            "app.example.com",
            "https://app.example.com/",
            "https://app.example.com/path",
            "https://App.example.com",
            "https://app.example.com:443",
            "http://app.example.com:80",
            "https://user@app.example.com",
            "https://*.example.com",
            "file:///etc",
            "ftp://example.com",
            "https://a.example\r\nx: y",
            &format!("https://{}.example.com", "a".repeat(300)),
        ] {
            assert!(Origin::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn origins_are_compared_whole() {
        let origins: Origins =
            serde_json::from_str(r#"["https://a.example", "https://a.example", "https://b.example"]"#)
                .unwrap();
        assert_eq!(origins.iter().count(), 2);
        assert!(origins.allow("https://a.example"));
        for other in ["https://a.example.evil", "http://a.example", "https://a.example:8443", "null", ""] {
            assert!(!origins.allow(other), "{other}");
        }
        let many: Vec<_> = (0..33).map(|number| format!("https://a{number}.example")).collect();
        assert!(serde_json::from_value::<Origins>(many.into()).is_err());
    }
}
