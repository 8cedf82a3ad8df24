//! Parameters of the client's requests, as far as they have a meaning for an engine. What has none is refused.

use std::path::Path;

use api::TaskId;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use super::rpc::RpcError;

/// Parses the parameters of a request.
pub(super) fn parse<T: DeserializeOwned>(params: Value) -> Result<T, RpcError> {
    serde_json::from_value(params).map_err(|error| RpcError::invalid_params(error.to_string()))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Initialize {
    #[serde(rename = "protocolVersion")]
    pub(super) _version: u16,
    #[serde(default)]
    client_capabilities: Option<ClientCapabilities>,
}

#[derive(Default, Deserialize)]
struct ClientCapabilities {
    #[serde(default)]
    session: Option<SessionCapabilities>,
    #[serde(default)]
    elicitation: Option<Elicitation>,
}

#[derive(Default, Deserialize)]
struct SessionCapabilities {
    #[serde(default)]
    compaction: Option<Value>,
    #[serde(default)]
    notices: Option<Value>,
}

#[derive(Default, Deserialize)]
struct Elicitation {
    #[serde(default)]
    form: Option<Value>,
}

/// What the client can do beyond what every client can.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ClientFeatures {
    /// It shows forms.
    pub(super) forms: bool,
    /// It shows notices.
    pub(super) notices: bool,
    /// It shows that a conversation was compacted.
    pub(super) compaction: bool,
}

impl Initialize {
    pub(super) fn features(&self) -> ClientFeatures {
        let capabilities = self.client_capabilities.as_ref();
        let session = capabilities.and_then(|capabilities| capabilities.session.as_ref());
        let elicitation = capabilities.and_then(|capabilities| capabilities.elicitation.as_ref());
        ClientFeatures {
            forms: elicitation.is_some_and(|elicitation| elicitation.form.is_some()),
            notices: session.is_some_and(|session| session.notices.is_some()),
            compaction: session.is_some_and(|session| session.compaction.is_some()),
        }
    }
}

/// The surroundings that a client gives a session.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Surroundings {
    cwd: String,
    #[serde(default)]
    mcp_servers: Vec<Value>,
    #[serde(default)]
    additional_directories: Vec<String>,
}

/// Whether tool servers of the client are left out rather than refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientServers {
    Refuse,
    Ignore,
}

impl Surroundings {
    /// Returns the working directory, unless the client wants what an engine elsewhere cannot give.
    pub(super) fn check(self, servers: ClientServers) -> Result<String, RpcError> {
        if servers == ClientServers::Refuse && !self.mcp_servers.is_empty() {
            let message = "`mcpServers`: the agent runs elsewhere and cannot use tool servers of this client; connect \
                           them to the user's engine (`roundhouse connection`), or start `roundhouse acp` with \
                           --ignore-mcp-servers";
            return Err(RpcError::invalid_params(message));
        }
        if !self.additional_directories.is_empty() {
            let message = "`additionalDirectories`: the agent works in its own workspace, not in folders of this client";
            return Err(RpcError::invalid_params(message));
        }
        absolute(self.cwd)
    }
}

/// Checks a working directory.
pub(super) fn absolute(cwd: String) -> Result<String, RpcError> {
    if !Path::new(&cwd).is_absolute() {
        return Err(RpcError::invalid_params("`cwd`: must be an absolute path"));
    }
    Ok(cwd)
}

/// A request about a session.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct OfSession {
    session_id: String,
}

impl OfSession {
    pub(super) fn task(self) -> Result<TaskId, RpcError> {
        task(self.session_id)
    }
}

/// The task that a session is.
pub(super) fn task(session_id: String) -> Result<TaskId, RpcError> {
    TaskId::new(session_id).map_err(|error| RpcError::not_found(format!("`sessionId`: {error}")))
}

#[derive(Deserialize)]
pub(super) struct ListSessions {
    #[serde(default)]
    pub(super) cwd: Option<String>,
    #[serde(default)]
    pub(super) cursor: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Prompt {
    pub(super) session_id: String,
    pub(super) prompt: Vec<ContentBlock>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CancelRequest {
    pub(super) request_id: Value,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SetConfigOption {
    pub(super) session_id: String,
    pub(super) config_id: String,
    pub(super) value: Value,
}

/// A part of a prompt.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum ContentBlock {
    Text {
        text: String,
    },
    #[serde(rename_all = "camelCase")]
    Image {
        data: String,
        mime_type: String,
    },
    #[serde(rename_all = "camelCase")]
    Audio {
        data: String,
        mime_type: String,
    },
    ResourceLink {
        uri: String,
        name: String,
    },
    Resource {
        resource: Resource,
    },
}

/// A file that the client has put into the prompt.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Resource {
    Text {
        uri: String,
        text: String,
    },
    #[serde(rename_all = "camelCase")]
    Blob {
        uri: String,
        blob: String,
        #[serde(default)]
        mime_type: Option<String>,
    },
}
