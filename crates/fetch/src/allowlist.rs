//! The addresses that the configuration lets tools reach although they are not public.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use reqwest::Url;
use url::Host;

use super::ip_ranges::{CidrBlock, canonical_address};
use super::target::{Target, TargetHost, normalize_host};

/// The hosts and addresses of `ENGINE_WEB_ALLOW`; empty by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WebAllowlist(Vec<AllowlistEntry>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct AllowlistEntry {
    host: HostPattern,
    /// `None` means every port.
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum HostPattern {
    /// A name, whatever it resolves to.
    Name(String),
    /// A block of addresses, whatever name they were resolved from.
    Cidr(CidrBlock),
}

impl WebAllowlist {
    /// The expected form of a list, for an error message.
    pub const EXPECTED: &str = "hosts, IP addresses or blocks such as `10.0.0.0/8`, separated by commas; a host or an \
                               address may have a port: `wiki.internal:8080`, `[fd00::1]:8080`";

    /// Parses a list; `None` if an entry is not a host, an address or a block.
    pub fn parse(list: &str) -> Option<Self> {
        let entries = list.split(',').map(str::trim).filter(|entry| !entry.is_empty());
        entries.map(parse_entry).collect::<Option<_>>().map(Self)
    }

    /// Only the server of this address, at its port.
    pub(super) fn only(target: &Target) -> Self {
        let host = match target.host() {
            TargetHost::Name(name) => HostPattern::Name(name.trim_end_matches('.').to_owned()),
            TargetHost::Address(address) => HostPattern::Cidr(CidrBlock::single(canonical_address(address))),
        };
        Self(vec![AllowlistEntry { host, port: Some(target.port()) }])
    }

    /// Whether a name may be reached at a port, whatever it resolves to.
    pub fn allows_name(&self, name: &str, port: u16) -> bool {
        let name = name.trim_end_matches('.');
        self.patterns_for_port(port)
            .any(|host_pattern| matches!(host_pattern, HostPattern::Name(allowed) if allowed == name))
    }

    /// Whether the host of a URL is on the list, as a name or as an address.
    pub fn allows_host(&self, url: &Url) -> bool {
        let port = url.port_or_known_default().unwrap_or_default();
        match url.host() {
            Some(Host::Domain(name)) => self.allows_name(name, port),
            Some(Host::Ipv4(address)) => self.allows_address(SocketAddr::new(address.into(), port)),
            Some(Host::Ipv6(address)) => self.allows_address(SocketAddr::new(address.into(), port)),
            None => false,
        }
    }

    /// Whether an address may be reached.
    pub(super) fn allows_address(&self, address: SocketAddr) -> bool {
        let ip = canonical_address(address.ip());
        self.patterns_for_port(address.port())
            .any(|host_pattern| matches!(host_pattern, HostPattern::Cidr(block) if block.contains(ip)))
    }

    fn patterns_for_port(&self, port: u16) -> impl Iterator<Item = &HostPattern> {
        self.0
            .iter()
            .filter(move |entry| entry.port.is_none_or(|allowed| allowed == port))
            .map(|entry| &entry.host)
    }
}

/// Writes the list in the form that [`WebAllowlist::parse`] accepts.
impl fmt::Display for WebAllowlist {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries: Vec<_> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&entries.join(","))
    }
}

impl fmt::Display for AllowlistEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.host, self.port) {
            (HostPattern::Name(name), Some(port)) => write!(f, "{name}:{port}"),
            (HostPattern::Name(name), None) => f.write_str(name),
            (HostPattern::Cidr(block), Some(port)) => {
                let host = block.to_string();
                if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
            }
            (HostPattern::Cidr(block), None) => write!(f, "{block}"),
        }
    }
}

fn parse_entry(text: &str) -> Option<AllowlistEntry> {
    if let Some((network, prefix)) = text.split_once('/') {
        let block = CidrBlock::new(network.parse().ok()?, prefix.parse().ok()?)?;
        return Some(AllowlistEntry { host: HostPattern::Cidr(block), port: None });
    }
    let (host, port) = match (text.parse::<IpAddr>(), text.rsplit_once(':')) {
        (Err(_), Some((host, port))) => (host, Some(port.parse().ok()?)),
        _ => (text, None),
    };
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let host_pattern = match bare.parse() {
        Ok(address) => HostPattern::Cidr(CidrBlock::single(canonical_address(address))),
        Err(_) => HostPattern::Name(normalize_host(host)?),
    };
    Some(AllowlistEntry { host: host_pattern, port })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has(list: &str, address: &str) -> bool {
        WebAllowlist::parse(list).unwrap().allows_address(address.parse().unwrap())
    }

    #[test]
    fn addresses_and_blocks() {
        assert!(has("10.0.0.0/8", "10.1.2.3:99"));
        assert!(!has("10.0.0.0/8", "11.1.2.3:99"));
        assert!(has(" 127.0.0.1:80 , ::1", "127.0.0.1:80"));
        assert!(!has("127.0.0.1:80", "127.0.0.1:81"));
        assert!(has("::1", "[::1]:7"));
        assert!(has("[::1]:7", "[::1]:7"));
        assert!(!has("[::1]:7", "[::1]:8"));
        assert!(has("127.0.0.1", "[::ffff:127.0.0.1]:8"));
        assert!(has("fd00::/8", "[fd12::1]:8"));
        assert!(!has("", "127.0.0.1:80"));
    }

    #[test]
    fn names_are_taken_in_the_form_that_a_url_has() {
        let allowed = WebAllowlist::parse("Wiki.Internal, bücher.example:8080").unwrap();
        assert!(allowed.allows_name("wiki.internal", 1));
        assert!(allowed.allows_name("wiki.internal.", 1));
        assert!(!allowed.allows_name("evil.wiki.internal", 1));
        assert!(allowed.allows_name("xn--bcher-kva.example", 8080));
        assert!(!allowed.allows_name("xn--bcher-kva.example", 80));
        assert!(!allowed.allows_address("127.0.0.1:1".parse().unwrap()));
    }

    #[test]
    fn a_single_server_is_allowed_at_its_own_port_only() {
        let only = |url: &str| WebAllowlist::only(&Target::parse(url).unwrap());
        let address = only("http://127.0.0.1:8080/search");
        assert!(address.allows_address("127.0.0.1:8080".parse().unwrap()));
        assert!(!address.allows_address("127.0.0.1:80".parse().unwrap()));
        assert!(!address.allows_address("127.0.0.2:8080".parse().unwrap()));
        let name = only("https://Search.Internal./");
        assert!(name.allows_name("search.internal", 443));
        assert!(!name.allows_name("search.internal", 80) && !name.allows_name("internal", 443));
        assert!(!name.allows_address("127.0.0.1:443".parse().unwrap()));
    }

    #[test]
    fn a_list_is_written_as_it_is_configured() {
        let list = "10.0.0.0/8,127.0.0.1,127.0.0.1:80,::1,[::1]:8080,wiki.internal,wiki.internal:8080";
        let parsed = WebAllowlist::parse(list).unwrap();
        assert_eq!(parsed.to_string(), list);
        assert_eq!(WebAllowlist::default().to_string(), "");
    }

    #[test]
    fn what_is_neither_is_a_fault() {
        let invalid_field = [
            "10.0.0.1/8",
            "10.0.0.0/33",
            "a b",
            "host:99999",
            "host:",
            "http://host",
            "host/path",
            "[::1",
            "*",
        ];
        for list in invalid_field {
            assert_eq!(WebAllowlist::parse(list), None, "{list}");
        }
    }
}
