//! The refusals of OpenAI's API and of AG-UI, as the OpenAPI document describes them: their codes, and what they mean.

pub(in crate::http) const INVALID_FIELD: &str = "`invalid_value`, `unsupported_parameter`, `unknown_parameter`: a field is invalid, or has no meaning here; \
     `invalid_request`: the body is no JSON object";
pub(in crate::http) const INVALID_PARAMETER: &str = "`invalid_request`: a parameter is invalid";
pub(in crate::http) const WRONG_KEY: &str = "`invalid_api_key`: the key is missing or wrong";
pub(in crate::http) const TOKEN: &str = "`token_scope`: browser tokens are not accepted here";
pub(in crate::http) const LATE_BODY: &str = "`request_timeout`: the body did not arrive in time";
pub(in crate::http) const LARGE_BODY: &str = "`payload_too_large`: the body is too large";
pub(in crate::http) const CAP: &str = "`insufficient_quota`: a cap on usage is reached";
pub(in crate::http) const INTERNAL: &str = "`internal_error`: an unexpected failure";
pub(in crate::http) const STOPPING: &str =
    "`shutting_down`, `quiesced`, `overloaded`: the engine is stopping or overloaded";
pub(in crate::http) const UNKNOWN_MODEL: &str = "`model_not_found`: there is no such model";
pub(in crate::http) const UNKNOWN_RESPONSE: &str = "`response_not_found`: there is no such response";
pub(in crate::http) const UNKNOWN_MODEL_OR_RESPONSE: &str =
    "`model_not_found`, `response_not_found`: there is no such model, or no such previous response";
pub(in crate::http) const BUSY_OR_CANCELLED: &str =
    "`task_busy`, `turn_cancelled`: another turn is running on the task, or the turn was cancelled";
pub(in crate::http) const BUSY: &str = "`task_busy`, `response_not_completed`: another turn is running on the task, or the previous response has no \
     answer";
pub(in crate::http) const PROVIDER: &str =
    "`provider_refused`, `provider_auth`, `output_invalid`: the model's provider refuses";
pub(in crate::http) const UNFINISHED: &str = "`shutting_down`, `quiesced`, `overloaded`, `provider_unavailable`, `provider_not_configured`: the engine or the \
     provider is stopping or overloaded; `turn_unfinished`: the turn goes on";
pub(in crate::http) const CANCEL_UNFINISHED: &str =
    "`shutting_down`, `turn_unfinished`: the engine is stopping, or the turn has not ended yet";
pub(in crate::http) const PART_OF_CONVERSATION: &str =
    "`task_busy`, `response_in_conversation`: it is running, or part of a conversation";
pub(in crate::http) const UNKNOWN_INTERRUPT: &str =
    "`interrupt_not_found`, `model_not_found`: there is no such interrupt or model";
pub(in crate::http) const BUSY_THREAD: &str = "`task_busy`: another turn is running on the thread";
