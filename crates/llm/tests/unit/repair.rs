//! Any history is repaired to one that all providers accept, and a valid one is not changed.

use api::CallId;
use api::content::MediaKind;
use bytes::Bytes;
use futures::StreamExt as _;
use mock_llm::{MockProvider, Reply};
use pretty_assertions::assert_eq;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use secrecy::SecretString;
use serde_json::json;

use super::super::anthropic::Anthropic;
use super::super::openai::OpenAi;
use super::super::profile::{Effort, ModelProfile, Thinking};
use super::super::responses::OpenAiResponses;
use super::super::{Answer, ChatModel, Media, Request, StreamEvent, ToolSpec};
use super::*;

/// An independent statement of the rules: which messages are allowed, depending on their neighbours.
fn check(messages: &[Message]) -> Result<(), String> {
    let mut ids = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        let violation = |rule: &str| Err(format!("message {at} {rule}: {message:?}"));
        let next = messages.get(at + 1);
        match message {
            Message::User { content } => {
                let has_content =
                    |content: &Content| !matches!(content, Content::Text { text } if text.trim() == "");
                if !content.iter().any(has_content) {
                    return violation("says nothing");
                }
            }
            Message::Results(_) if at == 0 => return violation("is the first"),
            Message::Results(_) => {
                if !matches!(&messages[at - 1], Message::Assistant { blocks, .. } if !ids_of(blocks).is_empty())
                {
                    return violation("answers no calls");
                }
            }
            Message::Assistant { blocks, .. } => {
                let calls = ids_of(blocks);
                let has_content =
                    |block: &Block| matches!(block, Block::Text { text, .. } if text.trim() != "");
                if at == 0 || next.is_none() {
                    return violation("is the first or the last");
                }
                if calls.is_empty() && !blocks.iter().any(has_content) {
                    return violation("says nothing");
                }
                let is_followed = match next {
                    Some(Message::Results(replies)) => {
                        replies.iter().map(|reply| reply.provider_id.clone()).collect::<Vec<_>>() == calls
                    }
                    Some(Message::User { .. }) => calls.is_empty(),
                    _ => false,
                };
                if !is_followed {
                    return violation("is not followed by what must follow");
                }
                ids.extend(calls);
            }
        }
    }
    let call_count = ids.len();
    ids.sort();
    ids.dedup();
    match () {
        () if messages.is_empty() => Err("nothing to answer".into()),
        () if ids.len() < call_count || ids.iter().any(String::is_empty) => Err(format!("ids: {ids:?}")),
        () => Ok(()),
    }
}

fn ids_of(blocks: &[Block]) -> Vec<String> {
    calls(blocks).map(|call| call.provider_id.clone()).collect()
}

fn repaired_messages(messages: &[Message]) -> Vec<Message> {
    repair(messages).map_or_else(|| messages.to_vec(), |repaired| repaired.messages)
}

fn text(text: &str) -> Block {
    Block::Text { text: text.into(), signature: None }
}

fn call_with(call_id: CallId, id: &str) -> Block {
    let (provider_id, name, input) = (id.into(), "look".into(), json!({}));
    Block::ToolUse(ToolUse { call_id, provider_id, name, input, signature: None, broken: None })
}

fn call(id: &str) -> Block {
    call_with(CallId::new(), id)
}

fn answer(blocks: impl IntoIterator<Item = Block>) -> Message {
    Message::Assistant { model: "other".into(), blocks: blocks.into_iter().collect() }
}

fn reply(id: &str, text: &str) -> ToolReply {
    ToolReply { provider_id: id.into(), text: text.into(), remarks: Vec::new(), is_error: false }
}

fn results(replies: &[(&str, &str)]) -> Message {
    Message::Results(replies.iter().map(|(id, text)| reply(id, text)).collect())
}

fn lost_result(id: &str) -> ToolReply {
    ToolReply { is_error: true, ..reply(id, UNKNOWN_OUTCOME_TEXT) }
}

#[test]
fn each_fault_is_mended_in_its_way() {
    let user = || Message::user("hi");
    let thinking = Block::Thinking { thinking: "Hm".into(), signature: Some("c2ln".into()) };
    let (a, b) = (call("a"), call("b"));
    let both = || answer([a.clone(), b.clone()]);
    let cases = [
        (vec![], vec![Message::user(CONTINUE_TEXT)], "no message to answer"),
        (vec![answer([text("x")]), user()], vec![user()], "without a preceding message"),
        (vec![user(), Message::user(" \n")], vec![user()], "is empty"),
        (vec![user(), answer([thinking, text(" ")]), user()], vec![user(), user()], "is empty"),
        (
            vec![user(), answer([text("x")])],
            vec![user(), answer([text("x")]), Message::user(CONTINUE_TEXT)],
            "no message to answer",
        ),
        (
            vec![user(), answer([text("x")]), answer([text("y")]), user()],
            vec![user(), answer([text("x")]), Message::user(CONTINUE_TEXT), answer([text("y")]), user()],
            "follows another answer",
        ),
        (
            vec![user(), both(), results(&[("b", "2")]), user()],
            vec![user(), both(), Message::Results(vec![lost_result("a"), reply("b", "2")]), user()],
            "message 3 of the conversation comes before the result of \"a\"",
        ),
        (
            vec![user(), both()],
            vec![user(), both(), Message::Results(vec![lost_result("a"), lost_result("b")])],
            "result of \"b\"",
        ),
        (
            vec![user(), both(), results(&[("b", "2"), ("a", "1")])],
            vec![user(), both(), results(&[("a", "1"), ("b", "2")])],
            "in another order",
        ),
        (
            vec![user(), both(), results(&[("a", "1")]), Message::user(""), results(&[("b", "2")])],
            vec![user(), both(), results(&[("a", "1"), ("b", "2")])],
            "merged them",
        ),
        (
            vec![user(), both(), results(&[("a", "1"), ("a", "3"), ("c", "4"), ("b", "2")])],
            vec![user(), both(), results(&[("a", "1"), ("b", "2")])],
            "has a result for \"c\", which is not an open call",
        ),
        (vec![results(&[("a", "1")]), user()], vec![user()], "not an open call"),
    ];
    for (messages, expected, note) in cases {
        let repaired = repair(&messages).unwrap();
        assert_eq!(repaired.messages, expected, "{note}");
        assert!(repaired.notes.iter().any(|line| line.contains(note)), "{note}: {:?}", repaired.notes);
    }
}

#[test]
fn a_call_whose_id_is_taken_gets_ours_and_its_reply_with_it() {
    let ids = [CallId::new(), CallId::new()];
    let answer_of = |at: usize| answer([call_with(ids[at], "call_0")]);
    let own_id = ids[1].to_string();
    let messages = [
        Message::user("hi"),
        answer_of(0),
        results(&[("call_0", "1")]),
        answer_of(1),
        results(&[("call_0", "2")]),
    ];
    let mut expected = messages.to_vec();
    expected[3] = answer([call_with(ids[1], &own_id)]);
    expected[4] = results(&[(&own_id, "2")]);
    assert_eq!(repair(&messages), Some(RepairedHistory { messages: expected, notes: Vec::new() }));

    // Twice in one answer, without an id, and even the identical call: each still has its own reply.
    let repeated = answer([
        call_with(ids[0], "x"),
        call_with(ids[0], "x"),
        call_with(ids[0], "x"),
        call_with(ids[1], ""),
    ]);
    let replies = results(&[("x", "1"), ("x", "2"), ("", "4"), ("x", "3")]);
    let sent = repaired_messages(&[Message::user("hi"), repeated, replies]);
    let Message::Results(replies) = &sent[2] else { panic!("{sent:?}") };
    let answered: Vec<_> =
        replies.iter().map(|reply| (reply.provider_id.clone(), reply.text.as_str())).collect();
    let first = ids[0].to_string();
    let expected = [("x".into(), "1"), (first.clone(), "2"), (format!("{first}-2"), "3"), (own_id, "4")];
    assert_eq!(answered, expected);
}

/// Possible contents of a user's message, including none.
fn contents() -> impl Strategy<Value = Vec<Content>> {
    let words = prop::sample::select(vec!["", " \n", "hi", "and?"]);
    let media = prop::sample::select(vec![
        (MediaKind::Image, "image/png"),
        (MediaKind::Image, "image/tiff"),
        (MediaKind::Document, "application/pdf"),
        (MediaKind::Document, "text/plain"),
        (MediaKind::Audio, "audio/wav"),
    ]);
    let data = prop::sample::select(vec![None, Some("bytes"), Some(" ")]);
    let content = prop_oneof![
        4 => words.prop_map(|text| Content::Text { text: text.into() }),
        1 => (media, data).prop_map(|((kind, media_type), data)| Content::Media(Media {
            kind,
            media_type: media_type.into(),
            name: None,
            hash: "00".into(),
            tokens: None,
            text: None,
            data: data.map(|data| Bytes::from_static(data.as_bytes())),
        })),
    ];
    prop::collection::vec(content, 0..3)
}

/// Ids from servers that number their calls anew, some that resemble the engine's, and some invalid ones.
fn id() -> impl Strategy<Value = String> {
    let pool = ["call_0", "call_1", "call_2", "", "a.b:c"].map(str::to_owned);
    prop::sample::select(pool.into_iter().chain(our_ids().map(|id| id.to_string())).collect::<Vec<_>>())
}

/// Few ids, so that they repeat.
fn our_ids() -> [CallId; 3] {
    [0, 1, 2].map(|number| format!("call_0000000000007000800000000000000{number}").parse().unwrap())
}

fn block() -> impl Strategy<Value = Block> {
    let call_id = prop::sample::select(our_ids().to_vec());
    prop_oneof![
        1 => prop::sample::select(vec!["", "\n", "I look."]).prop_map(text),
        1 => any::<bool>().prop_map(|signed| Block::Thinking {
            thinking: "Hm".into(),
            signature: signed.then(|| "c2ln".into()),
        }),
        1 => Just(Block::RedactedThinking { data: "ZGF0YQ==".into() }),
        3 => (call_id, id()).prop_map(|(call_id, id)| call_with(call_id, &id)),
    ]
}

fn some_reply() -> impl Strategy<Value = ToolReply> {
    (id(), prop::sample::select(vec!["", "green"]), contents(), any::<bool>()).prop_map(
        |(provider_id, text, remarks, is_error)| ToolReply {
            provider_id,
            text: text.into(),
            remarks,
            is_error,
        },
    )
}

/// An answer with its results, though perhaps in another order.
fn round() -> impl Strategy<Value = Vec<Message>> {
    let blocks = prop::collection::vec(block(), 1..4);
    (blocks, prop::collection::vec(some_reply(), 4), any::<bool>()).prop_map(
        |(blocks, replies, is_reversed)| {
            let mut replies: Vec<ToolReply> = ids_of(&blocks)
                .into_iter()
                .zip(replies)
                .map(|(provider_id, reply)| ToolReply { provider_id, ..reply })
                .collect();
            if is_reversed {
                replies.reverse();
            }
            vec![answer(blocks), Message::Results(replies)]
        },
    )
}

/// An arbitrary history, parts of which are valid.
fn history() -> impl Strategy<Value = Vec<Message>> {
    let user = || contents().prop_map(|content| vec![Message::User { content }]);
    let part = prop_oneof![
        3 => user(),
        2 => prop::collection::vec(block(), 0..3).prop_map(|blocks| vec![answer(blocks)]),
        2 => prop::collection::vec(some_reply(), 0..3).prop_map(|replies| vec![Message::Results(replies)]),
        4 => round(),
    ];
    prop::collection::vec(part, 0..9).prop_map(|parts| parts.concat())
}

/// A valid history.
fn valid_history() -> impl Strategy<Value = Vec<Message>> {
    let turn = (1..3_usize, prop::collection::vec(0..3_usize, 0..4));
    prop::collection::vec(turn, 1..5).prop_map(|turns| {
        let mut messages = Vec::new();
        for (number, (user_messages, rounds)) in turns.into_iter().enumerate() {
            if number > 0 {
                messages.push(answer([text("So.")]));
            }
            messages.extend(std::iter::repeat_n(Message::user("hi"), user_messages));
            for calls in rounds.into_iter().filter(|calls| *calls > 0) {
                let ids: Vec<String> = (0..calls).map(|at| format!("c{}-{at}", messages.len())).collect();
                messages.push(answer(ids.iter().map(|id| call(id))));
                messages.push(Message::Results(ids.iter().map(|id| reply(id, "")).collect()));
            }
        }
        messages
    })
}

/// Removes the messages that a repair appends to a history that ends too early.
fn without_ending(mut messages: Vec<Message>) -> Vec<Message> {
    let is_closing = match messages.last() {
        Some(Message::Results(replies)) => replies.iter().any(|reply| reply.text == UNKNOWN_OUTCOME_TEXT),
        last => last == Some(&Message::user(CONTINUE_TEXT)),
    };
    if is_closing {
        messages.pop();
    }
    messages
}

/// The messages with all ids replaced.
fn without_ids(messages: &[Message]) -> Vec<Message> {
    let mut messages = messages.to_vec();
    for message in &mut messages {
        match message {
            Message::User { .. } => {}
            Message::Assistant { blocks, .. } => {
                for block in blocks {
                    if let Block::ToolUse(call) = block {
                        call.provider_id.clear();
                    }
                }
            }
            Message::Results(replies) => replies.iter_mut().for_each(|reply| reply.provider_id.clear()),
        }
    }
    messages
}

proptest! {
    #[test]
    fn any_history_becomes_valid_and_is_then_left_alone(messages in history()) {
        let repaired = repair(&messages);
        prop_assert_eq!(repaired.is_none(), check(&messages).is_ok(), "{:?}", check(&messages));
        if let Some(RepairedHistory { messages: sent, notes }) = repaired {
            prop_assert_eq!(check(&sent), Ok(()));
            prop_assert_eq!(repair(&sent), None);
            // Every change other than of an id is noted.
            prop_assert!(!notes.is_empty() || without_ids(&sent) == without_ids(&messages));
        }
    }

    #[test]
    fn a_valid_history_is_left_alone(messages in valid_history()) {
        prop_assert_eq!(check(&messages), Ok(()));
        prop_assert_eq!(repair(&messages), None);
    }

    #[test]
    fn a_history_that_grows_keeps_its_beginning(messages in history()) {
        let complete = repaired_messages(&messages);
        for end in 0..messages.len() {
            let sent = without_ending(repaired_messages(&messages[..end]));
            prop_assert!(complete.starts_with(&sent), "cut at {}: {:?}\n{:?}", end, sent, complete);
        }
    }
}

/// A model of each protocol.
fn models(provider: &MockProvider) -> [Box<dyn ChatModel>; 4] {
    let key = || Some(SecretString::from("sk-1"));
    let base = provider.openai_base_url();
    let profile =
        || ModelProfile { thinking: Thinking::Effort(Effort::High), ..ModelProfile::for_tests("m") };
    [
        Box::new(anthropic("m", provider)),
        Box::new(OpenAi::new(&base, profile(), key())),
        Box::new(OpenAi::compatible(&base, profile(), key())),
        Box::new(responses("m", provider)),
    ]
}

fn anthropic(name: &str, provider: &MockProvider) -> Anthropic {
    Anthropic::new(&provider.base_url(), ModelProfile::for_tests(name), Some(SecretString::from("sk-1")))
}

fn responses(name: &str, provider: &MockProvider) -> OpenAiResponses {
    let profile = ModelProfile { thinking: Thinking::Effort(Effort::High), ..ModelProfile::for_tests(name) };
    OpenAiResponses::new(&provider.openai_base_url(), profile, Some(SecretString::from("sk-1")))
}

async fn ask(model: &dyn ChatModel, messages: &[Message], thinking: bool) -> Answer {
    let input_schema = json!({"type": "object", "properties": {}});
    let tools = [ToolSpec { name: "look".into(), description: "Looks.".into(), input_schema }.into()];
    let request = Request {
        system: "Be brief.",
        messages,
        tools: &tools,
        thinking,
        effort: None,
        max_output: None,
        allow_tool_calls: true,
        output: None,
        cache_key: "t",
    };
    match model.stream(&request).collect::<Vec<_>>().await.pop() {
        Some(Ok(StreamEvent::Done(answer))) => answer,
        other => panic!("{other:?}\n{messages:#?}"),
    }
}

#[tokio::test]
async fn providers_take_what_was_repaired() {
    let provider = MockProvider::start().await.unwrap();
    let mut runner = TestRunner::deterministic();
    for _ in 0..100 {
        let messages = repaired_messages(&history().new_tree(&mut runner).unwrap().current());
        for model in models(&provider) {
            for thinking in [false, true] {
                ask(&*model, &messages, thinking).await;
            }
        }
    }
}

#[tokio::test]
async fn reasoning_survives_a_repair_byte_for_byte() {
    let provider = MockProvider::builder().bind_thinking(true).start().await.unwrap();
    let model = anthropic("m", &provider);
    let mut messages = vec![Message::user("hi")];
    for _ in 0..3 {
        let reasoning = Reply::new().thinking("Grüße \u{1F980}").redacted_thinking().text("\n");
        provider.enqueue(reasoning.tool_use("look", json!({})));
        let answer = ask(&model, &repaired_messages(&messages), true).await;
        let id = ids_of(&answer.blocks).concat();
        messages.push(Message::Assistant { model: "m".into(), blocks: answer.blocks });
        // A fault before each following answer.
        messages.extend([Message::user(" "), results(&[(&id, "green"), ("stray", "red")])]);
    }
    // Two adjacent answers, each with its reasoning.
    for _ in 0..2 {
        provider.enqueue(Reply::new().thinking("So.").text("Done."));
        let answer = ask(&model, &repaired_messages(&messages), true).await;
        messages.push(Message::Assistant { model: "m".into(), blocks: answer.blocks });
    }
    ask(&model, &repaired_messages(&messages), true).await;
    let sent = repaired_messages(&messages);
    let answers = |messages: &[Message]| {
        let blocks = messages.iter().filter_map(|message| match message {
            Message::Assistant { blocks, .. } => Some(blocks.clone()),
            Message::User { .. } | Message::Results(_) => None,
        });
        blocks.collect::<Vec<_>>()
    };
    assert_eq!(answers(&sent), answers(&messages));
    let last = provider.requests().pop().unwrap().body.to_string();
    assert_eq!(last.matches(r#""type":"thinking""#).count(), 5, "{last}");
    assert_eq!(last.matches(r#""type":"redacted_thinking""#).count(), 3, "{last}");

    // In the middle of a turn, the calls are sent to another model, which neither gets the reasoning nor is asked
    // to think.
    messages.truncate(4);
    let model = anthropic("another", &provider);
    ask(&model, &repaired_messages(&messages), true).await;
    let last = provider.requests().pop().unwrap().body.to_string();
    assert!(!last.contains("thinking"), "{last}");
}

#[tokio::test]
async fn sealed_reasoning_goes_back_to_the_model_that_it_is_of() {
    let provider = MockProvider::builder().bind_thinking(true).start().await.unwrap();
    let model = responses("m", &provider);
    let mut messages = vec![Message::user("hi")];
    for _ in 0..3 {
        let reasoning = Reply::new().thinking("Grüße \u{1F980}").text("I look.");
        provider.enqueue(reasoning.tool_use("look", json!({"at": "a"})).tool_use("look", json!({"at": "b"})));
        let answer = ask(&model, &repaired_messages(&messages), true).await;
        let ids = ids_of(&answer.blocks);
        messages.push(Message::Assistant { model: "m".into(), blocks: answer.blocks });
        messages.push(Message::Results(ids.iter().map(|id| reply(id, "green")).collect()));
    }
    ask(&model, &repaired_messages(&messages), true).await;
    let encrypted_count =
        |body: &serde_json::Value| body.to_string().matches("encrypted_content\":\"").count();
    assert_eq!(encrypted_count(&provider.requests().pop().unwrap().body), 3);
    ask(&responses("another", &provider), &repaired_messages(&messages), true).await;
    assert_eq!(encrypted_count(&provider.requests().pop().unwrap().body), 0);
    provider.assert_no_refusals();
}
