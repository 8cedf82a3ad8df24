//! The semantic conventions for generative AI, and those for the Model Context Protocol
//! (<https://opentelemetry.io/docs/specs/semconv/gen-ai/>): names of spans and attributes. They are still in development,
//! so all of them are here.

use opentelemetry::StringValue;
use serde_json::{Value, json};

use crate::content::fit;
use crate::span::{Details, Kind, Span, captures_content};

pub use crate::content::MAX_CONTENT_BYTES;

/// The name that servers of the Model Context Protocol read the parent of a call from, in `_meta`.
pub const MCP_TRACEPARENT: &str = "traceparent";

const OPERATION: &str = "gen_ai.operation.name";
const PROVIDER: &str = "gen_ai.provider.name";
const AGENT: &str = "gen_ai.agent.name";
const REQUEST_MODEL: &str = "gen_ai.request.model";
const REQUEST_MAX_TOKENS: &str = "gen_ai.request.max_tokens";
const OUTPUT_TYPE: &str = "gen_ai.output.type";
const FINISH_REASONS: &str = "gen_ai.response.finish_reasons";
const INPUT_TOKENS: &str = "gen_ai.usage.input_tokens";
const OUTPUT_TOKENS: &str = "gen_ai.usage.output_tokens";
const CACHE_READ_TOKENS: &str = "gen_ai.usage.cache_read.input_tokens";
const CACHE_CREATION_TOKENS: &str = "gen_ai.usage.cache_creation.input_tokens";
const REASONING_TOKENS: &str = "gen_ai.usage.reasoning.output_tokens";
const TOOL_NAME: &str = "gen_ai.tool.name";
const TOOL_CALL_ID: &str = "gen_ai.tool.call.id";
const TOOL_TYPE: &str = "gen_ai.tool.type";
const MCP_METHOD: &str = "mcp.method.name";
const NETWORK_TRANSPORT: &str = "network.transport";

// What is said: only on request.
const SYSTEM_INSTRUCTIONS: &str = "gen_ai.system_instructions";
const INPUT_MESSAGES: &str = "gen_ai.input.messages";
const OUTPUT_MESSAGES: &str = "gen_ai.output.messages";
const TOOL_ARGUMENTS: &str = "gen_ai.tool.call.arguments";
const TOOL_RESULT: &str = "gen_ai.tool.call.result";

/// The name of the agent whose turn it is, in `gen_ai.agent.name`.
pub const MAIN_AGENT: &str = "main";

/// The numbers of tokens of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// All of the prompt.
    pub input: u64,
    /// All that the model wrote.
    pub output: u64,
    /// Those of the prompt that were read from the provider's cache.
    pub cache_read: u64,
    /// Those of the prompt that were written to it.
    pub cache_creation: u64,
    /// Those of the output that the model spent on reasoning.
    pub reasoning: u64,
}

/// A message, in the form of the conventions.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatMessage {
    /// `user`, `assistant` or `tool`.
    pub role: &'static str,
    /// What it consists of.
    pub parts: Vec<Part>,
}

/// A part of a message.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// A text.
    Text(String),
    /// A call of a tool.
    ToolCall {
        /// The id of the call.
        id: String,
        /// The tool.
        name: String,
        /// The input.
        arguments: Value,
    },
    /// The result of a call.
    ToolResponse {
        /// The id of the call.
        id: String,
        /// What the tool returned.
        response: String,
    },
}

/// Begins the span of an agent's work on a message.
pub fn invoke_agent(agent: &str, parent: Option<crate::Parent>) -> Span {
    Span::start_from(parent, Kind::Internal, || agent_details(agent))
}

/// Begins the span of a sub-agent's work, within the current one.
pub fn invoke_sub_agent(agent: &str) -> Span {
    Span::start(Kind::Internal, || agent_details(agent))
}

fn agent_details(agent: &str) -> Details {
    Details::new(format!("invoke_agent {agent}"))
        .with(OPERATION, "invoke_agent")
        .with(AGENT, agent.to_owned())
}

/// Begins the span of a model call.
pub fn chat(provider: &'static str, model: &str, max_tokens: Option<u64>, is_json: bool) -> Span {
    Span::start(Kind::Client, || {
        let details = Details::new(format!("chat {model}"))
            .with(OPERATION, "chat")
            .with(PROVIDER, provider)
            .with(REQUEST_MODEL, model.to_owned())
            .with(OUTPUT_TYPE, if is_json { "json" } else { "text" });
        match max_tokens {
            Some(max_tokens) => details.with(REQUEST_MAX_TOKENS, count(max_tokens)),
            None => details,
        }
    })
}

/// Adds what a model is sent, if content is captured.
pub fn set_input(span: &Span, input: impl FnOnce() -> (String, Vec<ChatMessage>)) {
    if !captures_content() || !span.is_recording() {
        return;
    }
    let (system, messages) = input();
    span.set(SYSTEM_INSTRUCTIONS, || json!([{"type": "text", "content": fit(&system)}]).to_string());
    span.set(INPUT_MESSAGES, || messages_json(messages, None));
}

/// Adds what a model answered, if content is captured.
pub fn set_output(span: &Span, finish_reason: &'static str, output: impl FnOnce() -> ChatMessage) {
    span.set(FINISH_REASONS, || opentelemetry::Value::Array(vec![StringValue::from(finish_reason)].into()));
    if captures_content() {
        span.set(OUTPUT_MESSAGES, || messages_json(vec![output()], Some(finish_reason)));
    }
}

/// Adds the usage of a model call.
pub fn set_tokens(span: &Span, tokens: Tokens) {
    let Tokens { input, output, cache_read, cache_creation, reasoning } = tokens;
    span.set(INPUT_TOKENS, || count(input));
    span.set(OUTPUT_TOKENS, || count(output));
    let others = [
        (CACHE_READ_TOKENS, cache_read),
        (CACHE_CREATION_TOKENS, cache_creation),
        (REASONING_TOKENS, reasoning),
    ];
    for (key, tokens) in others.into_iter().filter(|(_, tokens)| *tokens > 0) {
        span.set(key, || count(tokens));
    }
}

/// Begins the span of a tool call.
pub fn execute_tool(
    tool: &str,
    call_id: impl FnOnce() -> String,
    arguments: impl FnOnce() -> String,
) -> Span {
    Span::start(Kind::Internal, || {
        let details = Details::new(format!("execute_tool {tool}"))
            .with(OPERATION, "execute_tool")
            .with(TOOL_NAME, tool.to_owned())
            .with(TOOL_TYPE, "function")
            .with(TOOL_CALL_ID, call_id());
        if captures_content() {
            details.with(TOOL_ARGUMENTS, fit(&arguments()).into_owned())
        } else {
            details
        }
    })
}

/// Adds what a tool returned, if content is captured.
pub fn set_tool_result(span: &Span, result: &str) {
    if captures_content() {
        span.set(TOOL_RESULT, || fit(result).into_owned());
    }
}

/// Begins the span of a call of an MCP server's tool; `tool` is the server's own name of it.
pub fn mcp_call(server: &str, tool: &str, is_program: bool) -> Span {
    Span::start(Kind::Client, || {
        Details::new(format!("tools/call {tool}"))
            .with(MCP_METHOD, "tools/call")
            .with(OPERATION, "execute_tool")
            .with(TOOL_NAME, tool.to_owned())
            .with(NETWORK_TRANSPORT, if is_program { "pipe" } else { "tcp" })
            .with("roundhouse.mcp.server", server.to_owned())
    })
}

/// The newest messages that fit, as the JSON of the conventions.
fn messages_json(messages: Vec<ChatMessage>, finish_reason: Option<&str>) -> String {
    let (mut kept, mut bytes) = (Vec::new(), 0);
    for message in messages.into_iter().rev() {
        let parts: Vec<Value> = message.parts.into_iter().map(part_json).collect();
        let mut message = json!({"role": message.role, "parts": parts});
        if let (Some(reason), Value::Object(fields)) = (finish_reason, &mut message) {
            fields.insert("finish_reason".to_owned(), reason.into());
        }
        bytes += message.to_string().len();
        if bytes > MAX_CONTENT_BYTES && !kept.is_empty() {
            break;
        }
        kept.push(message);
    }
    kept.reverse();
    Value::Array(kept).to_string()
}

fn part_json(part: Part) -> Value {
    match part {
        Part::Text(text) => json!({"type": "text", "content": fit(&text)}),
        Part::ToolCall { id, name, arguments } => {
            json!({"type": "tool_call", "id": id, "name": name, "arguments": fit(&arguments.to_string())})
        }
        Part::ToolResponse { id, response } => {
            json!({"type": "tool_call_response", "id": id, "response": fit(&response)})
        }
    }
}

fn count(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(text: &str) -> ChatMessage {
        ChatMessage { role: "user", parts: vec![Part::Text(text.to_owned())] }
    }

    #[test]
    fn the_newest_messages_are_kept_and_a_long_one_is_cut() {
        let long = "x".repeat(MAX_CONTENT_BYTES);
        let kept = |messages| serde_json::from_str::<Value>(&messages_json(messages, None)).unwrap();
        let all = kept(vec![says("first"), says("second")]);
        assert_eq!(all[0], json!({"role": "user", "parts": [{"type": "text", "content": "first"}]}));
        assert_eq!(all[1]["parts"][0]["content"], "second");
        let newest = kept(vec![says("first"), says(&long), says("newest")]);
        assert_eq!(newest.as_array().unwrap().len(), 1, "{newest}");
        assert_eq!(newest[0]["parts"][0]["content"], "newest");
        let cut = messages_json(vec![says(&long.repeat(4))], Some("stop"));
        assert!(cut.len() < MAX_CONTENT_BYTES + 200, "{}", cut.len());
        assert_eq!(serde_json::from_str::<Value>(&cut).unwrap()[0]["finish_reason"], "stop");
    }
}
