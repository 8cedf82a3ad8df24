//! Provider addresses in one normalized form, which is both compared and used.

use std::fmt;

use reqwest::Url;

/// The base URL of a provider, in the normalized form that the HTTP client itself parses, without a trailing
/// slash: the address that is compared is the one that is used.
#[derive(Clone, Debug)]
pub(super) struct BaseUrl {
    url: Url,
    text: String,
}

impl BaseUrl {
    /// A description of a valid address, for error messages.
    pub(super) const EXPECTED: &str = "the provider's address: it begins with http:// or https:// and has no user, \
                                      password, query or fragment";

    /// Parses an address; `None` if it is not valid.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let url = Url::parse(text).ok()?;
        let is_plain = url.username().is_empty()
            && url.password().is_none()
            && url.query().is_none()
            && url.fragment().is_none()
            && url.has_host();
        if !matches!(url.scheme(), "http" | "https") || !is_plain {
            return None;
        }
        let text = url.as_str().trim_end_matches('/').to_owned();
        Some(Self { url, text })
    }

    /// The URL as text.
    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether both URLs have the same origin: scheme, host and port.
    pub(super) fn has_same_origin(&self, other: &Self) -> bool {
        self.url.origin() == other.url.origin()
    }
}

/// Equal URLs have the same origin and the same path: one server may have many tenants.
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
