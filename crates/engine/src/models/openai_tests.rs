//! The protocol as its documentation shows it, read in pieces of any size, and what is sent back.

use contract::CallId;
use pretty_assertions::assert_eq;

use super::super::decoding::{answer, error, told};
use super::super::media::tests::{image, pdf, plain};
use super::super::profile::Effort;
use super::super::{ModelErrorKind, StopCause, Tokens, ToolSpec};
use super::*;

/// The body of a request, as it is read.
fn body(dialect: Dialect, profile: &Profile, request: &Request<'_>) -> Value {
    json!(super::body(dialect, profile, request))
}

/// A stream after the vendor's documentation: text, two calls whose arguments come in parts, and the usage in a
/// chunk of its own.
const STREAM: &str = r#"data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1694268190,"model":"gpt-5","system_fingerprint":"fp_4","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"usage":null}

data: {"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"Grüße"},"finish_reason":null}]}

data: {"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":" 🦀\n"},"finish_reason":null}]}

data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"call_DdmO9","type":"function","function":{"name":"get_weather","arguments":""}}]},"finish_reason":null}]}

data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"location\":"}}]},"finish_reason":null}]}

data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"\"Paris\"}"}}]},"finish_reason":null}]}

data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"tool_calls":[{"index":1,"id":"call_ABC","type":"function","function":{"name":"get_time","arguments":""}}]},"finish_reason":null}]}

data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"tool_calls":[{"index":1,"function":{"arguments":"{}"}}]},"finish_reason":null}]}

data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}

data: {"id":"chatcmpl-1","choices":[],"usage":{"prompt_tokens":82,"completion_tokens":17,"total_tokens":99,"prompt_tokens_details":{"cached_tokens":64},"completion_tokens_details":{"reasoning_tokens":9}}}

data: [DONE]

"#;

#[test]
fn a_documented_stream_reads_the_same_however_it_is_cut() {
    let expected = [
        "start Text",
        "delta Grüße",
        "delta  🦀\n",
        "stop",
        "start ToolUse",
        "stop",
        "start ToolUse",
        "stop",
        "text Grüße 🦀\n",
        r#"call call_DdmO9 get_weather {"location":"Paris"} None"#,
        "call call_ABC get_time {} None",
        "Tokens { input: 82, output: 17, cache_read: 64, cache_write: 0, reasoning: 9 }",
    ];
    assert_eq!(told(STREAM, Decoding::default), expected);
}

#[test]
fn a_stream_that_ends_before_its_mark_is_broken_wherever_it_ends() {
    let (before_mark, _) = STREAM.split_once("data: [DONE]").unwrap();
    for (at, _) in before_mark.match_indices("\n\n") {
        let error = error(&STREAM[..at + 2], Decoding::default());
        assert_eq!(error.kind, ModelErrorKind::Broken);
        assert!(error.message.contains("without its end mark"), "{error}");
    }
    let no_reason = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\ndata: [DONE]\n\n";
    assert!(error(no_reason, Decoding::default()).message.contains("without saying why"));
}

#[test]
fn an_answer_that_breaks_off_costs_what_the_provider_had_told() {
    let (before_mark, _) = STREAM.split_once("data: [DONE]").unwrap();
    let expected = Tokens { input: 82, output: 17, cache_read: 64, cache_write: 0, reasoning: 9 };
    assert_eq!(error(before_mark, Decoding::default()).spent, expected);
    // The usage comes last: an answer that breaks off before has told nothing.
    let (before_usage, _) = STREAM.split_once(r#"data: {"id":"chatcmpl-1","choices":[],"usage""#).unwrap();
    assert_eq!(error(before_usage, Decoding::default()).spent, Tokens::default());
}

/// A stream of these deltas, ended for `reason`.
fn stream(deltas: &[Value], reason: &str) -> String {
    let chunk = |delta: &Value| json!({"choices": [{"index": 0, "delta": delta, "finish_reason": null}]});
    let mut chunks: Vec<Value> = deltas.iter().map(chunk).collect();
    chunks.push(json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}));
    let lines: Vec<String> = chunks.iter().map(|chunk| format!("data: {chunk}\n\n")).collect();
    lines.concat() + "data: [DONE]\n\n"
}

fn calls(deltas: &[Value], reason: &str) -> Vec<ToolUse> {
    answer(&stream(deltas, reason), Decoding::default()).calls().cloned().collect()
}

#[test]
fn reasoning_and_refusals_of_compatible_servers_are_shown() {
    let deltas = [
        json!({"reasoning_content": "Hm."}),
        json!({"reasoning_content": "", "content": null, "tool_calls": null}),
        json!({"reasoning_content": null, "content": "So:"}),
        json!({"refusal": " no."}),
    ];
    let expected = [
        "start Thinking",
        "delta Hm.",
        "stop",
        "start Text",
        "delta So:",
        "delta  no.",
        "stop",
        r#"thinking Hm. Some("reasoning_content")"#,
        "text So: no.",
        "Tokens { input: 0, output: 0, cache_read: 0, cache_write: 0, reasoning: 0 }",
    ];
    assert_eq!(told(&stream(&deltas, "stop"), Decoding::default), expected);
}

fn part(index: usize, id: Option<&str>, name: Option<&str>, arguments: &str) -> Value {
    json!({"tool_calls": [{"index": index, "id": id, "function": {"name": name, "arguments": arguments}}]})
}

#[test]
fn ids_and_names_may_be_repeated_and_a_missing_id_is_made_up() {
    let repeated = [part(0, Some("c1"), Some("f"), "{\"a\":"), part(0, Some("c1"), Some("f"), "1}")];
    let [call] = &calls(&repeated, "tool_calls")[..] else { panic!() };
    assert_eq!((call.provider_id.as_str(), call.name.as_str(), &call.input), ("c1", "f", &json!({"a": 1})));
    let without = [part(0, None, Some("f"), "{}"), part(1, Some(""), Some("f"), "{}")];
    let without = calls(&without, "tool_calls");
    assert!(!without[0].provider_id.is_empty() && without[0].provider_id != without[1].provider_id);
}

#[test]
fn only_the_last_call_of_an_answer_that_was_cut_off_is_marked() {
    for arguments in ["{\"a\":1}", "", "{\"a\":"] {
        let deltas = [part(0, Some("c1"), Some("f"), "{}"), part(1, Some("c2"), Some("f"), arguments)];
        let [first, last] = &calls(&deltas, "length")[..] else { panic!() };
        assert!(first.broken.is_none() && last.broken.is_some(), "{arguments}");
    }
    let deltas = [part(0, Some("c1"), Some("f"), "{\"a\":")];
    assert!(calls(&deltas, "tool_calls")[0].broken.as_ref().unwrap().contains("not valid JSON"));
}

#[test]
fn errors_in_the_stream_are_told_apart() {
    for (code, kind) in [
        (json!("insufficient_quota"), ModelErrorKind::Quota),
        (json!("server_error"), ModelErrorKind::Busy),
        (json!(503), ModelErrorKind::Busy),
        (json!(null), ModelErrorKind::Busy),
    ] {
        let data = json!({"error": {"message": "The server is overloaded", "code": code}});
        let error = error(&format!("data: {data}\n\n"), Decoding::default());
        assert_eq!(error.kind, kind);
        assert!(error.message.contains("overloaded"));
    }
    for data in ["{", "[]", r#"{"choices":[{"delta":{"content":7}}]}"#] {
        assert_eq!(error(&format!("data: {data}\n\n"), Decoding::default()).kind, ModelErrorKind::Broken);
    }
}

#[test]
fn what_the_model_said_goes_back_in_this_protocols_form() {
    let call = |id: &str| {
        Block::ToolUse(ToolUse {
            call_id: CallId::new(),
            provider_id: id.into(),
            name: "read_file".into(),
            input: json!({"path": "a"}),
            signature: None,
            broken: None,
        })
    };
    let thinking = Block::Thinking { thinking: "Hm".into(), signature: Some("c2ln".into()) };
    let text = |text: &str| Block::Text { text: text.into(), signature: None };
    let reply = |id: &str, text: &str| ToolReply {
        provider_id: id.into(),
        remarks: Vec::new(),
        text: text.into(),
        is_error: false,
    };
    let messages = [
        Message::user("read it"),
        Message::Assistant {
            model: "m".into(),
            blocks: vec![thinking, text("I "), text("read."), call("c1"), call("c2")],
        },
        Message::Results(vec![reply("c1", "green"), reply("c2", "")]),
        Message::Assistant { model: "m".into(), blocks: vec![call("c3")] },
        Message::Results(vec![reply("c3", "red")]),
        Message::Assistant { model: "m".into(), blocks: vec![text(" \n")] },
        Message::user(" "),
        Message::user("and?"),
    ];
    let call = |id: &str| {
        json!({"id": id, "type": "function",
               "function": {"name": "read_file", "arguments": "{\"path\":\"a\"}"}})
    };
    let expected = json!([
        {"role": "user", "content": "read it"},
        {"role": "assistant", "content": "I read.", "tool_calls": [call("c1"), call("c2")]},
        {"role": "tool", "tool_call_id": "c1", "content": "green"},
        {"role": "tool", "tool_call_id": "c2", "content": "(no output)"},
        {"role": "assistant", "tool_calls": [call("c3")]},
        {"role": "tool", "tool_call_id": "c3", "content": "red"},
        // The answer of nothing but a blank text is gone, as some servers refuse it.
        {"role": "user", "content": "and?"},
    ]);
    assert_eq!(sent(&messages), expected);
}

/// The messages that are sent of these, without the system's.
fn sent(messages: &[Message]) -> Value {
    let request = Request {
        system: "s",
        messages,
        tools: &[],
        thinking: false,
        max_output: None,
        may_call: true,
        cache_key: "t",
    };
    body(Dialect::Own, &Profile::test("m"), &request)["messages"].as_array().unwrap()[1..].into()
}

#[test]
fn what_a_person_attached_is_sent_in_its_order() {
    let text = |text: &str| Content::Text { text: text.into() };
    let content =
        vec![text("look:"), image("a.png"), text(" "), pdf(None), pdf(Some("b.pdf")), plain("c.txt")];
    let file = |name: &str| json!({"type": "file", "file": {"filename": name, "file_data": "data:application/pdf;base64,JVBERg=="}});
    let expected = json!([{"role": "user", "content": [
        {"type": "text", "text": "look:"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,aW1hZ2U="}},
        file("document.pdf"),
        file("b.pdf"),
        {"type": "text", "text": "Document c.txt:\n\nplain text"},
    ]}]);
    assert_eq!(sent(&[Message::User { content }]), expected);
    let one = Message::User { content: vec![text(" "), text("hi")] };
    assert_eq!(sent(&[one]), json!([{"role": "user", "content": "hi"}]));
}

#[test]
fn media_added_to_results_follow_all_of_them() {
    let text = |text: &str| Content::Text { text: text.into() };
    let reply = |id: &str, text: &str, remarks| ToolReply {
        provider_id: id.into(),
        text: text.into(),
        remarks,
        is_error: false,
    };
    let results = Message::Results(vec![
        reply("c1", "green", vec![image("a.png"), text("mind the shade"), plain("c.txt")]),
        reply("c2", "", vec![text("no")]),
        reply("c3", "", vec![pdf(None)]),
    ]);
    let told =
        |id: &str| json!({"type": "text", "text": format!("To the result of the call {id} the user added:")});
    let expected = json!([
        {"role": "tool", "tool_call_id": "c1",
         "content": "green\n\nmind the shade\n\nDocument c.txt:\n\nplain text"},
        {"role": "tool", "tool_call_id": "c2", "content": "no"},
        {"role": "tool", "tool_call_id": "c3", "content": "(no output)"},
        {"role": "user", "content": [
            told("c1"),
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,aW1hZ2U="}},
            told("c3"),
            {"type": "file", "file": {
                "filename": "document.pdf", "file_data": "data:application/pdf;base64,JVBERg==",
            }},
        ]},
    ]);
    assert_eq!(sent(&[results]), expected);
}

#[test]
fn a_whole_request_is_in_the_vendors_form_or_in_that_of_compatible_servers() {
    let tools = [ToolSpec {
        name: "read_file".into(),
        description: "Reads.".into(),
        input_schema: json!({"type": "object"}),
    }
    .into()];
    let messages = [Message::user("hi")];
    let request = Request {
        system: "Be brief.",
        messages: &messages,
        tools: &tools,
        thinking: true,
        max_output: None,
        may_call: false,
        cache_key: "task_1",
    };
    let profile = |thinking| Profile { thinking, ..Profile::test("m") };
    let mut expected = json!({
        "model": "m",
        "stream": true,
        "stream_options": {"include_usage": true},
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}],
        "tools": [{"type": "function", "function": {
            "name": "read_file", "description": "Reads.", "parameters": {"type": "object"},
        }}],
        "tool_choice": "none",
        "reasoning_effort": "medium",
    });
    let effort = profile(Thinking::Effort(Effort::Medium));
    assert_eq!(body(Dialect::Compatible, &effort, &request), expected);
    let own = [("max_completion_tokens", json!(32_000)), ("prompt_cache_key", json!("task_1"))];
    for (field, value) in own {
        insert(&mut expected, field, value);
    }
    assert_eq!(body(Dialect::Own, &effort, &request), expected);
    // Neither tools nor reasoning, and a bound of its own, which is never more than the model's.
    let plain = Request { tools: &[], max_output: Some(900), ..request };
    let plain = |dialect| body(dialect, &profile(Thinking::Off), &plain);
    let fields = |body: &Value| body.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
    let (own, compatible) = (plain(Dialect::Own), plain(Dialect::Compatible));
    assert_eq!(fields(&own), "max_completion_tokens messages model prompt_cache_key stream stream_options");
    assert_eq!(fields(&compatible), "max_tokens messages model stream stream_options");
    assert_eq!((&own["max_completion_tokens"], &compatible["max_tokens"]), (&json!(900), &json!(900)));
    let most = Request { max_output: Some(90_000), ..request };
    assert_eq!(body(Dialect::Compatible, &effort, &most)["max_tokens"], 32_000);
}

#[test]
fn a_long_key_for_the_cache_is_shortened_to_one_of_its_own() {
    assert_eq!(cache_key(&"ü".repeat(64)), "ü".repeat(64));
    let [one, other] = ["a", "b"].map(|end| cache_key(&("x".repeat(64) + end)));
    assert!(one.len() == 64 && other.len() == 64 && one != other, "{one} {other}");
}

#[test]
fn each_constructor_speaks_its_own_dialect() {
    let dialect = |model: &OpenAi| (model.dialect, model.endpoint.url.clone());
    let (base, url) = ("https://h/v1/", "https://h/v1/chat/completions".to_owned());
    assert_eq!(dialect(&OpenAi::new(base, Profile::test("m"), None)), (Dialect::Own, url.clone()));
    assert_eq!(dialect(&OpenAi::compatible(base, Profile::test("m"), None)), (Dialect::Compatible, url));
}

/// What is sent back of an answer of these deltas: to the model that gave it, and to another.
fn returned(deltas: &[Value]) -> [Value; 2] {
    let blocks = answer(&stream(deltas, "tool_calls"), Decoding::default()).blocks;
    ["m", "other"].map(|author| {
        let said = Message::Assistant { model: author.into(), blocks: blocks.clone() };
        sent(&[said])[0].clone()
    })
}

#[test]
fn reasoning_goes_back_in_the_field_that_it_came_in() {
    let call =
        json!({"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "f", "arguments": "{}"}}]});
    let plain = json!({"role": "assistant", "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
    ]});
    let with = |field: &str, value: Value| {
        let mut message = plain.clone();
        insert(&mut message, field, value);
        message
    };
    let deepseek = [json!({"reasoning_content": "Grüße"}), json!({"reasoning_content": " 🦀"}), call.clone()];
    assert_eq!(returned(&deepseek), [with("reasoning_content", json!("Grüße 🦀")), plain.clone()]);
    // Groq refuses what it streams here, and nobody wants it back.
    assert_eq!(returned(&[json!({"reasoning": "Hm."}), call.clone()]), [plain.clone(), plain.clone()]);
    let text = |text: &str| json!({"type": "reasoning.text", "text": text, "format": "anthropic-claude-v1", "index": 0});
    let signed = json!({"type": "reasoning.text", "signature": "c2ln", "format": null, "index": 0});
    let sealed = json!({"type": "reasoning.encrypted", "data": "ZGF0YQ==", "id": "rs_1", "index": 1});
    let openrouter = [
        json!({"reasoning": "I", "reasoning_details": [text("I")]}),
        json!({"reasoning": " see.", "reasoning_details": [text(" see.")]}),
        json!({"reasoning": null, "reasoning_details": [signed]}),
        json!({"reasoning_details": [sealed]}),
        call,
    ];
    let details = json!([
        {"type": "reasoning.text", "text": "I see.", "signature": "c2ln", "format": "anthropic-claude-v1", "index": 0},
        {"type": "reasoning.encrypted", "data": "ZGF0YQ==", "id": "rs_1", "index": 1},
    ]);
    assert_eq!(returned(&openrouter), [with("reasoning_details", details), plain]);
    let lines = told(&stream(&openrouter, "tool_calls"), Decoding::default);
    assert_eq!(lines[..4], ["start Thinking", "delta I", "delta  see.", "stop"]);
}

#[test]
fn reasoning_that_comes_in_several_fields_is_shown_once() {
    let both = [
        json!({"reasoning": "Hm.", "reasoning_content": "Hm."}),
        json!({"reasoning_details": [{"type": "reasoning.summary", "summary": " So.", "index": 0}]}),
        json!({"content": "Yes."}),
    ];
    let lines = told(&stream(&both, "stop"), Decoding::default);
    assert_eq!(lines[..5], ["start Thinking", "delta Hm.", "delta  So.", "stop", "start Text"]);
}

#[test]
fn geminis_signatures_of_calls_go_back_with_them() {
    let extra = json!({"google": {"thought_signature": "c2ln"}});
    let whole = |id: &str, arguments: &str, extra: Option<&Value>| {
        let mut call = json!({"index": 0, "id": id, "type": "function",
            "function": {"name": "f", "arguments": arguments}});
        if let Some(extra) = extra {
            insert(&mut call, "extra_content", extra.clone());
        }
        json!({"tool_calls": [call]})
    };
    // Calls come whole, in parallel, and all with the same index.
    let deltas = [whole("c1", "{\"a\":1}", Some(&extra)), whole("c2", "{}", None)];
    let call = |id: &str, arguments: &str| {
        json!({"id": id, "type": "function",
        "function": {"name": "f", "arguments": arguments}})
    };
    let (mut signed, first, second) = (call("c1", "{\"a\":1}"), call("c1", "{\"a\":1}"), call("c2", "{}"));
    insert(&mut signed, "extra_content", extra);
    let message = |calls: [Value; 2]| json!({"role": "assistant", "tool_calls": calls});
    assert_eq!(returned(&deltas), [message([signed, second.clone()]), message([first, second])]);
}

#[test]
fn calls_of_servers_without_index_or_id_are_told_apart() {
    let read = |deltas: &[Value]| {
        let calls = calls(deltas, "tool_calls");
        let ids: std::collections::HashSet<&str> =
            calls.iter().map(|call| call.provider_id.as_str()).collect();
        assert_eq!(ids.len(), calls.len());
        calls.iter().map(|call| (call.name.clone(), call.input.to_string())).collect::<Vec<_>>()
    };
    let call = |id: Option<&str>, name: Option<&str>, arguments: Value| json!({"id": id, "function": {"name": name, "arguments": arguments}});
    let expected = |calls: &[(&str, &str)]| {
        calls.iter().map(|(name, input)| ((*name).to_owned(), (*input).to_owned())).collect::<Vec<_>>()
    };
    let whole = [json!({"tool_calls": [
        call(None, Some("f"), json!("{\"a\":1}")),
        call(Some(""), Some("f"), json!({"b": 2})),
        call(Some("c3"), Some("g"), json!("{}")),
    ]})];
    assert_eq!(read(&whole), expected(&[("f", "{\"a\":1}"), ("f", "{\"b\":2}"), ("g", "{}")]));
    let in_parts = [
        json!({"tool_calls": [call(Some("c1"), Some("f"), json!("{\"a\""))]}),
        json!({"tool_calls": [call(None, None, json!(":1}"))]}),
        json!({"tool_calls": [call(Some("c2"), Some("g"), json!("{"))]}),
        json!({"tool_calls": [call(Some("c2"), Some("g"), json!("}"))]}),
    ];
    assert_eq!(read(&in_parts), expected(&[("f", "{\"a\":1}"), ("g", "{}")]));
}

#[test]
fn each_servers_reason_to_stop_is_understood() {
    let hi = [json!({"content": "Hi."})];
    for (reason, stop) in [
        ("stop", StopCause::Done),
        ("tool_calls", StopCause::Done),
        ("eos", StopCause::Done),
        ("length", StopCause::Length),
        ("MAX_TOKENS", StopCause::Length),
        ("model_length", StopCause::Length),
        ("model_context_window_exceeded", StopCause::ContextFull),
        ("content_filter", StopCause::Refusal),
        ("sensitive", StopCause::Refusal),
    ] {
        assert_eq!(answer(&stream(&hi, reason), Decoding::default()).stop, stop, "{reason}");
    }
    for reason in ["insufficient_system_resource", "network_error", "error"] {
        assert_eq!(error(&stream(&hi, reason), Decoding::default()).kind, ModelErrorKind::Busy, "{reason}");
    }
    // sglang's way to say that there is none (<https://github.com/sgl-project/sglang/issues/3912>).
    let ended = stream(&hi, "length");
    let (before, mark) = ended.rsplit_once("data: [DONE]").unwrap();
    let none = json!({"choices": [{"delta": {}, "finish_reason": ""}]});
    let again = format!("{before}data: {none}\n\ndata: [DONE]{mark}");
    assert_eq!(answer(&again, Decoding::default()).stop, StopCause::Length);
    let refusal = [json!({"refusal": "No."})];
    assert_eq!(answer(&stream(&refusal, "stop"), Decoding::default()).stop, StopCause::Refusal);
}

#[test]
fn tokens_are_counted_by_any_servers_names() {
    let counted = |usage: Value| {
        let chunks = [
            json!({"choices": [{"delta": {"content": "Hi."}, "finish_reason": "stop", "usage": null}], "usage": null}),
            json!({"choices": null, "usage": usage}),
        ];
        let lines: Vec<String> = chunks.iter().map(|chunk| format!("data: {chunk}\n\n")).collect();
        answer(&(lines.concat() + "data: [DONE]\n\n"), Decoding::default()).usage
    };
    let tokens = |cache_read, cache_write, reasoning| Tokens {
        input: 9,
        output: 5,
        cache_read,
        cache_write,
        reasoning,
    };
    let usage = |more: Value| {
        let mut usage = json!({"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14});
        more.as_object().unwrap().iter().for_each(|(field, value)| insert(&mut usage, field, value.clone()));
        counted(usage)
    };
    assert_eq!(
        usage(json!({"prompt_tokens_details": null, "completion_tokens_details": null})),
        tokens(0, 0, 0)
    );
    let openrouter = json!({"prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 3, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 2}, "cost": 0.1});
    assert_eq!(usage(openrouter), tokens(4, 3, 2));
    assert_eq!(usage(json!({"prompt_cache_hit_tokens": 6, "prompt_cache_miss_tokens": 3})), tokens(6, 0, 0));
    assert_eq!(usage(json!({"cached_tokens": 7})), tokens(7, 0, 0));
    assert_eq!(counted(json!({"prompt_tokens": null})), Tokens::default());
    let in_choice = json!({"choices": [{"delta": {}, "finish_reason": "stop",
        "usage": {"prompt_tokens": 9, "completion_tokens": 5}}]});
    let stream = format!("data: {in_choice}\n\ndata: [DONE]\n\n");
    assert_eq!(answer(&stream, Decoding::default()).usage, tokens(0, 0, 0));
}
