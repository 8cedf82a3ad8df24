//! Where a provider is, in the one form that is compared and used.

use std::fmt;

use reqwest::Url;

/// A provider's base address. What is compared is what is used: the form that the HTTP client itself reads, without
/// a slash at its end.
#[derive(Clone, Debug)]
pub(super) struct BaseUrl {
    url: Url,
    text: String,
}

impl BaseUrl {
    /// What an address must be, for a message.
    pub(super) const EXPECTED: &str = "the provider's address: it begins with http:// or https:// and has no user, \
                                      password, query or fragment";

    /// Reads an address; none if it is not one.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let url = Url::parse(text).ok()?;
        let plain = url.username().is_empty()
            && url.password().is_none()
            && url.query().is_none()
            && url.fragment().is_none()
            && url.has_host();
        if !matches!(url.scheme(), "http" | "https") || !plain {
            return None;
        }
        let text = url.as_str().trim_end_matches('/').to_owned();
        Some(Self { url, text })
    }

    /// The address.
    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether the same server is meant: scheme, host and port.
    pub(super) fn has_same_origin(&self, other: &Self) -> bool {
        self.url.origin() == other.url.origin()
    }
}

/// The same server, and the same place on it: a server may have many tenants.
impl PartialEq for BaseUrl {
    fn eq(&self, other: &Self) -> bool {
        self.has_same_origin(other) && self.text == other.text
    }
}

impl fmt::Display for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
