//! Human in the loop in the terminal: the agent asks a person, and the person answers in `roundhouse chat`.

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

/// The model writes a file, which needs approval.
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

    /// Waits for `words` and returns all output so far.
    async fn wait_for_output(&mut self, words: &str) -> String {
        self.chat
            .wait_for_output(words)
            .await
            .unwrap_or_else(|ended| panic!("no {words:?} but {}", ended.output))
    }

    /// Closes the input, waits for the end and returns all output.
    async fn close_input(self) -> String {
        drop(self.input);
        self.chat.wait().await.assert_success()
    }
}

/// The tool results that the model was sent, oldest first.
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

/// Answers the pending request of the conversation from another client.
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
    let output = person.wait_for_output("[y]es / [n]o / [a]lways").await;
    assert!(
        output.contains("asks for permission") && output.contains(r#"Write the new file "a""#),
        "{output}"
    );
    assert!(!output.contains("1."), "its options have no numbers: {output}");
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
    let output = person.wait_for_output("Wrote the fourth.").await;
    assert!(!output.contains(r#"Write the new file "d""#), "{output}");
    assert!(!output.contains("Answered"), "the person's own answers are not repeated: {output}");
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
    let output = person.close_input().await;
    assert!(output.contains("  1. red\n  2. green\n") && output.contains("There is no option 7"), "{output}");
    assert!(output.contains("Please answer the question."), "{output}");
    assert!(output.contains("Which colour?\\u{1b}[2J") && !output.contains('\u{1b}'), "{output}");
    assert!(output.ends_with("Written.\n"), "{output}");
    let results = tool_results(&provider);
    assert!(results[0].contains("green") && results[1].contains("blue, rather"), "{results:?}");
    let engine = up.product().engine("ada").await;
    assert_eq!(grants(&engine).await[0]["scope"], "engine");
}

#[tokio::test]
async fn a_question_without_an_answer_waits_for_the_next_chat() {
    let (fleet, provider) = fleet([ask_user_reply(), Reply::from_text("Thank you.")]).await;
    let _up = fleet.start_up().await;
    let mut first = ChatUser::start(&fleet);
    first.write_line("colour\n").await;
    drop(first.input);
    first.chat.wait().await.assert_failure(5, &["Which colour?", "is waiting for an answer"]);

    let mut second = ChatUser::start(&fleet);
    let output = second.wait_for_output("in your own words").await;
    assert!(output.contains("Which colour?") && output.contains("2. green"), "{output}");
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
async fn ctrl_c_at_a_question_cancels_its_turn() {
    let (fleet, provider) = fleet([ask_user_reply(), Reply::from_text("All is well.")]).await;
    let _up = fleet.start_up().await;
    let mut person = ChatUser::start(&fleet);
    person.write_line("colour\n").await;
    person.wait_for_output("in your own words").await;
    processes::signal(person.chat.pid(), Signal::INT);
    person.wait_for_output("The turn was cancelled.").await;
    person.write_line("is all well?\n").await;
    person.wait_for_output("All is well.").await;
    drop(person.input);
    person.chat.wait().await.assert_failure(4, &["The agent asks:"]);
    assert!(provider.requests()[1].body["messages"].to_string().contains("is all well?"));
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
    let output = person.close_input().await;
    assert_eq!(output.matches("The agent asks:").count(), 1, "{output}");
    assert!(tool_results(&provider)[0].contains("green"), "{:?}", tool_results(&provider));
}

/// A program that pipes messages in learns from the exit code whether they succeeded.
#[tokio::test]
async fn who_pipes_learns_from_the_exit_code_whether_all_went_well() {
    let (fleet, provider) = fleet([Reply::from_text("One."), Reply::from_text("Two.")]).await;
    let _up = fleet.start_up().await;
    let folder = fleet.folder();
    let chat = format!("{} chat --user ada --dir {}", env!("CARGO_BIN_EXE_roundhouse"), folder.display());
    let run = async |line: &str| fleet.test_env.run_shell(line).wait().await;

    let output = run(&format!("printf 'h\\377\\nhello\\n' | {chat}"))
        .await
        .assert_failure(1, &["This line is not UTF-8"]);
    assert!(output.contains("One."), "later lines are sent: {output}");
    assert_eq!(provider.requests().len(), 1);
    run(&format!("printf 'again\\n' | {chat}")).await.assert_success();

    provider.enqueue(Reply::from_fault(Fault::Refuse { refusal: Refusal::Unauthorized }));
    let output = run(&format!("printf 'third\\n' | {chat}")).await.assert_failure(3, &["401"]);
    assert!(!output.contains("InvalidEngineKey"), "{output}");
    provider.take_refusals();

    provider.enqueue(Reply::from_text("Four."));
    run(&format!("printf 'fourth\\n' | {chat} > /dev/full"))
        .await
        .assert_failure(1, &["No space left on device"]);
}
