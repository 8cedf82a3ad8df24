//! Reads the model's input from a request in any provider's protocol.

use mock_llm::{CapturedRequest, Wire};
use serde_json::{Map, Value};

/// A message of a conversation, as far as the script needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// A user message; empty if it contains only tool results.
    User(String),
    /// An answer of the model.
    Model,
}

/// A tool that is offered, with the properties of its input.
pub(crate) type ToolDeclaration = (String, Map<String, Value>);

/// Returns the messages as they were sent.
pub(crate) fn conversation(request: &CapturedRequest) -> &Value {
    let member = match request.wire {
        Wire::AnthropicMessages | Wire::OpenAiChat | Wire::Ollama => "messages",
        Wire::OpenAiResponses => "input",
        Wire::Gemini => "contents",
    };
    request.body.get(member).unwrap_or(&Value::Null)
}

/// Returns the messages in order. One model answer counts once, however many items it is sent as.
pub(crate) fn messages(request: &CapturedRequest) -> Vec<Message> {
    let mut turns = Vec::new();
    for item in as_slice(conversation(request)) {
        let turn = match role(item) {
            Role::User => Message::User(user_text(item)),
            Role::Model => Message::Model,
            Role::System => continue,
        };
        if turn != Message::Model || turns.last() != Some(&turn) {
            turns.push(turn);
        }
    }
    turns
}

/// Whether the request asks for visible thinking.
pub(crate) fn wants_visible_thinking(request: &CapturedRequest) -> bool {
    let at = |pointer: &str| request.body.pointer(pointer).unwrap_or(&Value::Null);
    match request.wire {
        Wire::AnthropicMessages => at("/thinking/type").as_str().is_some_and(|kind| kind != "disabled"),
        Wire::OpenAiChat => false,
        Wire::OpenAiResponses => at("/reasoning/summary").is_string(),
        Wire::Gemini => at("/generationConfig/thinkingConfig/includeThoughts") == &Value::Bool(true),
        Wire::Ollama => at("/think").is_string() || at("/think") == &Value::Bool(true),
    }
}

/// The tools that a request offers.
pub(crate) fn declared_tools(request: &CapturedRequest) -> Vec<ToolDeclaration> {
    let tools = request.body.get("tools").unwrap_or(&Value::Null);
    let declared = as_slice(tools).iter().flat_map(|tool| match tool.get("functionDeclarations") {
        Some(declarations) => as_slice(declarations),
        None => std::slice::from_ref(tool),
    });
    declared.filter_map(parse_tool).collect()
}

fn parse_tool(tool: &Value) -> Option<ToolDeclaration> {
    let tool = tool.get("function").unwrap_or(tool);
    let schema =
        ["input_schema", "parameters", "parametersJsonSchema"].iter().find_map(|name| tool.get(name));
    let properties = schema.and_then(|schema| schema.get("properties")?.as_object().cloned());
    Some((tool.get("name")?.as_str()?.to_owned(), properties.unwrap_or_default()))
}

/// The role of an item of a conversation.
enum Role {
    User,
    Model,
    /// The system prompt.
    System,
}

fn role(item: &Value) -> Role {
    let text = |name: &str| item.get(name).and_then(Value::as_str);
    match (text("role"), text("type")) {
        (Some("assistant" | "model"), _) | (None, Some("reasoning" | "function_call")) => Role::Model,
        (Some("user" | "tool"), _) | (None, Some("function_call_output")) => Role::User,
        _ => Role::System,
    }
}

/// The user's text in an item, without tool results.
fn user_text(item: &Value) -> String {
    if item.get("role").and_then(Value::as_str) != Some("user") {
        return String::new();
    }
    match item.get("content").or_else(|| item.get("parts")) {
        Some(Value::String(text)) => text.clone(),
        Some(parts) => {
            let texts = as_slice(parts).iter().filter_map(|part| part.get("text")?.as_str());
            texts.collect::<Vec<_>>().join("\n")
        }
        None => String::new(),
    }
}

fn as_slice(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn request(wire: Wire, body: Value) -> CapturedRequest {
        let raw = body.to_string().into();
        CapturedRequest {
            wire,
            path: String::new(),
            model: String::new(),
            headers: std::collections::BTreeMap::new(),
            body,
            raw,
        }
    }

    /// A question, an answer with thinking, text and a call, and its result, in each protocol.
    fn requests() -> [CapturedRequest; Wire::COUNT] {
        let schema = json!({"properties": {"path": {}}});
        let function = json!({"name": "look", "parameters": schema});
        let anthropic = json!({
            "thinking": {"type": "enabled"},
            "tools": [{"name": "look", "input_schema": schema}],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "Where?"}]},
                {"role": "assistant", "content": [{"type": "thinking"}, {"type": "text", "text": "I look."}]},
                {"role": "user", "content": [{"type": "tool_result", "content": "Here."}]},
            ],
        });
        let openai = json!({
            "reasoning_effort": "high",
            "tools": [{"type": "function", "function": function}],
            "messages": [
                {"role": "system", "content": "You help."},
                {"role": "user", "content": "Where?"},
                {"role": "assistant", "content": "I look."},
                {"role": "tool", "content": "Here."},
            ],
        });
        let responses = json!({
            "reasoning": {"effort": "high", "summary": "auto"},
            "tools": [{"type": "function", "name": "look", "parameters": schema}],
            "input": [
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Where?"}]},
                {"type": "reasoning"},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
                {"type": "function_call"},
                {"type": "function_call_output", "output": "Here."},
            ],
        });
        let gemini = json!({
            "generationConfig": {"thinkingConfig": {"includeThoughts": true}},
            "tools": [{"functionDeclarations": [{"name": "look", "parametersJsonSchema": schema}]}],
            "contents": [
                {"role": "user", "parts": [{"text": "Where?"}]},
                {"role": "model", "parts": [{"text": "Hm.", "thought": true}, {"functionCall": {}}]},
                {"role": "user", "parts": [{"functionResponse": {"response": {"output": "Here."}}}]},
            ],
        });
        let ollama = json!({
            "think": true,
            "tools": [{"type": "function", "function": function}],
            "messages": [
                {"role": "system", "content": "You help."},
                {"role": "user", "content": "Where?"},
                {"role": "assistant", "content": "I look.", "thinking": "Hm."},
                {"role": "tool", "content": "Here."},
            ],
        });
        [
            request(Wire::AnthropicMessages, anthropic),
            request(Wire::OpenAiChat, openai),
            request(Wire::OpenAiResponses, responses),
            request(Wire::Gemini, gemini),
            request(Wire::Ollama, ollama),
        ]
    }

    #[test]
    fn the_same_is_heard_over_each_wire() {
        let user = |text: &str| Message::User(text.to_owned());
        for request in requests() {
            let wire = request.wire;
            assert_eq!(messages(&request), [user("Where?"), Message::Model, user("")], "{wire:?}");
            let thinking_is_visible = match wire {
                Wire::OpenAiChat => false,
                Wire::AnthropicMessages | Wire::OpenAiResponses | Wire::Gemini | Wire::Ollama => true,
            };
            assert_eq!(wants_visible_thinking(&request), thinking_is_visible, "{wire:?}");
            let [(name, properties)] = &declared_tools(&request)[..] else {
                panic!("{wire:?}: {:?}", declared_tools(&request))
            };
            assert_eq!((name.as_str(), properties.contains_key("path")), ("look", true), "{wire:?}");
            assert!(conversation(&request).is_array(), "{wire:?}");
        }
    }
}
