//! Makes a server's tool a tool of the agent.

use std::sync::Arc;

use api::approvals::ApprovalRisk;
use api::assets::TransportKind;
use catalog::Permission;
use futures::future::BoxFuture;
use llm::ToolSpec;
use serde_json::Value;
use tools::fingerprint;
use tools::{Invocation, Tool, ToolError, ToolStep, approval};
use traces::gen_ai;

use super::clients::{CallOutcome, ToolCall};
use super::credentials::identity;
use super::definition::tool_name_prefix;
use super::{ServerHandle, ToolDefinition};

/// A tool of a connected server.
pub(super) struct ServerTool {
    server: ServerHandle,
    definition: Arc<ToolDefinition>,
    name: String,
}

impl ServerTool {
    pub(super) fn new(server: ServerHandle, definition: Arc<ToolDefinition>) -> Self {
        let name = format!("{}{}", tool_name_prefix(&server.spec.name), definition.name);
        Self { server, definition, name }
    }
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
        self.server.spec.trust_annotations && (*read_only || *idempotent)
    }

    fn permission(&self) -> Permission {
        let is_read_only = self.server.spec.trust_annotations && self.definition.read_only;
        if is_read_only { Permission::Allow } else { Permission::Ask }
    }

    fn approval_prompt(&self, input: &Value) -> String {
        let spec = &self.server.spec;
        let server = match spec.transport_kind() {
            TransportKind::Stdio => format!("the tool server `{}`", spec.name),
            TransportKind::Http if spec.is_of_user() => format!("your own tool server `{}`", spec.name),
            TransportKind::Http => format!("the remote tool server `{}`", spec.name),
        };
        let input = approval::pretty_json(input);
        format!("May I call `{}` of {server}, with this input?\n\n{input}", self.definition.name)
    }

    /// Only a trusted server's word about its tool counts.
    fn risk(&self) -> ApprovalRisk {
        if self.permission() == Permission::Allow { ApprovalRisk::Low } else { ApprovalRisk::High }
    }

    fn binding(&self) -> Option<String> {
        let ToolDefinition { name, description, input_schema, read_only, idempotent } = &*self.definition;
        let annotations = format!("{read_only} {idempotent}");
        let parts =
            [&identity(&self.server.spec), name, description, &input_schema.to_string(), &annotations];
        Some(fingerprint::hash(&parts.map(String::as_str)))
    }

    fn is_mcp_tool(&self) -> bool {
        true
    }

    fn is_of_user_server(&self) -> bool {
        self.server.spec.is_of_user()
    }

    fn run(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolStep, ToolError>> {
        Box::pin(async move {
            let Invocation { call_id, at: _, task, input, answers } = invocation;
            let is_in_turn = task.is_some();
            let failed = |error: &dyn std::fmt::Display| ToolError(error.to_string());
            let access = self.server.request_auth().map_err(|error| failed(&error))?;
            let call = ToolCall {
                id: call_id,
                tool: &self.definition.name,
                input,
                answer: answers.last().map(|answer| answer.answer.as_str()),
                may_elicit: is_in_turn,
                idempotent: self.idempotent(),
            };
            let spec = &self.server.spec;
            let is_program = spec.transport_kind() == TransportKind::Stdio;
            let span = gen_ai::mcp_call(&spec.name, &self.definition.name, is_program);
            let outcome = traces::in_span(&span, self.server.clients().call(spec, access, call)).await;
            match outcome {
                Ok(CallOutcome::Done(result)) => {
                    if result.is_error() {
                        span.fail("tool_error");
                    }
                    let output = result.show(self.server.documents(), is_in_turn).await;
                    if output.is_error && output.media.is_empty() {
                        return Err(ToolError(output.text));
                    }
                    Ok(ToolStep::Done(output))
                }
                Ok(CallOutcome::Ask(question)) => Ok(ToolStep::Ask(question)),
                Err(error) => {
                    span.fail(error.kind());
                    Err(failed(&error))
                }
            }
        })
    }
}
