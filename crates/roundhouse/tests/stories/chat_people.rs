//! The person in the loop, at the terminal: the agent asks, and takes the answer.

use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};
use strict_provider::{Fault, Gate, Refusal, Reply, StrictProvider};
use tokio::io::AsyncWriteExt as _;
use tokio::process::ChildStdin;

use crate::support::http::ask;
use crate::support::{Engine, Fleet, Program, Up, eventually, processes};

/// A fleet whose model answers with `replies`, and its provider.
async fn fleet(replies: impl IntoIterator<Item = Reply>) -> (Fleet, StrictProvider) {
    let provider = StrictProvider::start().await.unwrap();
    provider.enqueue_all(replies);
    (Fleet::new().with_provider(&provider), provider)
}

/// The model writes a file, which needs leave.
fn writes(path: &str) -> Reply {
    Reply::new().tool_use("write_file", json!({"path": path, "content": "hello"}))
}

/// The model asks for a colour.
fn asks() -> Reply {
    let input = json!({"question": "Which colour?\u{1b}[2J", "options": ["red", "green"]});
    Reply::new().tool_use("ask_user", input)
}

/// A person at `roundhouse chat`.
struct Person {
    chat: Program,
    input: ChildStdin,
}

impl Person {
    fn of(fleet: &Fleet) -> Self {
        let arguments = ["chat", "--user", "ada", "--dir", fleet.folder().to_str().unwrap()];
        let (chat, input) = fleet.home.talk(&arguments, &fleet.variables);
        Self { chat, input }
    }

    async fn writes(&mut self, text: &str) {
        self.input.write_all(text.as_bytes()).await.unwrap();
    }

    /// Waits for words, and gives all that was said so far.
    async fn reads(&mut self, words: &str) -> String {
        self.chat.says(words).await.unwrap_or_else(|ended| panic!("no {words:?} but {}", ended.output))
    }

    /// Has no more to write, and gives all that was said.
    async fn leaves(self) -> String {
        drop(self.input);
        self.chat.ended().await.well()
    }
}

/// The results of the tools that the model was told, oldest first.
fn results(provider: &StrictProvider) -> Vec<String> {
    let last = provider.requests().last().unwrap().body.clone();
    let messages = last["messages"].as_array().unwrap().clone();
    let blocks = messages.iter().filter_map(|message| message["content"].as_array()).flatten();
    blocks.filter(|block| block["type"] == "tool_result").map(|block| block["content"].to_string()).collect()
}

async fn grants(engine: &Engine) -> Vec<Value> {
    let grants = ask(engine.request(Method::GET, "/hitl/grants")).await.ok("grants:array");
    grants["grants"].as_array().unwrap().clone()
}

/// Answers what waits in the conversation, from elsewhere.
async fn answers_elsewhere(up: &Up, answer: &str) {
    let engine = up.product().engine("ada").await;
    let body = json!({"task_id": "chat", "answer": answer});
    ask(engine.request(Method::POST, "/hitl/respond").json(&body)).await.ok("status:text request_id:text");
}

#[tokio::test]
async fn leave_is_given_refused_and_given_for_good() {
    let (fleet, provider) = fleet([
        writes("a"),
        Reply::of_text("Wrote the first."),
        writes("b"),
        Reply::of_text("Left the second."),
        writes("c"),
        Reply::of_text("Wrote the third."),
        writes("d"),
        Reply::of_text("Wrote the fourth."),
    ])
    .await;
    let up = fleet.up().await;
    let mut person = Person::of(&fleet);

    person.writes("the first\n").await;
    let asked = person.reads("[y]es / [n]o / [a]lways").await;
    assert!(asked.contains("asks for leave") && asked.contains(r#"Write the new file "a""#), "{asked}");
    assert!(!asked.contains("1."), "its answers have no numbers: {asked}");
    person.writes("well, maybe\n").await;
    person.reads("Please answer `y`").await;
    person.writes("y\n").await;
    person.reads("Wrote the first.").await;

    person.writes("the second\n").await;
    person.reads(r#"Write the new file "b""#).await;
    person.writes("no, that one is mine\n").await;
    person.reads("Left the second.").await;
    assert!(results(&provider)[1].contains("They said: that one is mine"), "{:?}", results(&provider));

    person.writes("the third\n").await;
    person.reads(r#"Write the new file "c""#).await;
    person.writes("a\n").await;
    person.reads("Wrote the third.").await;
    person.writes("the fourth\n").await;
    let said = person.reads("Wrote the fourth.").await;
    assert!(!said.contains(r#"Write the new file "d""#), "{said}");
    assert!(!said.contains("Answered"), "one's own answers are not told again: {said}");
    person.leaves().await;

    let engine = up.product().engine("ada").await;
    let granted = grants(&engine).await;
    assert_eq!((&granted[0]["tool"], &granted[0]["scope"]), (&json!("write_file"), &json!("task")));
    let workspace = fleet.engine_folder(&engine.id).join("workspace");
    let written = ["a", "b", "c", "d"].map(|name| workspace.join(name).exists());
    assert_eq!(written, [true, false, true, true]);
}

#[tokio::test]
async fn piped_lines_are_messages_and_answers_as_they_are_wanted() {
    let (fleet, provider) = fleet([
        asks(),
        Reply::of_text("By number."),
        asks(),
        Reply::of_text("In words."),
        writes("a"),
        Reply::of_text("Written."),
    ])
    .await;
    let up = fleet.up().await;
    let mut person = Person::of(&fleet);
    person.writes("colour\n7\n2\nand again\n\nblue, rather\nwrite\nalways everywhere\n").await;
    let said = person.leaves().await;
    assert!(said.contains("  1. red\n  2. green\n") && said.contains("There is no option 7"), "{said}");
    assert!(said.contains("Please answer the question."), "{said}");
    assert!(said.contains("Which colour?\\u{1b}[2J") && !said.contains('\u{1b}'), "{said}");
    assert!(said.ends_with("Written.\n"), "{said}");
    let told = results(&provider);
    assert!(told[0].contains("green") && told[1].contains("blue, rather"), "{told:?}");
    let engine = up.product().engine("ada").await;
    assert_eq!(grants(&engine).await[0]["scope"], "engine");
}

#[tokio::test]
async fn a_question_without_an_answer_waits_for_the_next_chat() {
    let (fleet, provider) = fleet([asks(), Reply::of_text("Thank you.")]).await;
    let _up = fleet.up().await;
    let mut first = Person::of(&fleet);
    first.writes("colour\n").await;
    let said = first.leaves().await;
    assert!(said.contains("Which colour?") && said.contains("waits for an answer"), "{said}");

    let mut second = Person::of(&fleet);
    let asked = second.reads("in your own words").await;
    assert!(asked.contains("Which colour?") && asked.contains("2. green"), "{asked}");
    second.writes("1\n").await;
    second.reads("Thank you.").await;
    second.leaves().await;
    assert!(results(&provider)[0].contains("red"), "{:?}", results(&provider));
}

#[tokio::test]
async fn what_someone_else_answers_is_told_and_later_input_is_no_answer() {
    let gate = Gate::new();
    let (fleet, provider) =
        fleet([asks(), Reply::of_text("Thank you.").hold(0, &gate), Reply::of_text("Nothing more.")]).await;
    let up = fleet.up().await;
    let mut person = Person::of(&fleet);
    person.writes("colour\n").await;
    person.reads("in your own words").await;
    answers_elsewhere(&up, "red").await;
    person.reads("Someone else has answered: red").await;
    person.writes("what now?\n").await;
    gate.release();
    person.reads("Nothing more.").await;
    person.leaves().await;
    assert!(results(&provider)[0].contains("red"), "{:?}", results(&provider));
    assert!(provider.requests()[2].body["messages"].to_string().contains("what now?"));
}

#[tokio::test]
async fn a_question_that_was_left_is_asked_again() {
    let (fleet, provider) =
        fleet([asks(), Reply::of_text("Thank you."), Reply::of_text("All is well.")]).await;
    let _up = fleet.up().await;
    let mut person = Person::of(&fleet);
    person.writes("colour\n").await;
    person.reads("in your own words").await;
    processes::signal(person.chat.pid(), Signal::INT);
    person.reads("waits for your answer").await;
    person.writes("is all well?\n2\n").await;
    let said = person.reads("All is well.").await;
    assert_eq!(said.matches("The agent asks:").count(), 2, "{said}");
    assert!(said.find("Thank you.") < said.find("All is well."), "{said}");
    person.leaves().await;
    assert!(results(&provider)[0].contains("green"), "{:?}", results(&provider));
}

#[tokio::test]
async fn a_question_outlives_its_engine() {
    let (fleet, provider) = fleet([asks(), Reply::of_text("Thank you.")]).await;
    let up = fleet.up().await;
    let product = up.product();
    let mut person = Person::of(&fleet);
    person.writes("colour\n").await;
    person.reads("in your own words").await;
    processes::signal(fleet.engine_process(), Signal::KILL);
    eventually("the engine has failed", async || (product.status("ada").await == "failed").then_some(()))
        .await;
    product.start("ada").await.ok("status:text url:url");
    person.writes("2\n").await;
    person.reads("Thank you.").await;
    let said = person.leaves().await;
    assert_eq!(said.matches("The agent asks:").count(), 1, "{said}");
    assert!(results(&provider)[0].contains("green"), "{:?}", results(&provider));
}

/// A program that pipes its messages in reads of the exit code how it went.
#[tokio::test]
async fn who_pipes_learns_from_the_exit_code_whether_all_went_well() {
    let (fleet, provider) = fleet([Reply::of_text("One."), Reply::of_text("Two.")]).await;
    let _up = fleet.up().await;
    let folder = fleet.folder();
    let chat = format!("{} chat --user ada --dir {}", env!("CARGO_BIN_EXE_roundhouse"), folder.display());
    let run = async |line: &str| fleet.home.shell(line).ended().await;

    let said =
        run(&format!("printf 'h\\377\\nhello\\n' | {chat}")).await.refused(1, &["This line is not UTF-8"]);
    assert!(said.contains("One."), "the lines after it are sent: {said}");
    assert_eq!(provider.requests().len(), 1);
    run(&format!("printf 'again\\n' | {chat}")).await.well();

    provider.enqueue(Reply::of_fault(Fault::Refuse { refusal: Refusal::Unauthorized }));
    let said = run(&format!("printf 'third\\n' | {chat}")).await.refused(1, &["401"]);
    assert!(!said.contains("InvalidEngineKey"), "{said}");
    provider.take_refusals();

    provider.enqueue(Reply::of_text("Four."));
    run(&format!("printf 'fourth\\n' | {chat} > /dev/full")).await.refused(1, &["No space left on device"]);
}
