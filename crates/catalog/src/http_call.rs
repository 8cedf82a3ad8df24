//! The HTTP call of a catalog tool, as its author wrote it: method, URL and headers.

use std::collections::BTreeMap;
use std::fmt;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, Url};

/// The method, URL and headers of an HTTP tool.
#[derive(Clone, PartialEq)]
pub struct HttpCall {
    /// The method.
    pub method: Method,
    /// The URL, without the input.
    pub url: Url,
    /// The headers, which may hold keys.
    pub headers: HeaderMap,
}

/// Leaves out what may hold a key: the headers, and all of the URL except the server.
impl fmt::Debug for HttpCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method, self.origin())
    }
}

impl HttpCall {
    /// Parses the catalog's settings.
    ///
    /// # Errors
    /// What is wrong with them, for their author.
    pub fn parse(method: &str, url: &str, headers: &BTreeMap<String, String>) -> Result<Self, String> {
        let methods = [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE];
        let known = methods.into_iter().find(|known| known.as_str().eq_ignore_ascii_case(method));
        let method = known.ok_or_else(|| {
            format!("`method` is `{method}`: it must be GET, HEAD, POST, PUT, PATCH or DELETE")
        })?;
        let url = Url::parse(url)
            .ok()
            .filter(|url| matches!(url.scheme(), "http" | "https"))
            .ok_or_else(|| "`url` must be an address that begins with http:// or https://".to_owned())?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err("`url` must hold no user and password: put them into `headers`".into());
        }
        let headers =
            headers.iter().map(|(name, value)| parse_header(name, value)).collect::<Result<_, _>>()?;
        Ok(Self { method, url, headers })
    }

    /// Returns the scheme, host and port of the server, without anything that could be a key.
    pub fn origin(&self) -> String {
        self.url.origin().ascii_serialization()
    }

    /// Whether the input goes into the query, because such calls have no body (RFC 9110, section 9.3.1).
    pub fn sends_query(&self) -> bool {
        matches!(self.method, Method::GET | Method::HEAD)
    }
}

fn parse_header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), String> {
    let header = name.parse().map_err(|_| format!("`headers`: `{name}` is not a valid header name"))?;
    // Not shown: it may be a key.
    let mut value: HeaderValue =
        value.parse().map_err(|_| format!("`headers`: the value of `{name}` cannot be sent"))?;
    value.set_sensitive(true);
    Ok((header, value))
}
