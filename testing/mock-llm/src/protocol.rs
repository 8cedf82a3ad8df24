//! The interface between the provider and a wire protocol, and the error type that all wires share.

use std::collections::BTreeMap;

use axum::http::{HeaderMap, StatusCode, Uri};
use bytes::Bytes;
use serde_json::Value;

use crate::cache::Prompt;
use crate::captured::Wire;
use crate::fault::Refusal;
use crate::issued::{IssuedAnswer, IssuedAnswers};
use crate::reply::Reply;
use crate::transcript::Transcript;

/// A wire protocol: its rules, its errors and its rendering.
pub(crate) trait Protocol: Send + Sync + 'static {
    /// Its name in captured requests and refusals.
    const WIRE: Wire;
    /// The response header that carries the request's id.
    const REQUEST_ID_HEADER: &'static str;
    /// The content type of its streamed answers.
    const STREAM_TYPE: &'static str = "text/event-stream; charset=utf-8";

    /// Reads the requested model, and whether the answer is to be streamed. Most wires have both in the body.
    fn target(_uri: &Uri, body: &Value) -> RequestTarget {
        RequestTarget {
            model: body.get("model").and_then(Value::as_str).unwrap_or_default().to_owned(),
            is_streaming: body.get("stream").and_then(Value::as_bool).unwrap_or(false),
        }
    }

    /// Checks the API key and the required headers.
    fn authorize(headers: &HeaderMap, keys: &AcceptedKeys) -> Result<(), ApiError>;

    /// Checks the request against the wire's rules.
    fn check(request: &IncomingRequest, context: &Context<'_>) -> Result<(), ApiError>;

    /// Renders the answer. `number` is the request's number, from which ids are derived.
    fn answer(request: &IncomingRequest, reply: &Reply, number: u64, settings: &Settings) -> RenderedAnswer;

    /// Returns the request's prompt as the vendor's cache sees it.
    fn prompt(request: &IncomingRequest) -> Prompt;

    /// Returns the user's last text, for [`Block::Echo`](crate::Block::Echo).
    fn last_user_text(body: &Value) -> String;

    /// Returns a scripted refusal with the vendor's status and message.
    fn refusal(refusal: &Refusal, model: &str) -> ApiError;

    /// Renders the body of an error response.
    fn error_body(error: &ApiError, request_id: &str) -> Value;

    /// Renders an error as the last events of a stream.
    fn error_event(error: &ApiError, position: &StreamPosition<'_>) -> Bytes;
}

/// A received and parsed request.
#[derive(Debug)]
pub(crate) struct IncomingRequest {
    pub(crate) uri: Uri,
    pub(crate) target: RequestTarget,
    pub(crate) headers: HeaderMap,
    pub(crate) raw: Bytes,
    pub(crate) body: Value,
}

impl IncomingRequest {
    /// The requested model, empty if there is none.
    pub(crate) fn model(&self) -> &str {
        &self.target.model
    }

    /// Whether the answer is to be streamed.
    pub(crate) fn wants_stream(&self) -> bool {
        self.target.is_streaming
    }
}

/// The model and the form of answer that a request asks for.
#[derive(Debug)]
pub(crate) struct RequestTarget {
    /// The model, empty if there is none.
    pub(crate) model: String,
    pub(crate) is_streaming: bool,
}

/// The position of an error in a stream.
#[derive(Debug)]
pub(crate) struct StreamPosition<'a> {
    pub(crate) request: &'a IncomingRequest,
    /// The request's number, from which ids are derived.
    pub(crate) number: u64,
    /// The number of events before the error.
    pub(crate) events: usize,
}

/// What a check may use besides the request.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) issued: &'a IssuedAnswers,
}

/// A rendered answer, and its parts that the client must send back unchanged.
#[derive(Debug)]
pub(crate) struct RenderedAnswer {
    pub(crate) answer: AnswerBody,
    pub(crate) issued: Option<IssuedAnswer>,
}

/// The body of an answer.
#[derive(Debug)]
pub(crate) enum AnswerBody {
    /// A stream.
    Stream(Transcript),
    /// A single JSON value.
    Complete(Value),
}

/// The settings of a provider; see [`MockProviderBuilder`](crate::MockProviderBuilder).
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    pub(crate) keys: AcceptedKeys,
    pub(crate) bind_thinking: bool,
    pub(crate) reasoning_content: bool,
    pub(crate) track_cache: bool,
    /// The models that Ollama has. `None` means any model.
    pub(crate) ollama_models: Option<Vec<String>>,
}

/// The accepted API keys.
#[derive(Clone, Debug, Default)]
pub(crate) enum AcceptedKeys {
    /// Any non-empty key.
    #[default]
    Any,
    /// Only this key.
    Only(String),
}

impl AcceptedKeys {
    pub(crate) fn accept(&self, key: &str) -> bool {
        match self {
            Self::Any => !key.is_empty(),
            Self::Only(accepted) => key == accepted,
        }
    }
}

/// An error with the vendor's status and message. Each wire renders it as a body of its own format.
#[derive(Clone, Debug)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) kind: Box<str>,
    pub(crate) message: String,
    /// OpenAI only: the parameter at fault.
    pub(crate) param: Option<Box<str>>,
    /// OpenAI only: a stable code.
    pub(crate) code: Option<&'static str>,
    /// Gemini only: details from which clients read the violation and the retry delay.
    pub(crate) details: Box<[Value]>,
    pub(crate) headers: BTreeMap<String, String>,
}

impl ApiError {
    /// Creates an error without parameter, code and headers.
    pub(crate) fn new(status: StatusCode, kind: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            status,
            kind: kind.into().into_boxed_str(),
            message: message.into(),
            param: None,
            code: None,
            details: Box::default(),
            headers: BTreeMap::new(),
        }
    }

    /// Creates a 400, the answer to nearly every violation on every wire.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    pub(crate) fn with_param(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into().into_boxed_str());
        self
    }

    pub(crate) fn with_code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    pub(crate) fn with_detail(mut self, detail: Value) -> Self {
        let mut details = self.details.into_vec();
        details.push(detail);
        self.details = details.into();
        self
    }

    pub(crate) fn with_header(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.insert(name.to_owned(), value.into());
        self
    }
}
