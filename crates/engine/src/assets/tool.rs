//! A server's tool as the agent's.

use std::sync::Arc;

use contract::assets::TransportKind;
use futures::future::BoxFuture;
use serde_json::Value;

use super::clients::{Called, ToolCall};
use super::credentials::identity;
use super::{Caller, ToolDefinition};
use crate::fingerprint;
use crate::models::ToolSpec;
use crate::tools::{Invocation, Permission, Tool, ToolError, ToolOutput, ToolStep, leave};

/// See the module.
pub(super) struct ServerTool {
    caller: Caller,
    definition: Arc<ToolDefinition>,
    name: String,
}

impl ServerTool {
    pub(super) fn new(caller: Caller, definition: Arc<ToolDefinition>) -> Self {
        let name = format!("{}{}", name_start(&caller.spec.name), definition.name);
        Self { caller, definition, name }
    }
}

/// What the names of a server's tools begin with.
pub(super) fn name_start(server: &str) -> String {
    format!("{server}__")
}

impl Tool for ServerTool {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: self.name.clone(),
            description: self.definition.description.clone(),
            input_schema: self.definition.input_schema.clone(),
        }
    }

    fn idempotent(&self) -> bool {
        let ToolDefinition { read_only, idempotent, .. } = &*self.definition;
        self.caller.spec.trust_annotations && (*read_only || *idempotent)
    }

    fn permission(&self) -> Permission {
        let reads = self.caller.spec.trust_annotations && self.definition.read_only;
        if reads { Permission::Allow } else { Permission::Ask }
    }

    fn leave_for(&self, input: &Value) -> String {
        let spec = &self.caller.spec;
        let server = match spec.transport_kind() {
            TransportKind::Stdio => format!("the tool server `{}`", spec.name),
            TransportKind::Http => format!("the tool server `{}`, elsewhere", spec.name),
        };
        let input = leave::json(input);
        format!("May I call `{}` of {server}, with this input?\n\n{input}", self.definition.name)
    }

    fn binding(&self) -> Option<String> {
        let ToolDefinition { name, description, input_schema, read_only, idempotent } = &*self.definition;
        let annotations = format!("{read_only} {idempotent}");
        let parts =
            [&identity(&self.caller.spec), name, description, &input_schema.to_string(), &annotations];
        Some(fingerprint::of(&parts.map(String::as_str)))
    }

    fn is_of_server(&self) -> bool {
        true
    }

    fn run(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolStep, ToolError>> {
        Box::pin(async move {
            let Invocation { call_id, task, input, answers } = invocation;
            let failed = |error: &dyn std::fmt::Display| ToolError(error.to_string());
            let access = self.caller.access().map_err(|error| failed(&error))?;
            let call = ToolCall {
                id: call_id,
                tool: &self.definition.name,
                input,
                answer: answers.last().map(|answer| answer.answer.as_str()),
                may_ask: task.is_some(),
                idempotent: self.idempotent(),
            };
            match self.caller.clients().call(&self.caller.spec, access, call).await {
                Ok(Called::Done(text)) => Ok(ToolStep::Done(ToolOutput { text, ..ToolOutput::default() })),
                Ok(Called::Ask(question)) => Ok(ToolStep::Ask(question)),
                Err(error) => Err(failed(&error)),
            }
        })
    }
}
