//! The parameters of the protocol's requests. What could only be meant differently here is refused.

use api::serde_helpers::BoundedInt;
use http_service::http::parse_fields;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::errors;
use crate::http::json_rpc::Fault;

/// The most bytes of a message's id, which the turn keeps.
const MAX_MESSAGE_ID_BYTES: usize = 200;

/// Parses the parameters of a request. Of several tenants nobody is served here, so no request names one.
pub(super) fn parse<T: DeserializeOwned>(mut params: Map<String, Value>) -> Result<T, Fault> {
    if params.remove("tenant").is_some_and(|tenant| tenant != "") {
        return Err(Fault::invalid_params("`tenant`: there are no tenants here"));
    }
    parse_fields(params).map_err(errors::of_api)
}

/// The parameters of `SendMessage` and `SendStreamingMessage`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SendMessage {
    pub(super) message: Message,
    #[serde(default)]
    pub(super) configuration: Configuration,
    /// Nothing here reads it.
    #[serde(default, rename = "metadata")]
    _metadata: Option<Map<String, Value>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Configuration {
    #[serde(default)]
    accepted_output_modes: Vec<String>,
    #[serde(default)]
    task_push_notification_config: Option<Value>,
    /// No task has a history here.
    #[serde(default, rename = "historyLength")]
    _history_length: Option<BoundedInt<0, { i64::MAX }>>,
    #[serde(default)]
    pub(super) return_immediately: bool,
}

/// A message of a client.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Message {
    pub(super) message_id: String,
    #[serde(default)]
    pub(super) context_id: String,
    #[serde(default)]
    pub(super) task_id: String,
    role: String,
    pub(super) parts: Vec<Part>,
    #[serde(default, rename = "metadata")]
    _metadata: Option<Map<String, Value>>,
    #[serde(default, rename = "extensions")]
    _extensions: Vec<String>,
    #[serde(default)]
    reference_task_ids: Vec<String>,
}

/// A part of a message.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Part {
    #[serde(default)]
    pub(super) text: Option<String>,
    #[serde(default)]
    pub(super) raw: Option<String>,
    #[serde(default)]
    pub(super) url: Option<String>,
    #[serde(default)]
    pub(super) data: Option<Value>,
    #[serde(default, rename = "metadata")]
    _metadata: Option<Map<String, Value>>,
    #[serde(default)]
    pub(super) filename: String,
    #[serde(default)]
    pub(super) media_type: String,
}

impl SendMessage {
    /// Refuses what cannot be meant here.
    pub(super) fn check(&self) -> Result<(), Fault> {
        let Self { message, configuration, .. } = self;
        if configuration.task_push_notification_config.as_ref().is_some_and(|config| !config.is_null()) {
            return Err(errors::push_not_supported());
        }
        let is_text = |mode: &String| matches!(mode.as_str(), "text/plain" | "text/*" | "*/*" | "text");
        let modes = &configuration.accepted_output_modes;
        if !modes.is_empty() && !modes.iter().any(is_text) {
            return Err(errors::content_type_not_supported("answers are text/plain"));
        }
        if message.message_id.is_empty() || message.message_id.len() > MAX_MESSAGE_ID_BYTES {
            let message = format!("`message.messageId`: must be 1 to {MAX_MESSAGE_ID_BYTES} bytes");
            return Err(Fault::invalid_params(message));
        }
        if message.role != "ROLE_USER" {
            return Err(Fault::invalid_params("`message.role`: must be `ROLE_USER`"));
        }
        if !message.reference_task_ids.is_empty() {
            let message =
                "`message.referenceTaskIds`: a context has its own history; other tasks are not read";
            return Err(errors::unsupported(message));
        }
        if message.parts.is_empty() {
            return Err(Fault::invalid_params("`message.parts`: must not be empty"));
        }
        Ok(())
    }
}

/// The parameters of the requests about one task.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct OneTask {
    pub(super) id: String,
    #[serde(default, rename = "historyLength")]
    _history_length: Option<BoundedInt<0, { i64::MAX }>>,
    #[serde(default, rename = "metadata")]
    _metadata: Option<Map<String, Value>>,
}

/// The parameters of `ListTasks`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct ListTasks {
    #[serde(default)]
    pub(super) context_id: String,
    #[serde(default)]
    pub(super) page_size: Option<BoundedInt<1, 100>>,
    #[serde(default)]
    pub(super) page_token: String,
    #[serde(default, rename = "historyLength")]
    _history_length: Option<BoundedInt<0, { i64::MAX }>>,
    #[serde(default)]
    pub(super) include_artifacts: bool,
}
