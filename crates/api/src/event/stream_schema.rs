//! The schema of the event stream for the OpenAPI document: a union of messages that a typed client can narrow by
//! the type of the event.

use std::borrow::Cow;

use utoipa::openapi::schema::{Discriminator, Object, ObjectBuilder, OneOf, SchemaType, Type};
use utoipa::openapi::{Ref, RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::{
    AgentEvent, ApprovalRequest, ApprovalResolved, BlockStart, BlockStop, BusyUpdate, Citations, Compaction,
    Delta, Failure, Heartbeat, HitlRequest, HitlResolved, Lifecycle, ToolCall, ToolHook, ToolResult, Usage,
    UsageCapEvent, WorkingMemoryUpdate, has_id,
};
use crate::text::pascal_case;
use crate::{TaskId, TurnId};

/// A message of an event stream as a client receives it: the values of its `id:`, `event:` and `data:` lines, with
/// the data parsed. It is only a schema; [`SentEvent`](super::SentEvent) is the event itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnEvent {}

type Schemas = Vec<(String, RefOr<Schema>)>;

/// The schema of an event's own data, and the schemas that it refers to.
struct Data {
    kind: &'static str,
    schema: fn() -> RefOr<Schema>,
    schemas: fn(&mut Schemas),
}

const fn data<T: ToSchema>(kind: &'static str) -> Data {
    Data { kind, schema: T::schema, schemas: T::schemas }
}

/// Every type of event with its data.
const EVENTS: [Data; 21] = [
    data::<Lifecycle>("thread_lifecycle"),
    data::<Failure>("error"),
    data::<Delta>("text_delta"),
    data::<Delta>("thinking_delta"),
    data::<BlockStart>("content_block_start"),
    data::<BlockStop>("content_block_stop"),
    data::<ToolCall>("tool_call"),
    data::<ToolResult>("tool_result"),
    data::<ToolHook>("tool_hook"),
    data::<HitlRequest>("hitl_request"),
    data::<HitlResolved>("hitl_resolved"),
    data::<WorkingMemoryUpdate>("working_memory_update"),
    data::<Compaction>("compaction_event"),
    data::<Heartbeat>("heartbeat"),
    data::<Usage>("usage"),
    data::<AgentEvent>("agent_event"),
    data::<BusyUpdate>("busy_update"),
    data::<ApprovalRequest>("approval_request"),
    data::<ApprovalResolved>("approval_resolved"),
    data::<UsageCapEvent>("usage_cap"),
    data::<Citations>("citations"),
];

impl TurnEvent {
    /// Returns the types of all events.
    pub fn kinds() -> impl Iterator<Item = &'static str> {
        EVENTS.iter().map(|event| event.kind)
    }
}

impl PartialSchema for TurnEvent {
    fn schema() -> RefOr<Schema> {
        let mut discriminator = Discriminator::new("event");
        let mut union = OneOf::new();
        union.description = Some(
            "A message of an event stream: the values of its `id:`, `event:` and `data:` lines, with the data parsed."
                .to_owned(),
        );
        for kind in Self::kinds() {
            let message = Ref::from_schema_name(message_name(kind));
            discriminator.mapping.insert(kind.to_owned(), message.ref_location.clone());
            union.items.push(message.into());
        }
        union.discriminator = Some(discriminator);
        Schema::from(union).into()
    }
}

impl ToSchema for TurnEvent {
    fn name() -> Cow<'static, str> {
        "TurnEvent".into()
    }

    fn schemas(schemas: &mut Schemas) {
        schemas.push((TaskId::name().into_owned(), TaskId::schema()));
        schemas.push((TurnId::name().into_owned(), TurnId::schema()));
        for event in &EVENTS {
            (event.schemas)(schemas);
            schemas.push((data_name(event.kind), with_header((event.schema)())));
            schemas.push((message_name(event.kind), message(event.kind)));
        }
    }
}

fn message_name(kind: &str) -> String {
    let name = pascal_case(kind);
    // The data of `compaction_event` and `agent_event` already has the word.
    if name.ends_with("Event") { name } else { name + "Event" }
}

fn data_name(kind: &str) -> String {
    let name = pascal_case(kind);
    name.strip_suffix("Event").unwrap_or(&name).to_owned() + "Data"
}

/// The schema of a message of this type.
fn message(kind: &'static str) -> RefOr<Schema> {
    let name = ObjectBuilder::new().schema_type(Type::String).enum_values(Some([kind]));
    let mut message = ObjectBuilder::new()
        .description(Some(format!("A message of type `{kind}`.")))
        .property("event", name)
        .property("data", Ref::from_schema_name(data_name(kind)))
        .required("event")
        .required("data");
    if has_id(kind) {
        let id = ObjectBuilder::new()
            .schema_type(Type::String)
            .description(Some("The `ts` of the event, for `Last-Event-ID`"));
        message = message.property("id", id).required("id");
    }
    message.into()
}

/// Returns the schema of an event's own data with the fields that every event has.
fn with_header(schema: RefOr<Schema>) -> RefOr<Schema> {
    match schema {
        RefOr::T(Schema::Object(object)) => Schema::Object(add_header(object)).into(),
        RefOr::T(Schema::OneOf(mut union)) => {
            union.items = union.items.into_iter().map(with_header).collect();
            Schema::OneOf(union).into()
        }
        // A test requires the fields of every event.
        other => other,
    }
}

fn add_header(mut object: Object) -> Object {
    object.schema_type = SchemaType::new(Type::Object);
    let ts = ObjectBuilder::new()
        .schema_type(Type::Integer)
        .format(Some(utoipa::openapi::SchemaFormat::KnownFormat(utoipa::openapi::KnownFormat::Int64)))
        .description(Some("The event's time in Unix milliseconds, strictly increasing within the task"));
    let fields: [(&str, RefOr<Schema>); 3] = [
        ("task_id", Ref::from_schema_name(TaskId::name()).into()),
        ("turn_id", Ref::from_schema_name(TurnId::name()).into()),
        ("ts", ts.into()),
    ];
    for (name, schema) in fields {
        object.properties.insert(name.to_owned(), schema);
        if !object.required.iter().any(|required| required == name) {
            object.required.push(name.to_owned());
        }
    }
    object
}
