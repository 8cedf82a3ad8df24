//! What a wire is to the rest of the provider, and the form of an error that all wires share.

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
    /// Its name in records.
    const WIRE: Wire;
    /// The response header that carries the request's id.
    const REQUEST_ID_HEADER: &'static str;
    /// The content type of its streams.
    const STREAM_TYPE: &'static str = "text/event-stream; charset=utf-8";

    /// The model that a request asks for, and whether for a stream. Most wires say both in the body.
    fn target(_uri: &Uri, body: &Value) -> RequestTarget {
        RequestTarget {
            model: body.get("model").and_then(Value::as_str).unwrap_or_default().to_owned(),
            is_streaming: body.get("stream").and_then(Value::as_bool).unwrap_or(false),
        }
    }

    /// Checks the key and the headers that every request needs.
    fn authorize(headers: &HeaderMap, keys: &AcceptedKeys) -> Result<(), ApiError>;

    /// Checks the request against the wire's rules.
    fn check(request: &IncomingRequest, context: &Context<'_>) -> Result<(), ApiError>;

    /// Renders the answer. The number is that of the request, from which ids are made.
    fn answer(request: &IncomingRequest, reply: &Reply, number: u64, settings: &Settings) -> RenderedAnswer;

    /// The request's prompt as the vendor's cache sees it.
    fn prompt(request: &IncomingRequest) -> Prompt;

    /// The last text of the user, for [`Block::Echo`](crate::Block::Echo).
    fn last_user_text(body: &Value) -> String;

    /// A scripted refusal in the vendor's words.
    fn refusal(refusal: &Refusal, model: &str) -> ApiError;

    /// The body of an error response.
    fn error_body(error: &ApiError, request_id: &str) -> Value;

    /// An error as the last events of a stream.
    fn error_event(error: &ApiError, place: &StreamPosition<'_>) -> Bytes;
}

/// A request, read and parsed.
#[derive(Debug)]
pub(crate) struct IncomingRequest {
    pub(crate) uri: Uri,
    pub(crate) target: RequestTarget,
    pub(crate) headers: HeaderMap,
    pub(crate) raw: Bytes,
    pub(crate) body: Value,
}

impl IncomingRequest {
    /// The model it asks for, empty when there is none.
    pub(crate) fn model(&self) -> &str {
        &self.target.model
    }

    /// Whether it asks for a stream.
    pub(crate) fn wants_stream(&self) -> bool {
        self.target.is_streaming
    }
}

/// What a request asks for.
#[derive(Debug)]
pub(crate) struct RequestTarget {
    /// The model, empty when there is none.
    pub(crate) model: String,
    pub(crate) is_streaming: bool,
}

/// Where an error strikes a stream.
#[derive(Debug)]
pub(crate) struct StreamPosition<'a> {
    pub(crate) request: &'a IncomingRequest,
    /// The request's number, from which ids are made.
    pub(crate) number: u64,
    /// The events before the error.
    pub(crate) events: usize,
}

/// What a check may look at besides the request.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) issued: &'a IssuedAnswers,
}

/// A rendered answer, and what of it the client has to bring back.
#[derive(Debug)]
pub(crate) struct RenderedAnswer {
    pub(crate) answer: AnswerBody,
    pub(crate) issued: Option<IssuedAnswer>,
}

/// An answer as it will be sent.
#[derive(Debug)]
pub(crate) enum AnswerBody {
    /// For a request that asked for a stream.
    Stream(Transcript),
    /// For one that did not.
    Complete(Value),
}

/// What the provider accepts beyond the vendors' defaults.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    pub(crate) keys: AcceptedKeys,
    pub(crate) bind_thinking: bool,
    pub(crate) reasoning_content: bool,
    pub(crate) track_cache: bool,
    /// The models that Ollama has, all when none are given.
    pub(crate) ollama_models: Option<Vec<String>>,
}

/// The keys that are accepted.
#[derive(Clone, Debug, Default)]
pub(crate) enum AcceptedKeys {
    /// Any that is not empty.
    #[default]
    Any,
    /// This one.
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

/// An error in a vendor's terms; each wire decides how it looks as a body.
#[derive(Clone, Debug)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) kind: Box<str>,
    pub(crate) message: String,
    /// OpenAI only: the parameter at fault.
    pub(crate) param: Option<Box<str>>,
    /// OpenAI only: a stable code.
    pub(crate) code: Option<&'static str>,
    /// Gemini only: what its clients read the violation and the wait from.
    pub(crate) details: Box<[Value]>,
    pub(crate) headers: BTreeMap<String, String>,
}

impl ApiError {
    /// An error without parameter, code and headers.
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

    /// A 400, the answer to nearly every broken rule on every wire.
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
