//! The addresses that may be fetched, as parsed by the `url` crate, which reads them as browsers do.

use std::net::IpAddr;

use reqwest::Url;
use url::Host;

/// The maximum length of an address, in bytes. Servers need not accept more than 8000 (RFC 9110, section 4.1); no
/// link that a person could judge comes near that.
const MAX_URL_BYTES: usize = 2_048;

/// The ports that no browser fetches from: those of mail, terminals, name services and the like, where a request
/// could be mistaken for something else. Source: the Fetch standard, section "Port blocking".
const BAD_PORTS: &[u16] = &[
    0, 1, 7, 9, 11, 13, 15, 17, 19, 20, 21, 22, 23, 25, 37, 42, 43, 53, 69, 77, 79, 87, 95, 101, 102, 103,
    104, 109, 110, 111, 113, 115, 117, 119, 123, 135, 137, 139, 143, 161, 179, 389, 427, 465, 512, 513, 514,
    515, 526, 530, 531, 532, 540, 548, 554, 556, 563, 587, 601, 636, 989, 990, 993, 995, 1719, 1720, 1723,
    2049, 3659, 4045, 4190, 5060, 5061, 6000, 6566, 6665, 6666, 6667, 6668, 6669, 6679, 6697, 10080,
];

/// Why an address is not fetched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// It is too long.
    #[error("the address is longer than {MAX_URL_BYTES} bytes")]
    TooLong,
    /// It is not an address.
    #[error("this is not a web address ({0}): give a complete one, such as `https://example.org/page`")]
    Malformed(String),
    /// Its scheme is neither `http` nor `https`.
    #[error("`{0}:` addresses are not fetched: only `http:` and `https:` ones are")]
    Scheme(String),
    /// It has a user name or a password.
    #[error("the address has a user name or a password before an `@`: leave them out")]
    UserInfo,
    /// Browsers block its port.
    #[error("port {0} is not one of the web: no browser would fetch from it")]
    Port(u16),
}

/// An address that may be fetched if it leads to a public server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target(Url);

/// The host of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TargetHost<'a> {
    /// A name, to be resolved.
    Name(&'a str),
    /// An IP address.
    Address(IpAddr),
}

impl Target {
    /// Parses an address.
    pub fn parse(text: &str) -> Result<Self, TargetError> {
        let text = text.trim_matches(' ');
        validate_text(text)?;
        Self::from_url(Url::parse(text).map_err(|error| TargetError::Malformed(error.to_string()))?)
    }

    /// Resolves a link or a redirect relative to this address.
    pub fn join(&self, link: &str) -> Result<Self, TargetError> {
        validate_text(link)?;
        Self::from_url(self.0.join(link).map_err(|error| TargetError::Malformed(error.to_string()))?)
    }

    fn from_url(mut url: Url) -> Result<Self, TargetError> {
        if !matches!(url.scheme(), "http" | "https") {
            return Err(TargetError::Scheme(url.scheme().to_owned()));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(TargetError::UserInfo);
        }
        url.set_fragment(None);
        if url.as_str().len() > MAX_URL_BYTES {
            return Err(TargetError::TooLong);
        }
        let target = Self(url);
        if BAD_PORTS.contains(&target.port()) {
            return Err(TargetError::Port(target.port()));
        }
        Ok(target)
    }

    /// Returns the normalized address: a name in ASCII, an IP address in its usual form.
    pub const fn url(&self) -> &Url {
        &self.0
    }

    /// Returns the host.
    pub(super) fn host(&self) -> TargetHost<'_> {
        match self.0.host() {
            Some(Host::Domain(name)) => TargetHost::Name(name),
            Some(Host::Ipv4(address)) => TargetHost::Address(address.into()),
            Some(Host::Ipv6(address)) => TargetHost::Address(address.into()),
            // A web address has a host; this name never resolves (RFC 6761).
            None => TargetHost::Name("invalid"),
        }
    }

    /// Returns the port.
    pub(super) fn port(&self) -> u16 {
        self.0.port_or_known_default().unwrap_or(0)
    }

    /// Whether the connection is encrypted, so that nobody in between can read or change what is transferred.
    pub fn is_secure(&self) -> bool {
        self.0.scheme() == "https"
    }
}

/// Rejects what the `url` crate would drop silently, so that a person reads what is fetched.
fn validate_text(text: &str) -> Result<(), TargetError> {
    if text.len() > MAX_URL_BYTES {
        return Err(TargetError::TooLong);
    }
    if text.chars().any(char::is_control) {
        return Err(TargetError::Malformed("it has a line break or another control character in it".into()));
    }
    Ok(())
}

/// Returns a host name in the form that addresses have: lower case, ASCII, without a trailing dot.
pub(super) fn normalize_host(text: &str) -> Option<String> {
    match Host::parse(text).ok()? {
        Host::Domain(name) if !name.contains('*') => Some(name.trim_end_matches('.').to_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> String {
        Target::parse(text).map_or_else(|error| error.to_string(), |target| target.url().to_string())
    }

    #[test]
    fn odd_hosts_are_what_a_browser_makes_of_them() {
        let forms = [
            ("http://2130706433/", "http://127.0.0.1/"),
            ("http://0x7f000001", "http://127.0.0.1/"),
            ("http://0177.0.0.1", "http://127.0.0.1/"),
            ("http://127.1", "http://127.0.0.1/"),
            ("http://127.0.0.1.", "http://127.0.0.1/"),
            ("http://%31%32%37.0.0.1", "http://127.0.0.1/"),
            ("http://１２７。0.0.1", "http://127.0.0.1/"),
            ("http://[::FFFF:127.0.0.1]", "http://[::ffff:7f00:1]/"),
            ("http://[0:0:0:0:0:0:0:1]:080/", "http://[::1]/"),
            ("http://LOCALHOST", "http://localhost/"),
            ("http://bücher.example/ü#part", "http://xn--bcher-kva.example/%C3%BC"),
            ("https:\\\\example.org\\x", "https://example.org/x"),
            ("  https://example.org:443  ", "https://example.org/"),
        ];
        for (text, address) in forms {
            assert_eq!(read(text), address, "{text}");
        }
    }

    #[test]
    fn what_is_no_plain_address_of_the_web_is_refused() {
        let refused = [
            ("ftp://example.org", "`ftp:`"),
            ("file:///etc/passwd", "`file:`"),
            ("data:text/html,x", "`data:`"),
            ("javascript:alert(1)", "`javascript:`"),
            ("http://user@example.org", "user name"),
            ("http://example.org@127.0.0.1", "user name"),
            ("http://:secret@example.org", "password"),
            ("http://[fe80::1%25eth0]/", "not a web address"),
            ("http://[fe80::1%eth0]/", "not a web address"),
            ("http://", "not a web address"),
            ("http:///", "not a web address"),
            ("example.org", "not a web address"),
            ("http://exa\nmple.org", "line break"),
            ("http://example.org:22", "port 22"),
            ("http://example.org:0", "port 0"),
            ("http://256.256.256.256", "not a web address"),
            ("http://a b/", "not a web address"),
        ];
        for (text, reason) in refused {
            assert!(read(text).contains(reason), "{text}: {}", read(text));
        }
        assert_eq!(
            Target::parse(&format!("http://example.org/{}", "x".repeat(2_048))),
            Err(TargetError::TooLong)
        );
        // It grows when it is escaped.
        assert_eq!(
            Target::parse(&format!("http://example.org/{}", "ü".repeat(1_000))),
            Err(TargetError::TooLong)
        );
    }
}
