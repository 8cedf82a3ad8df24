//! The person in the loop, at the terminal: the agent asks, and takes the answer.

use mock_llm::{Fault, Gate, MockProvider, Refusal, Reply};
use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::process::ChildStdin;

use crate::support::http::send;
use crate::support::{Engine, Fleet, Program, RunningUp, eventually, processes};

/// A fleet whose model answers with `replies`, and its provider.
async fn fleet(replies: impl IntoIterator<Item = Reply>) -> (Fleet, MockProvider) {
    let provider = MockProvider::start().await.unwrap();
    provider.enqueue_all(replies);
    (Fleet::new().with_provider(&provider), provider)
}

/// The model writes a file, which needs leave.
fn write_file_reply(path: &str) -> Reply {
    Reply::new().tool_use("write_file", json!({"path": path, "content": "hello"}))
}

/// The model asks for a colour.
fn ask_user_reply() -> Reply {
    let input = json!({"question": "Which colour?\u{1b}[2J", "options": ["red", "green"]});
    Reply::new().tool_use("ask_user", input)
}

/// A person at `roundhouse chat`.
struct ChatUser {
    chat: Program,
    input: ChildStdin,
}

impl ChatUser {
    fn start(fleet: &Fleet) -> Self {
        let arguments = ["chat", "--user", "ada", "--dir", fleet.folder().to_str().unwrap()];
        let (chat, input) = fleet.test_env.run_interactive(&arguments, &fleet.variables);
        Self { chat, input }
    }

    async fn write_line(&mut self, text: &str) {
        self.input.write_all(text.as_bytes()).await.unwrap();
    }

    /// Waits for words, and gives all that was said so far.
    async fn wait_for_output(&mut self, words: &str) -> String {
        self.chat
            .wait_for_output(words)
            .await
            .unwrap_or_else(|ended| panic!("no {words:?} but {}", ended.output))
    }

    /// Has no more to write, and gives all that was said.
    async fn close_input(self) -> String {
        drop(self.input);
        self.chat.wait().await.assert_success()
    }
}

/// The results of the tools that the model was told, oldest first.
fn tool_results(provider: &MockProvider) -> Vec<String> {
    let last = provider.requests().last().unwrap().body.clone();
    let messages = last["messages"].as_array().unwrap().clone();
    let blocks = messages.iter().filter_map(|message| message["content"].as_array()).flatten();
    blocks.filter(|block| block["type"] == "tool_result").map(|block| block["content"].to_string()).collect()
}

async fn grants(engine: &Engine) -> Vec<Value> {
    let grants = send(engine.request(Method::GET, "/hitl/grants")).await.assert_ok("grants:array");
    grants["grants"].as_array().unwrap().clone()
}

/// Answers what waits in the conversation, from elsewhere.
async fn answer_from_elsewhere(up: &RunningUp, answer: &str) {
    let engine = up.product().engine("ada").await;
    let body = json!({"task_id": "chat", "answer": answer});
    send(engine.request(Method::POST, "/hitl/respond").json(&body))
        .await
        .assert_ok("status:text request_id:text");
}

#[tokio::test]
async fn leave_is_given_refused_and_given_for_good() {
    let (fleet, provider) = fleet([
        write_file_reply("a"),
        Reply::from_text("Wrote the first."),
        write_file_reply("b"),
        Reply::from_text("Left the second."),
        write_file_reply("c"),
        Reply::from_text("Wrote the third."),
        write_file_reply("d"),
        Reply::from_text("Wrote the fourth."),
    ])
    .await;
    let up = fleet.start_up().await;
    let mut person = ChatUser::start(&fleet);

    person.write_line("the first\n").await;
    let asked = person.wait_for_output("[y]es / [n]o / [a]lways").await;
    assert!(asked.contains("asks for leave") && asked.contains(r#"Write the new file "a""#), "{asked}");
    assert!(!asked.contains("1."), "its answers have no numbers: {asked}");
    person.write_line("well, maybe\n").await;
    person.wait_for_output("Please answer `y`").await;
    person.write_line("y\n").await;
    person.wait_for_output("Wrote the first.").await;

    person.write_line("the second\n").await;
    person.wait_for_output(r#"Write the new file "b""#).await;
    person.write_line("no, that one is mine\n").await;
    person.wait_for_output("Left the second.").await;
    assert!(
        tool_results(&provider)[1].contains("They said: that one is mine"),
        "{:?}",
        tool_results(&provider)
    );

    person.write_line("the third\n").await;
    person.wait_for_output(r#"Write the new file "c""#).await;
    person.write_line("a\n").await;
    person.wait_for_output("Wrote the third.").await;
    person.write_line("the fourth\n").await;
    let said = person.wait_for_output("Wrote the fourth.").await;
    assert!(!said.contains(r#"Write the new file "d""#), "{said}");
    assert!(!said.contains("Answered"), "one's own answers are not told again: {said}");
    person.close_input().await;

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
        ask_user_reply(),
        Reply::from_text("By number."),
        ask_user_reply(),
        Reply::from_text("In words."),
        write_file_reply("a"),
        Reply::from_text("Written."),
    ])
    .await;
    let up = fleet.start_up().await;
    let mut person = ChatUser::start(&fleet);
    person.write_line("colour\n7\n2\nand again\n\nblue, rather\nwrite\nalways everywhere\n").await;
    let said = person.close_input().await;
    assert!(said.contains("  1. red\n  2. green\n") && said.contains("There is no option 7"), "{said}");
    assert!(said.contains("Please answer the question."), "{said}");
    assert!(said.contains("Which colour?\\u{1b}[2J") && !said.contains('\u{1b}'), "{said}");
    assert!(said.ends_with("Written.\n"), "{said}");
    let told = tool_results(&provider);
    assert!(told[0].contains("green") && told[1].contains("blue, rather"), "{told:?}");
    let engine = up.product().engine("ada").await;
    assert_eq!(grants(&engine).await[0]["scope"], "engine");
}

#[tokio::test]
async fn a_question_without_an_answer_waits_for_the_next_chat() {
    let (fleet, provider) = fleet([ask_user_reply(), Reply::from_text("Thank you.")]).await;
    let _up = fleet.start_up().await;
    let mut first = ChatUser::start(&fleet);
    first.write_line("colour\n").await;
    let said = first.close_input().await;
    assert!(said.contains("Which colour?") && said.contains("waits for an answer"), "{said}");

    let mut second = ChatUser::start(&fleet);
    let asked = second.wait_for_output("in your own words").await;
    assert!(asked.contains("Which colour?") && asked.contains("2. green"), "{asked}");
    second.write_line("1\n").await;
    second.wait_for_output("Thank you.").await;
    second.close_input().await;
    assert!(tool_results(&provider)[0].contains("red"), "{:?}", tool_results(&provider));
}

#[tokio::test]
async fn what_someone_else_answers_is_told_and_later_input_is_no_answer() {
    let gate = Gate::new();
    let (fleet, provider) = fleet([
        ask_user_reply(),
        Reply::from_text("Thank you.").hold(0, &gate),
        Reply::from_text("Nothing more."),
    ])
    .await;
    let up = fleet.start_up().await;
    let mut person = ChatUser::start(&fleet);
    person.write_line("colour\n").await;
    person.wait_for_output("in your own words").await;
    answer_from_elsewhere(&up, "red").await;
    person.wait_for_output("Someone else has answered: red").await;
    person.write_line("what now?\n").await;
    gate.release();
    person.wait_for_output("Nothing more.").await;
    person.close_input().await;
    assert!(tool_results(&provider)[0].contains("red"), "{:?}", tool_results(&provider));
    assert!(provider.requests()[2].body["messages"].to_string().contains("what now?"));
}

#[tokio::test]
async fn a_question_that_was_left_is_asked_again() {
    let (fleet, provider) =
        fleet([ask_user_reply(), Reply::from_text("Thank you."), Reply::from_text("All is well.")]).await;
    let _up = fleet.start_up().await;
    let mut person = ChatUser::start(&fleet);
    person.write_line("colour\n").await;
    person.wait_for_output("in your own words").await;
    processes::signal(person.chat.pid(), Signal::INT);
    person.wait_for_output("waits for your answer").await;
    person.write_line("is all well?\n2\n").await;
    let said = person.wait_for_output("All is well.").await;
    assert_eq!(said.matches("The agent asks:").count(), 2, "{said}");
    assert!(said.find("Thank you.") < said.find("All is well."), "{said}");
    person.close_input().await;
    assert!(tool_results(&provider)[0].contains("green"), "{:?}", tool_results(&provider));
}

#[tokio::test]
async fn a_question_outlives_its_engine() {
    let (fleet, provider) = fleet([ask_user_reply(), Reply::from_text("Thank you.")]).await;
    let up = fleet.start_up().await;
    let product = up.product();
    let mut person = ChatUser::start(&fleet);
    person.write_line("colour\n").await;
    person.wait_for_output("in your own words").await;
    processes::signal(fleet.engine_process(), Signal::KILL);
    eventually("the engine has failed", async || (product.status("ada").await == "failed").then_some(()))
        .await;
    product.start("ada").await.assert_ok("status:text url:url");
    person.write_line("2\n").await;
    person.wait_for_output("Thank you.").await;
    let said = person.close_input().await;
    assert_eq!(said.matches("The agent asks:").count(), 1, "{said}");
    assert!(tool_results(&provider)[0].contains("green"), "{:?}", tool_results(&provider));
}

/// A program that pipes its messages in reads of the exit code how it went.
#[tokio::test]
async fn who_pipes_learns_from_the_exit_code_whether_all_went_well() {
    let (fleet, provider) = fleet([Reply::from_text("One."), Reply::from_text("Two.")]).await;
    let _up = fleet.start_up().await;
    let folder = fleet.folder();
    let chat = format!("{} chat --user ada --dir {}", env!("CARGO_BIN_EXE_roundhouse"), folder.display());
    let run = async |line: &str| fleet.test_env.run_shell(line).wait().await;

    let said = run(&format!("printf 'h\\377\\nhello\\n' | {chat}"))
        .await
        .assert_failure(1, &["This line is not UTF-8"]);
    assert!(said.contains("One."), "the lines after it are sent: {said}");
    assert_eq!(provider.requests().len(), 1);
    run(&format!("printf 'again\\n' | {chat}")).await.assert_success();

    provider.enqueue(Reply::from_fault(Fault::Refuse { refusal: Refusal::Unauthorized }));
    let said = run(&format!("printf 'third\\n' | {chat}")).await.assert_failure(1, &["401"]);
    assert!(!said.contains("InvalidEngineKey"), "{said}");
    provider.take_refusals();

    provider.enqueue(Reply::from_text("Four."));
    run(&format!("printf 'fourth\\n' | {chat} > /dev/full"))
        .await
        .assert_failure(1, &["No space left on device"]);
}
