//! The protocol's errors.

use api::ErrorCode;
use http_service::http::ApiError;
use serde_json::json;

use crate::agent::AgentError;
use crate::http::json_rpc::{Fault, INTERNAL_ERROR, INVALID_PARAMS};

/// An error of the protocol, with the reason by which programs recognize it.
fn fault(code: i64, reason: &str, message: impl Into<String>) -> Fault {
    let details = json!([{
        "@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason, "domain": "a2a-protocol.org",
    }]);
    Fault::new(code, message).with_data(details)
}

pub(super) fn task_not_found() -> Fault {
    fault(-32001, "TASK_NOT_FOUND", "there is no such task; its context may have been deleted")
}

pub(super) fn task_not_cancelable() -> Fault {
    fault(-32002, "TASK_NOT_CANCELABLE", "the task has ended")
}

pub(super) fn push_not_supported() -> Fault {
    let message = "push notifications are not supported; follow the task, or use the product's webhook";
    fault(-32003, "PUSH_NOTIFICATION_NOT_SUPPORTED", message)
}

pub(super) fn unsupported(message: impl Into<String>) -> Fault {
    fault(-32004, "UNSUPPORTED_OPERATION", message)
}

pub(super) fn content_type_not_supported(message: impl Into<String>) -> Fault {
    fault(-32005, "CONTENT_TYPE_NOT_SUPPORTED", message)
}

pub(super) fn no_extended_card() -> Fault {
    fault(-32007, "EXTENDED_AGENT_CARD_NOT_CONFIGURED", "there is one agent card only")
}

pub(super) fn version_not_supported(message: &str) -> Fault {
    fault(-32009, "VERSION_NOT_SUPPORTED", message)
}

/// The error of the protocol for one of ours; its reason is our code.
pub(super) fn of_api(error: ApiError) -> Fault {
    let (code, message) = error.into_parts();
    match code {
        ErrorCode::InvalidRequest | ErrorCode::ModelNotPermitted => Fault::new(INVALID_PARAMS, message),
        ErrorCode::TurnNotFound | ErrorCode::TaskNotFound => task_not_found(),
        ErrorCode::TaskBusy => unsupported("another task runs in this context; wait until it has ended"),
        code => fault(INTERNAL_ERROR, &code.to_string(), message),
    }
}

pub(super) fn of_agent(error: AgentError) -> Fault {
    of_api(error.into())
}
