//! Rules, captures, steps and failures of scripts, and the built-in script.

use futures::StreamExt as _;
use pretty_assertions::assert_eq;
use serde_json::json;

use super::*;
use crate::ToolReply;

fn script(text: &str) -> Script {
    Script::parse(text).unwrap()
}

fn user(text: &str) -> Message {
    Message::user(text)
}

/// All events of the answer to `messages`.
async fn collect_events(script: Script, messages: &[Message]) -> Vec<Result<StreamEvent, ModelError>> {
    let request = Request {
        system: "s",
        messages,
        tools: &[],
        thinking: false,
        effort: None,
        max_output: None,
        allow_tool_calls: true,
        output: None,
        cache_key: "t",
    };
    ScriptedModel::new("scripted".into(), script).stream(&request).collect().await
}

/// The complete answer.
async fn answer(script: Script, messages: &[Message]) -> Answer {
    match collect_events(script, messages).await.pop() {
        Some(Ok(StreamEvent::Done(answer))) => answer,
        other => panic!("{other:?}"),
    }
}

/// Continues the conversation with the answer's calls, each of which has this result.
fn push_tool_results(messages: &mut Vec<Message>, answer: &Answer, result: &str) {
    messages.push(Message::Assistant { model: "scripted".into(), blocks: answer.blocks.clone() });
    let reply = |call: &ToolUse| ToolReply {
        provider_id: call.provider_id.clone(),
        remarks: Vec::new(),
        text: result.into(),
        is_error: false,
    };
    let replies: Vec<_> = answer.calls().map(reply).collect();
    if !replies.is_empty() {
        messages.push(Message::Results(replies));
    }
}

const RULES: &str = r#"
rules:
  - when: '(?i)^say (?<what>.+)$'
    answers: [{text: "I say $what, ${what}!"}]
  - when: 'loop'
    answers:
      - tools: [{tool: look, input: {path: "$0", deep: {path: "$0"}, n: 1}}]
      - text: "It gave {{result}}."
  - when: 'fail (?<kind>\w+)'
    answers: [{thinking: "Hm.", text: "half an", error: broken}]
  - when: '^first'
    answers: [{text: "one"}]
  - when: 'first'
    answers: [{text: "two"}]
"#;

#[tokio::test]
async fn the_first_rule_that_matches_answers_with_its_captures() {
    for (prompt, expected) in [
        ("Say hello", "I say hello, hello!"),
        ("first", "one"),
        ("at first", "two"),
        ("nothing of it", "No rule of the script matches this message."),
    ] {
        assert_eq!(answer(script(RULES), &[user("say other"), user(prompt)]).await.text(), expected);
    }
}

#[tokio::test]
async fn each_next_answer_is_to_the_results_of_the_one_before() {
    let mut messages = vec![user("say hello"), user("loop")];
    let first = answer(script(RULES), &messages).await;
    let call = first.calls().next().unwrap();
    assert_eq!(
        (call.name.as_str(), &call.input),
        ("look", &json!({"path": "loop", "deep": {"path": "$0"}, "n": 1}))
    );
    push_tool_results(&mut messages, &first, "42");
    let second = answer(script(RULES), &messages).await;
    assert_eq!(second.text(), "It gave 42.");
    // The last answer repeats, and a new message begins at the first one.
    push_tool_results(&mut messages, &second, "");
    assert_eq!(answer(script(RULES), &messages).await.text(), "It gave 42.");
    messages.push(user("loop"));
    assert!(answer(script(RULES), &messages).await.calls().next().is_some());
}

#[tokio::test]
async fn an_answer_streams_as_a_models_does() {
    let text = "rules: [{answers: [{thinking: 'a b', text: 'c d', tools: [{tool: t}]}]}]";
    let parts = collect_events(script(text), &[user("hi")]).await;
    let events: Vec<String> = parts
        .iter()
        .map(|part| match part.as_ref().unwrap() {
            StreamEvent::Done(_) => "done".into(),
            other => format!("{other:?}"),
        })
        .collect();
    let expected = [
        "BlockStart(Thinking)",
        "Delta(\"a \")",
        "Delta(\"b\")",
        "BlockStop",
        "BlockStart(Text)",
        "Delta(\"c \")",
        "Delta(\"d\")",
        "BlockStop",
        "BlockStart(ToolUse)",
        "BlockStop",
        "done",
    ];
    assert_eq!(events, expected);
    let Some(Ok(StreamEvent::Done(answer))) = parts.last() else { panic!() };
    assert!(answer.usage.input > 0 && answer.usage.output > 0);
}

#[tokio::test]
async fn media_cost_tokens_and_do_not_change_what_was_said() {
    let image = Content::Media(crate::Media {
        kind: MediaKind::Image,
        media_type: "image/png".into(),
        name: None,
        hash: "00".into(),
        tokens: None,
        text: None,
        data: None,
    });
    let bare = answer(script(RULES), &[user("say hello")]).await;
    let content = vec![Content::Text { text: "say hello".into() }, image];
    let with_image = answer(script(RULES), &[Message::User { content }]).await;
    assert_eq!(with_image.text(), bare.text());
    assert_eq!(with_image.usage.input, bare.usage.input + 1_500);
}

#[tokio::test]
async fn a_scripted_failure_comes_in_place_of_the_end() {
    for (name, kind) in [
        ("auth", ModelErrorKind::Auth),
        ("refused", ModelErrorKind::Refused),
        ("quota", ModelErrorKind::Quota),
        ("busy", ModelErrorKind::Busy),
        ("broken", ModelErrorKind::Broken),
    ] {
        let text = format!("rules: [{{answers: [{{text: half, error: {name}}}]}}]");
        let events = collect_events(script(&text), &[user("hi")]).await;
        assert_eq!(events[1], Ok(StreamEvent::Delta("half".into())));
        assert_eq!(events.last().unwrap().as_ref().unwrap_err().kind, kind);
    }
}

#[tokio::test(start_paused = true)]
async fn a_delay_comes_before_each_word() {
    let text = "rules: [{answers: [{text: 'one two three', delay_ms: 100}]}]";
    let start = tokio::time::Instant::now();
    collect_events(script(text), &[user("hi")]).await;
    assert_eq!(start.elapsed(), Duration::from_millis(300));
}

#[test]
fn a_faulty_script_is_refused_with_the_place() {
    for (text, expected) in [
        ("rules: [{when: '(', answers: [{text: a}]}]", "rule 1: `when`"),
        ("rules: [{answers: [{text: a}]}, {answers: []}]", "rule 2: `answers`"),
        ("rules: [{answers: [{txet: a}]}]", "txet"),
        ("rules: [{answers: [{error: sometimes}]}]", "sometimes"),
        ("rule: []", "rule"),
        ("[", ""),
    ] {
        let error = Script::parse(text).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
    }
    let error = Script::load(Path::new("/nowhere/script.yaml")).unwrap_err().to_string();
    assert!(error.contains("/nowhere/script.yaml") && error.contains("LLM_SCRIPT_PATH"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn the_built_in_script_shows_what_an_engine_does() {
    for (prompt, tool, input, result, expected) in [
        (
            "remember that my colour is green.",
            "working_memory_set",
            json!({"key": "colour", "value": "green"}),
            "kept",
            "your colour is green",
        ),
        ("Which files are there?", "list_files", json!({"path": "."}), "a.txt", "a.txt"),
        (
            "write notes.txt: buy milk",
            "write_file",
            json!({"path": "notes.txt", "content": "buy milk"}),
            "written",
            "This is the result:\n\nwritten",
        ),
        (
            "ask me something",
            "ask_user",
            json!({"question": "Which colour do you like best?", "options": ["red", "green", "blue"]}),
            "green",
            "You like green.",
        ),
        ("read the file notes.txt", "read_file", json!({"path": "notes.txt"}), "milk", "milk"),
    ] {
        let mut messages = vec![user(prompt)];
        let first = answer(Script::built_in().unwrap(), &messages).await;
        let call = first.calls().next().unwrap();
        assert_eq!((call.name.as_str(), &call.input), (tool, &input), "{prompt}");
        push_tool_results(&mut messages, &first, result);
        let last = answer(Script::built_in().unwrap(), &messages).await;
        assert!(last.text().contains(expected) && last.calls().next().is_none(), "{}", last.text());
    }
    for prompt in ["hello", "", "a\nb", "what is $1 worth? ${x}"] {
        let text = answer(Script::built_in().unwrap(), &[user(prompt)]).await.text();
        assert!(text.contains(&format!("You said: \"{prompt}\"")), "{text}");
    }
}
