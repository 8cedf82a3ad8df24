//! Turns what a user says of a server into how it is reached.

use api::assets::AuthKind;
use api::user_servers::{UserServerDefinition, UserServerName};
use catalog::{ApiKeyLocation, Auth, McpServerSpec};
use fetch::{Target, WebAllowlist, special_purpose};
use reqwest::Url;
use reqwest::header::{self, HeaderName};
use url::Host;

/// Headers that belong to HTTP or to the protocol.
const RESERVED_HEADERS: [HeaderName; 10] = [
    header::HOST,
    header::CONTENT_LENGTH,
    header::CONTENT_TYPE,
    header::TRANSFER_ENCODING,
    header::CONNECTION,
    header::UPGRADE,
    header::TE,
    header::TRAILER,
    header::ACCEPT,
    header::EXPECT,
];
/// The beginnings of the names of others.
const RESERVED_PREFIXES: [&str; 3] = ["mcp-", "proxy-", "sec-"];

/// Returns how a server is reached.
///
/// # Errors
/// The reason why it cannot be, for a person; it begins with the field.
pub(crate) fn parse_spec(
    name: &UserServerName,
    definition: &UserServerDefinition,
    web_allowlist: &WebAllowlist,
) -> Result<McpServerSpec, String> {
    let url = parse_url(&definition.url, web_allowlist).map_err(|reason| format!("`url`: {reason}"))?;
    let auth = match (definition.auth, &definition.api_key_header) {
        (AuthKind::None, None) => Auth::None,
        (AuthKind::OAuth, None) => Auth::OAuth { scopes: Vec::new(), client: None },
        (AuthKind::ApiKey, None) => Auth::ApiKey(ApiKeyLocation::Bearer),
        (AuthKind::ApiKey, Some(header)) => Auth::ApiKey(ApiKeyLocation::Header(parse_header(header)?)),
        (AuthKind::None | AuthKind::OAuth, Some(_)) => {
            return Err("`api_key_header`: needs `auth` \"api_key\"".into());
        }
    };
    Ok(McpServerSpec::of_user(name.as_str().to_owned(), url, auth))
}

/// Parses an address. Whether a name leads to a private address is checked with each connection.
fn parse_url(text: &str, web_allowlist: &WebAllowlist) -> Result<Url, String> {
    let target = Target::parse(text).map_err(|error| error.to_string())?;
    let url = target.url().clone();
    let is_allowed = web_allowlist.allows_host(&url);
    let (purpose, is_local) = match url.host() {
        Some(Host::Ipv4(address)) => (special_purpose(address.into()), address.is_loopback()),
        Some(Host::Ipv6(address)) => (special_purpose(address.into()), address.is_loopback()),
        Some(Host::Domain(name)) => (None, name == "localhost"),
        None => return Err("it has no host".into()),
    };
    if url.scheme() != "https" && !(is_local && is_allowed) {
        return Err("must begin with https://".into());
    }
    match purpose {
        Some(purpose) if !is_allowed => Err(format!(
            "it is not on the public internet ({purpose}). Only the operator of this service can allow it, with \
             ENGINE_WEB_ALLOW"
        )),
        _ => Ok(url),
    }
}

fn parse_header(text: &str) -> Result<HeaderName, String> {
    let is_reserved = |name: &HeaderName| {
        RESERVED_HEADERS.contains(name)
            || RESERVED_PREFIXES.iter().any(|prefix| name.as_str().starts_with(prefix))
    };
    let name = HeaderName::try_from(text).ok().filter(|name| text.len() <= 64 && !is_reserved(name));
    name.ok_or_else(|| {
        "`api_key_header`: must be the name of a header for keys, such as `X-Api-Key`, at most 64 characters"
            .into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(url: &str, auth: AuthKind, header: Option<&str>, allow: &str) -> Result<McpServerSpec, String> {
        let definition = UserServerDefinition {
            url: url.into(),
            description: None,
            auth,
            api_key_header: header.map(Into::into),
            enabled: true,
        };
        let name = UserServerName::new("notes").unwrap();
        parse_spec(&name, &definition, &WebAllowlist::parse(allow).unwrap())
    }

    #[test]
    fn only_public_addresses_over_https_are_taken() {
        for good in ["https://mcp.example.com/mcp", "https://mcp.example.com:8443/a?b=c", "https://1.1.1.1/"]
        {
            assert!(spec(good, AuthKind::None, None, "").is_ok(), "{good}");
        }
        let long = format!("https://a.example/{}", "x".repeat(2_100));
        for bad in [
            "http://mcp.example.com/mcp",
            "http://127.0.0.1:9/mcp",
            "http://localhost:9/mcp",
            "https://127.0.0.1/mcp",
            "https://10.1.2.3/mcp",
            "https://169.254.169.254/latest",
            "https://[::1]/mcp",
            "https://[::ffff:10.0.0.1]/mcp",
            "https://0x7f000001/mcp",
            "https://user:pass@mcp.example.com/",
            "https://mcp.example.com:22/",
            "ftp://mcp.example.com/",
            "file:///etc/passwd",
            "stdio:sh",
            "sh -c ls",
            "https://",
            "https://a.example/\n",
            "",
            &long,
        ] {
            let error = spec(bad, AuthKind::None, None, "").expect_err(bad);
            assert!(error.starts_with("`url`: "), "{bad}: {error}");
        }
    }

    #[test]
    fn the_operator_can_allow_private_addresses_and_this_machine_over_http() {
        assert!(spec("http://127.0.0.1:9000/mcp", AuthKind::None, None, "127.0.0.1").is_ok());
        assert!(spec("http://localhost:9000/mcp", AuthKind::None, None, "localhost:9000").is_ok());
        assert!(spec("http://localhost:9001/mcp", AuthKind::None, None, "localhost:9000").is_err());
        assert!(spec("https://10.1.2.3/mcp", AuthKind::None, None, "10.0.0.0/8").is_ok());
        assert!(spec("http://10.1.2.3/mcp", AuthKind::None, None, "10.0.0.0/8").is_err());
    }

    #[test]
    fn keys_go_into_headers_for_keys() {
        let url = "https://mcp.example.com/mcp";
        for (auth, header) in
            [(AuthKind::ApiKey, None), (AuthKind::ApiKey, Some("X-Api-Key")), (AuthKind::OAuth, None)]
        {
            assert!(spec(url, auth, header, "").is_ok(), "{header:?}");
        }
        for (auth, header) in [
            (AuthKind::None, "X-Api-Key"),
            (AuthKind::OAuth, "X-Api-Key"),
            (AuthKind::ApiKey, "Host"),
            (AuthKind::ApiKey, "content-length"),
            (AuthKind::ApiKey, "Mcp-Session-Id"),
            (AuthKind::ApiKey, "a b"),
            (AuthKind::ApiKey, ""),
        ] {
            let error = spec(url, auth, Some(header), "").expect_err(header);
            assert!(error.starts_with("`api_key_header`: "), "{header}: {error}");
        }
    }
}
