//! A tool of the catalog that makes an HTTP call.
//!
//! The product wrote its URL, so it may point anywhere, including the product's own network. The model's input
//! reaches the server only in the body or the query: never in the rest of the URL, never in a header.

use std::sync::LazyLock;
use std::time::Duration;

use api::approvals::ApprovalPreview;
use catalog::{HttpCall, Permission};
use fetch::{BodyError, decode, media_type, operator_client, read_large_body};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use llm::ToolSpec;
use reqwest::header::{CONTENT_TYPE, HeaderValue, LOCATION};
use reqwest::{Client, Response, Url};
use resources::memory_budget::MemoryBudget;
use resources::text::first_chars;
use serde_json::Value;

use super::{Invocation, Tool, ToolError, ToolOutput, ToolStep, approval};
use crate::fingerprint;

/// The time limit of a call.
const CALL_TIMEOUT: Duration = Duration::from_mins(1);
/// The maximum number of bytes read of a response.
const MAX_BODY_BYTES: usize = 5 * 1024 * 1024;
/// The maximum length of an error response as shown to the model, in characters.
const MAX_ERROR_BODY_CHARS: usize = 4_096;
/// The maximum length of an input as shown to a person, in characters.
const MAX_SHOWN_INPUT_CHARS: usize = 4_096;

/// Created at first use: an idle engine has neither connections nor TLS roots in memory.
static CLIENT: LazyLock<Result<Client, String>> = LazyLock::new(|| operator_client(|_| true));

/// Sends the call with `input` and returns the text of the response.
pub(super) async fn send(call: &HttpCall, input: &Value, memory: &MemoryBudget) -> Result<String, ToolError> {
    let client = CLIENT.as_ref().map_err(|reason| ToolError(reason.clone()))?;
    let mut headers = call.headers.clone();
    let mut url = call.url.clone();
    let body = if call.sends_query() {
        add_query(&mut url, input);
        None
    } else {
        headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
        Some(input.to_string())
    };
    let mut request = client.request(call.method.clone(), url).headers(headers);
    if let Some(body) = body {
        request = request.body(body);
    }
    let response = request.send().await.map_err(|error| call_failed(&error))?;
    read_response(response, memory).await
}
/// Adds each field as a query parameter: text as it is, a list as one parameter for each of its items, anything
/// else as JSON; null is left out.
fn add_query(url: &mut Url, input: &Value) {
    let Value::Object(fields) = input else { return };
    let given = fields.iter().flat_map(|(name, value)| {
        let values = value.as_array().map_or_else(|| std::slice::from_ref(value), Vec::as_slice);
        values.iter().map(move |value| (name, value))
    });
    let parameters: Vec<(&str, String)> = given
        .filter(|(_, value)| !value.is_null())
        .map(|(name, value)| (name.as_str(), value.as_str().map_or_else(|| value.to_string(), str::to_owned)))
        .collect();
    if !parameters.is_empty() {
        url.query_pairs_mut().extend_pairs(parameters);
    }
}

async fn read_response(response: Response, memory: &MemoryBudget) -> Result<String, ToolError> {
    let status = response.status();
    let text_of = |name| {
        response.headers().get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
    };
    let content_type = text_of(CONTENT_TYPE).unwrap_or_default();
    if let Some(location) = text_of(LOCATION).filter(|_| status.is_redirection()) {
        return Err(ToolError(format!(
            "the server answered {status} and redirects to `{location}`, which is not followed: it leads to \
             another server, or is one redirect too many"
        )));
    }
    let body = read_large_body(response, MAX_BODY_BYTES, memory).await.map_err(|error| match error {
        BodyError::Transport(error) => call_failed(&error),
        // The call has already taken effect; repeating it would do it twice.
        BodyError::NoMemory(_) => ToolError(format!(
            "the server accepted the request and answered {status}; its answer is too large to be read while \
             other work needs the memory. Do not repeat the request unless it changes nothing"
        )),
    })?;
    let text = decode(&body.bytes, &content_type);
    if text.contains('\0') {
        let (size, kind) = (body.bytes.len(), media_type(&content_type));
        return Err(ToolError(format!(
            "the server answered {status} with {size} bytes of `{kind}`, which is not text"
        )));
    }
    if !status.is_success() {
        let shown = first_chars(&text, MAX_ERROR_BODY_CHARS);
        let cut = if shown.len() < text.len() { "\n[cut]" } else { "" };
        return Err(ToolError(format!("the server answered {status}:\n{shown}{cut}")));
    }
    if text.is_empty() {
        return Ok(format!("The server answered {status} without a text."));
    }
    if !body.is_complete {
        return Ok(format!("{text}\n[cut: the answer is longer than {MAX_BODY_BYTES} bytes]"));
    }
    Ok(text)
}

/// Describes a failure without the URL, in which the product may have put a key.
fn call_failed(error: &reqwest::Error) -> ToolError {
    let causes = std::iter::successors(std::error::Error::source(error), |cause| cause.source());
    let reason = causes.last().map_or_else(|| "no answer".to_owned(), ToString::to_string);
    ToolError(format!("the call failed: {reason}"))
}

/// A catalog tool that makes an HTTP call.
pub(super) struct HttpTool {
    spec: ToolSpec,
    permission: Permission,
    idempotent: bool,
    call: HttpCall,
    timeout: Duration,
    memory_budget: MemoryBudget,
}

impl HttpTool {
    /// Creates a tool that makes this call.
    pub(super) fn new(
        spec: ToolSpec,
        permission: Permission,
        idempotent: bool,
        call: HttpCall,
        memory: MemoryBudget,
    ) -> Self {
        Self { spec, permission, idempotent, call, timeout: CALL_TIMEOUT, memory_budget: memory }
    }
}

impl Tool for HttpTool {
    fn spec(&self) -> ToolSpec {
        self.spec.clone()
    }

    fn idempotent(&self) -> bool {
        self.idempotent
    }

    fn permission(&self) -> Permission {
        self.permission
    }

    fn binding(&self) -> Option<String> {
        let ToolSpec { description, input_schema, .. } = &self.spec;
        let HttpCall { method, url, .. } = &self.call;
        Some(fingerprint::hash(&[
            "http",
            description,
            &input_schema.to_string(),
            method.as_str(),
            url.as_str(),
        ]))
    }

    fn approval_prompt(&self, input: &Value) -> String {
        let (method, server) = (&self.call.method, self.call.origin());
        let shown = approval::excerpt(&input.to_string(), "", MAX_SHOWN_INPUT_CHARS);
        format!("Allow `{}` to send this to {server} ({method})?\n{shown}", self.spec.name)
    }

    fn approval_preview(&self, _input: &Value) -> ApprovalPreview {
        ApprovalPreview::Address { method: self.call.method.to_string(), url: self.call.origin() }
    }

    fn run(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolStep, ToolError>> {
        async move {
            let sent =
                tokio::time::timeout(self.timeout, send(&self.call, &invocation.input, &self.memory_budget))
                    .await;
            let late =
                || ToolError(format!("the server did not answer within {} s", self.timeout.as_secs_f32()));
            let text = sent.map_err(|_| late())??;
            Ok(ToolStep::Done(ToolOutput { text, ..ToolOutput::default() }))
        }
        .boxed()
    }
}

#[cfg(test)]
#[path = "../tests/unit/http_tool.rs"]
mod tests;
