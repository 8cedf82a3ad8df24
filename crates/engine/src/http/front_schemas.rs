//! The objects of other protocols, as the OpenAPI document describes them: the members on which a client relies. They
//! may have others, which their protocols define.

use std::borrow::Cow;

use utoipa::openapi::schema::{AdditionalProperties, ArrayBuilder, ObjectBuilder, SchemaType, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

/// What a member is.
#[derive(Clone, Copy)]
enum Kind {
    Text,
    Integer,
    Flag,
    Object,
    /// A list of objects.
    List,
    Any,
}

impl Kind {
    fn schema(self) -> RefOr<Schema> {
        let of = |kind: Type| ObjectBuilder::new().schema_type(kind);
        let object = || of(Type::Object).additional_properties(Some(AdditionalProperties::FreeForm(true)));
        match self {
            Self::Text => of(Type::String).into(),
            Self::Integer => of(Type::Integer).into(),
            Self::Flag => of(Type::Boolean).into(),
            Self::Object => object().into(),
            Self::List => ArrayBuilder::new().items(object()).into(),
            Self::Any => ObjectBuilder::new().schema_type(SchemaType::AnyValue).into(),
        }
    }
}

fn object(text: &str, required: &[(&str, Kind)], optional: &[(&str, Kind)]) -> RefOr<Schema> {
    let mut object = ObjectBuilder::new()
        .schema_type(Type::Object)
        .description(Some(text))
        .additional_properties(Some(AdditionalProperties::FreeForm(true)));
    for (name, kind) in required {
        object = object.property(*name, kind.schema()).required(*name);
    }
    for (name, kind) in optional {
        object = object.property(*name, kind.schema());
    }
    object.into()
}

/// Declares the schema of an object: its name, a text about it, and the members that it must and may have.
macro_rules! foreign_object {
    ($name:ident, $text:literal, [$($required:expr),* $(,)?], [$($optional:expr),* $(,)?]) => {
        #[doc = $text]
        pub(super) enum $name {}

        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                object($text, &[$($required),*], &[$($optional),*])
            }
        }

        impl ToSchema for $name {
            fn name() -> Cow<'static, str> {
                stringify!($name).into()
            }
        }
    };
}

foreign_object!(
    ChatCompletionRequest,
    "A request for a completion, as OpenAI's API defines it. Which fields mean what is in docs/openai-api.md.",
    [("messages", Kind::List)],
    [
        ("model", Kind::Text),
        ("stream", Kind::Flag),
        ("stream_options", Kind::Object),
        ("reasoning_effort", Kind::Text),
        ("response_format", Kind::Object),
        ("max_completion_tokens", Kind::Integer),
        ("metadata", Kind::Object),
        ("roundhouse", Kind::Object),
    ]
);
foreign_object!(
    ChatCompletion,
    "A completion, as OpenAI's API defines it.",
    [
        ("id", Kind::Text),
        ("object", Kind::Text),
        ("created", Kind::Integer),
        ("model", Kind::Text),
        ("choices", Kind::List)
    ],
    [("usage", Kind::Object)]
);
foreign_object!(
    ChatCompletionChunk,
    "A chunk of a completion, as OpenAI's API defines it, or an error in its form. The stream ends with `[DONE]`.",
    [],
    [
        ("id", Kind::Text),
        ("object", Kind::Text),
        ("created", Kind::Integer),
        ("model", Kind::Text),
        ("choices", Kind::List),
        ("usage", Kind::Any),
        ("roundhouse", Kind::Object),
        ("error", Kind::Object),
    ]
);
foreign_object!(
    CreateResponseRequest,
    "A request for a response, as OpenAI's API defines it. Which fields mean what is in docs/openai-api.md.",
    [("input", Kind::Any)],
    [
        ("model", Kind::Text),
        ("conversation", Kind::Any),
        ("previous_response_id", Kind::Text),
        ("instructions", Kind::Text),
        ("stream", Kind::Flag),
        ("background", Kind::Flag),
        ("reasoning", Kind::Object),
        ("text", Kind::Object),
        ("max_output_tokens", Kind::Integer),
        ("metadata", Kind::Object),
        ("roundhouse", Kind::Object),
    ]
);
foreign_object!(
    ResponseObject,
    "A response, as OpenAI's API defines it.",
    [
        ("id", Kind::Text),
        ("object", Kind::Text),
        ("created_at", Kind::Integer),
        ("status", Kind::Text),
        ("model", Kind::Text),
        ("output", Kind::List),
        ("conversation", Kind::Object)
    ],
    [
        ("error", Kind::Any),
        ("incomplete_details", Kind::Any),
        ("metadata", Kind::Object),
        ("usage", Kind::Any)
    ]
);
foreign_object!(
    ResponseEvent,
    "An event of a response, as OpenAI's API defines it.",
    [("type", Kind::Text), ("sequence_number", Kind::Integer)],
    [("response", Kind::Object), ("item", Kind::Object), ("delta", Kind::Text)]
);
foreign_object!(
    DeletedResponse,
    "A response that was deleted.",
    [("id", Kind::Text), ("object", Kind::Text), ("deleted", Kind::Flag)],
    []
);
foreign_object!(
    ModelObject,
    "A model that a request can name.",
    [("id", Kind::Text), ("object", Kind::Text), ("created", Kind::Integer), ("owned_by", Kind::Text)],
    []
);
foreign_object!(
    ModelList,
    "The models that a request can name.",
    [("object", Kind::Text), ("data", Kind::List)],
    []
);
foreign_object!(
    RunAgentInput,
    "The input of a run, as AG-UI defines it. Which fields mean what is in docs/ag-ui.md.",
    [("threadId", Kind::Text), ("runId", Kind::Text), ("messages", Kind::List)],
    [
        ("tools", Kind::List),
        ("context", Kind::List),
        ("state", Kind::Any),
        ("forwardedProps", Kind::Object),
        ("resume", Kind::List),
        ("protocolVersion", Kind::Text),
    ]
);
foreign_object!(
    RunEvent,
    "An event of a run, as AG-UI defines it.",
    [("type", Kind::Text)],
    [
        ("timestamp", Kind::Integer),
        ("threadId", Kind::Text),
        ("runId", Kind::Text),
        ("messageId", Kind::Text),
        ("toolCallId", Kind::Text),
        ("delta", Kind::Any),
        ("snapshot", Kind::Any),
        ("outcome", Kind::Object),
    ]
);
foreign_object!(
    JsonRpcMessage,
    "A message of JSON-RPC 2.0 to the engine: a request, a notification, or the answer to a request of the engine.",
    [("jsonrpc", Kind::Text)],
    [
        ("id", Kind::Any),
        ("method", Kind::Text),
        ("params", Kind::Object),
        ("result", Kind::Object),
        ("error", Kind::Object)
    ]
);
foreign_object!(
    JsonRpcAnswer,
    "A message of JSON-RPC 2.0 of the engine: the answer to a request, with `result` or `error` (`code`, `message`, \
     `data`), or what is sent on the stream before it.",
    [("jsonrpc", Kind::Text)],
    [
        ("id", Kind::Any),
        ("result", Kind::Object),
        ("error", Kind::Object),
        ("method", Kind::Text),
        ("params", Kind::Object)
    ]
);
foreign_object!(
    AgentCard,
    "The card of an agent, as the Agent2Agent protocol defines it.",
    [
        ("name", Kind::Text),
        ("description", Kind::Text),
        ("version", Kind::Text),
        ("supportedInterfaces", Kind::List),
        ("capabilities", Kind::Object),
        ("skills", Kind::List)
    ],
    [("securitySchemes", Kind::Object), ("securityRequirements", Kind::List)]
);
