//! `user_mcp_servers` of `permissions.json`: whether users may add tool servers of their own, and which.

use api::user_servers::MAX_USER_SERVERS;
use reqwest::Url;
use serde::Deserialize;
use serde_json::Value;

use super::redacted_json_error;

/// How many servers a user may add if the file does not say.
const DEFAULT_MAX: u64 = 5;
/// The maximum number of host patterns.
const MAX_PATTERNS: usize = 256;

/// Which tool servers a user may add.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserServerPolicy {
    /// How many there may be.
    pub max: u64,
    hosts: Vec<HostPattern>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum HostPattern {
    /// Every host.
    Any,
    /// This host, in the form that a URL has.
    Host(String),
    /// The hosts below this domain, which begins with a dot.
    Below(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyEntry {
    #[serde(default = "default_max")]
    max: u64,
    allow: Option<Vec<String>>,
}

fn default_max() -> u64 {
    DEFAULT_MAX
}

impl UserServerPolicy {
    /// Parses the value of `user_mcp_servers`.
    ///
    /// # Errors
    /// The reason, for a person.
    pub(super) fn parse(value: &Value) -> Result<Self, String> {
        let PolicyEntry { max, allow } =
            PolicyEntry::deserialize(value).map_err(|error| redacted_json_error(&error))?;
        if !(1..=MAX_USER_SERVERS).contains(&max) {
            return Err(format!("`max` must be from 1 to {MAX_USER_SERVERS}"));
        }
        let patterns = allow.unwrap_or_else(|| vec!["*".into()]);
        if patterns.len() > MAX_PATTERNS {
            return Err(format!("`allow` must have at most {MAX_PATTERNS} entries"));
        }
        let hosts = patterns.iter().map(|text| parse_pattern(text)).collect::<Result<_, _>>()?;
        Ok(Self { max, hosts })
    }

    /// Whether a server at this address may be added and used.
    pub fn permits(&self, url: &Url) -> bool {
        let Some(host) = url.host_str().map(|host| host.trim_end_matches('.')) else { return false };
        self.hosts.iter().any(|pattern| match pattern {
            HostPattern::Any => true,
            HostPattern::Host(allowed) => host == allowed,
            HostPattern::Below(domain) => host.len() > domain.len() && host.ends_with(domain.as_str()),
        })
    }
}

fn parse_pattern(text: &str) -> Result<HostPattern, String> {
    if text == "*" {
        return Ok(HostPattern::Any);
    }
    let (is_below, host) = text.strip_prefix("*.").map_or((false, text), |domain| (true, domain));
    // Parsed as part of a URL, so that it has the form with which it is compared.
    let url = Url::parse(&format!("https://{host}/")).ok();
    let parsed = url.as_ref().filter(|url| {
        let is_host_only = url.port().is_none() && url.path() == "/" && url.query().is_none();
        is_host_only && url.fragment().is_none() && url.username().is_empty() && url.password().is_none()
    });
    let host = parsed.and_then(Url::host_str).map(|host| host.trim_end_matches('.'));
    match host.filter(|host| !host.is_empty() && !host.contains('*') && !text.contains([':', '@', '/'])) {
        Some(host) if is_below => Ok(HostPattern::Below(format!(".{host}"))),
        Some(host) => Ok(HostPattern::Host(host.to_owned())),
        None => Err(format!(
            "{text:?} in `allow` must be `*`, a host such as `mcp.example.com`, or the hosts below one, such as \
             `*.example.com`"
        )),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn permitted(allow: &[&str], url: &str) -> bool {
        let policy = UserServerPolicy::parse(&json!({"allow": allow})).unwrap();
        policy.permits(&Url::parse(url).unwrap())
    }

    #[test]
    fn hosts_are_permitted_by_name_or_below_a_domain() {
        assert!(permitted(&["*"], "https://anything.example/mcp"));
        assert!(!permitted(&[], "https://anything.example/mcp"));
        assert!(permitted(&["mcp.example.com"], "https://MCP.example.com:8443/x"));
        assert!(permitted(&["mcp.example.com"], "https://mcp.example.com./x"));
        assert!(!permitted(&["example.com"], "https://mcp.example.com/"));
        assert!(!permitted(&["example.com"], "https://example.com.evil.example/"));
        assert!(permitted(&["*.example.com"], "https://a.b.example.com/"));
        assert!(!permitted(&["*.example.com"], "https://example.com/"));
        assert!(!permitted(&["*.example.com"], "https://evilexample.com/"));
        assert!(!permitted(&["*.example.com"], "https://user@evil.example/.example.com"));
        assert!(permitted(&["*.bücher.example"], "https://mcp.bücher.example/"));
        assert!(permitted(&["127.0.0.1"], "http://127.0.0.1:9000/mcp"));
    }

    #[test]
    fn what_is_not_understood_permits_nothing() {
        for value in [
            json!(true),
            json!({"max": 0}),
            json!({"max": 17}),
            json!({"max": "5"}),
            json!({"max": 3, "hosts": []}),
            json!({"allow": "*"}),
            json!({"allow": ["https://a.example"]}),
            json!({"allow": ["a.example:80"]}),
            json!({"allow": ["a.*.example"]}),
            json!({"allow": ["a/b"]}),
            json!({"allow": ["u@a"]}),
            json!({"allow": [""]}),
            json!({"allow": ["*."]}),
            json!({"allow": vec!["a"; 257]}),
        ] {
            assert!(UserServerPolicy::parse(&value).is_err(), "{value}");
        }
        assert_eq!(UserServerPolicy::parse(&json!({})).unwrap().max, DEFAULT_MAX);
    }
}
