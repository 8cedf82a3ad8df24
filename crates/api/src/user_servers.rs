//! The user's own tool servers: added by address, where the catalog permits it. Their tools are pinned: the
//! agent gets only those definitions that the user has approved.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::Timestamp;
use crate::assets::{AuthKind, Credentials};
use crate::text::{TextRule, ValidatedText};

/// The most servers that an engine ever keeps, whatever the catalog permits.
pub const MAX_USER_SERVERS: u64 = 16;

/// The rules of the texts of a server.
pub mod rule {
    use super::TextRule;

    /// A user's name for a tool server.
    pub enum ServerName {}
    /// What a server is for, in the user's words.
    pub enum ServerDescription {}

    impl TextRule for ServerName {
        const NAME: &'static str = "UserServerName";
        const EXPECTED: &'static str = "1 to 32 lower-case letters, digits, `-` and `_`, beginning with a \
                                        letter or a digit, without two `_` side by side or one at the end";
        const MAX_BYTES: usize = 32;
        fn is_valid(text: &str) -> bool {
            let fits =
                |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_';
            // The server's tools are called `server__tool`.
            text.bytes().all(fits)
                && !text.starts_with(['-', '_'])
                && !text.contains("__")
                && !text.ends_with('_')
        }
    }

    impl TextRule for ServerDescription {
        const NAME: &'static str = "UserServerDescription";
        const EXPECTED: &'static str = "1 to 1,024 bytes of UTF-8 without control characters, not all blank";
        const MAX_BYTES: usize = 1_024;
        fn is_valid(text: &str) -> bool {
            !text.trim().is_empty() && !text.chars().any(char::is_control)
        }
    }
}

/// A user's name for a tool server, with which the names of its tools begin.
pub type UserServerName = ValidatedText<rule::ServerName>;
/// What a server is for, in the user's words.
pub type UserServerDescription = ValidatedText<rule::ServerDescription>;

/// What a server of the user is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UserServerDefinition {
    /// Its address.
    pub url: String,
    /// What it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<UserServerDescription>,
    /// The authentication that it requires from the user.
    pub auth: AuthKind,
    /// The header for the key, if it is not `Authorization`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key_header: Option<String>,
    /// Whether the agent may use it.
    pub enabled: bool,
}

/// Body of `POST /mcp/servers`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddUserServer {
    /// The name, which no server of the catalog has.
    pub name: UserServerName,
    /// The address, `https`. (`http` only for this machine, where the operator allows that.)
    pub url: String,
    /// What the server is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<UserServerDescription>,
    /// The authentication that it requires from the user; `none` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<AuthKind>,
    /// With `api_key`: the header for the key, instead of `Authorization: Bearer`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key_header: Option<String>,
}

/// Body of `PATCH /mcp/servers/{name}`. What is left out stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UpdateUserServer {
    /// What the server is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<UserServerDescription>,
    /// Whether the agent may use it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
}

// It contains a secret, so it does not implement `Debug`.
/// Body of `POST /mcp/servers/{name}/connect`.
#[derive(Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ConnectUserServer {
    /// The user's credentials, if the server requires a key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<Credentials>,
    /// Where the callback finally redirects the user's browser; must have the origin of
    /// `OAUTH_REDIRECT_BASE_URL`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redirect_to: Option<String>,
}

/// Body of `POST /mcp/servers/{name}/approve`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ApproveTools {
    /// The `digest` of the tools that the user was shown.
    pub digest: String,
}

/// Response of `GET /mcp/servers`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UserServerList {
    /// The servers, the oldest first, without their tools.
    pub servers: Vec<UserServer>,
    /// Whether the catalog permits servers of the user.
    pub permitted: bool,
    /// How many there may be.
    pub limit: u64,
}

/// A tool server of the user.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UserServer {
    /// Its name, with which the names of its tools begin.
    pub name: UserServerName,
    /// What it is.
    #[serde(flatten)]
    pub definition: UserServerDefinition,
    /// Whether it can be used, and if not, why.
    pub status: UserServerStatus,
    /// A description of the problem, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Whether some of its tools wait for the user's approval, because they are new or have changed.
    pub awaiting_approval: bool,
    /// What identifies the tools that it lists now; absent if it has listed none. An approval names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Its tools, sorted by name; absent in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<UserServerTool>>,
    /// When it was added.
    pub created_at: Timestamp,
    /// When it or its approved tools were last changed.
    pub updated_at: Timestamp,
}

/// Whether a server of the user can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum UserServerStatus {
    /// The user has not connected it yet.
    NotConnected,
    /// The user has not given access at the authorization server yet.
    Pending,
    /// Its approved tools can be called.
    Connected,
    /// The authorization has expired: the user must connect it again.
    Expired,
    /// It cannot be reached, or refuses.
    Error,
    /// The user has disabled it.
    Disabled,
    /// The catalog does not permit it, or no longer.
    NotPermitted,
    /// The catalog has a server of the same name now.
    NameTaken,
}

/// A tool of a server of the user.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UserServerTool {
    /// Its name, as the server calls it.
    pub name: String,
    /// Its name as the agent knows it.
    pub tool: String,
    /// Whether the agent gets it.
    pub state: ToolState,
    /// Its description now; the approved one if it is gone.
    pub description: String,
    /// The JSON Schema of its input now; the approved one if it is gone.
    pub input_schema: Value,
    /// The difference between the approved definition and the one now, if it has changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diff: Option<String>,
    /// Whether there is more of the difference than is shown.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub diff_truncated: bool,
}

/// Whether the agent gets a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToolState {
    /// It is as the user approved it: the agent gets it.
    Approved,
    /// It differs from what the user approved.
    Changed,
    /// The user has not approved it yet.
    New,
    /// The server no longer lists it.
    Gone,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_can_begin_the_names_of_tools() {
        for good in ["a", "0", "notes", "my-notes", "my_notes-2", &"x".repeat(32)] {
            assert!(UserServerName::new(good).is_ok(), "{good:?}");
        }
        for bad in ["", "_a", "-a", "a_", "a__b", "Notes", "nötes", "a b", "a/b", "a.b", &"x".repeat(33)] {
            assert!(UserServerName::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_program_cannot_be_added() {
        let body = r#"{"name": "a", "url": "https://a.example", "command": "sh"}"#;
        let error = serde_json::from_str::<AddUserServer>(body).unwrap_err().to_string();
        assert!(error.contains("unknown field `command`"), "{error}");
        let added: AddUserServer =
            serde_json::from_str(r#"{"name": "a", "url": "https://a.example"}"#).unwrap();
        assert_eq!((added.auth, added.api_key_header), (None, None));
    }
}
