//! Turns in `roundhouse chat` under a terminal of 40 and of 120 columns: what is seen of them, cancelling them, and
//! engines that go away in the middle.

use mock_llm::{Gate, MockProvider, Reply};
use rustix::process::Signal;
use serde_json::json;

use crate::support::terminal::WIDTHS;
use crate::support::{Fleet, Terminal, processes};

/// A script whose answer takes a second or two.
const SLOW_SCRIPT: &str = "
rules:
  - answers:
      - thinking: I have to think about this for a moment.
        text: >-
          One two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
          seventeen eighteen nineteen twenty and that is all.
        delay_ms: 60
";
/// That answer.
const SLOW_ANSWER: &str = "One two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen \
                           sixteen seventeen eighteen nineteen twenty and that is all.";

async fn fleet(replies: impl IntoIterator<Item = Reply>) -> (Fleet, MockProvider) {
    let provider = MockProvider::start().await.unwrap();
    provider.enqueue_all(replies);
    (Fleet::new().with_provider(&provider), provider)
}

#[tokio::test]
async fn a_killed_engine_is_waited_for_and_exactly_the_rest_follows() {
    let fleet = Fleet::new().with_script(SLOW_SCRIPT);
    let _up = fleet.start_up().await;
    for columns in WIDTHS {
        let mut terminal = Terminal::open_chat(&fleet, columns, &[]).await;
        terminal.enter("count");
        terminal.wait_for("seven eight").await;
        processes::signal(fleet.engine_process(), Signal::KILL);
        terminal.wait_for("reconnecting …").await;
        let text = terminal.wait_for("and that is all.").await;
        assert_eq!(text.matches(SLOW_ANSWER).count(), 1, "{}", terminal.rows().join("\n"));
        assert_eq!(text.matches("One two").count(), 1, "nothing is shown twice: {text}");
        terminal.wait_without("reconnecting …").await;
        terminal.enter("/quit");
        assert!(terminal.wait_for_exit().await.success());
    }
}

#[tokio::test]
async fn ctrl_c_cancels_the_turn_and_twice_leaves() {
    let gate = Gate::new();
    let held = || Reply::from_text("The first half, and the second half.").deltas(4).hold(2, &gate);
    let (fleet, provider) = fleet([]).await;
    let _up = fleet.start_up().await;
    for columns in WIDTHS {
        provider.enqueue_all([held(), Reply::from_text("I am listening."), held()]);
        let mut terminal = Terminal::open_chat(&fleet, columns, &[]).await;
        terminal.enter("tell me");
        terminal.wait_for("The first half").await;
        terminal.wait_for("working … (Ctrl-C cancels)").await;
        terminal.send("\x03");
        let text = terminal.wait_for("The turn was cancelled.").await;
        assert!(!text.contains("second half"), "{text}");
        terminal.enter("are you there?");
        terminal.wait_for("I am listening.").await;
        terminal.enter("tell me more");
        terminal.wait_for_count("The first half", 2).await;
        terminal.send("\x03\x03");
        assert!(terminal.wait_for_exit().await.success());

        let mut idle = Terminal::open_chat_about(&fleet, "idle", columns, &[]).await;
        idle.send("\x03");
        idle.wait_for("Ctrl-C again leaves").await;
        idle.send("\x03");
        assert!(idle.wait_for_exit().await.success());
    }
}

#[tokio::test]
async fn the_terminal_is_as_before_however_the_chat_ends() {
    let (fleet, _provider) = fleet([]).await;
    let _up = fleet.start_up().await;
    let ends = ["/quit", "Ctrl-D", "SIGTERM", "SIGHUP"];
    for (columns, end) in WIDTHS.into_iter().flat_map(|columns| ends.map(|end| (columns, end))) {
        let mut terminal = Terminal::open_chat(&fleet, columns, &[]).await;
        assert!(!terminal.is_cooked());
        terminal.send("\x1b[200~half a pa");
        terminal.wait_for("half a pa").await;
        match end {
            "/quit" => terminal.send("\x1b[201~\x03/quit\r"),
            "Ctrl-D" => terminal.send("\x1b[201~\x03\x04"),
            "SIGTERM" => processes::signal(terminal.pid(), Signal::TERM),
            _ => processes::signal(terminal.pid(), Signal::HUP),
        }
        assert!(terminal.wait_for_exit().await.success(), "{end}");
        assert!(terminal.is_cooked(), "{end}");
        let raw = terminal.raw();
        assert!(
            raw.rfind("\x1b[?2004l") > raw.rfind("\x1b[?2004h"),
            "pasted text is not marked any more: {raw:?}"
        );
        assert!(raw.rfind("\x1b[?25h") > raw.rfind("\x1b[?25l"), "the cursor is visible: {raw:?}");
    }
}

#[tokio::test]
async fn a_conversation_that_is_opened_again_shows_what_was_said_and_the_turn_that_runs() {
    let (fleet, provider) = fleet([]).await;
    let _up = fleet.start_up().await;
    for columns in WIDTHS {
        let gate = Gate::new();
        provider.enqueue_all([
            Reply::from_text("Hello, and welcome."),
            Reply::from_text("The first half, and the second half.").deltas(4).hold(2, &gate),
        ]);
        let mut terminal = Terminal::open_chat(&fleet, columns, &[]).await;
        terminal.enter("good morning");
        terminal.wait_for("Hello, and welcome.").await;
        terminal.enter("tell me");
        terminal.wait_for("The first half").await;
        terminal.send("\x04");
        terminal.wait_for_exit().await;
        assert!(terminal.text().contains("The turn goes on without you"), "{}", terminal.text());

        let mut again = Terminal::open_chat(&fleet, columns, &[]).await;
        let text = again.wait_for("The first half").await;
        assert!(text.contains("> good morning Hello, and welcome. > tell me The first half"), "{text}");
        gate.release();
        let text = again.wait_for("and the second half.").await;
        assert_eq!(text.matches("The first half, and the second half.").count(), 1, "{text}");
        again.enter("/quit");
        again.wait_for_exit().await;

        let mut later = Terminal::open_chat(&fleet, columns, &[]).await;
        let text = later.wait_for("the second half.").await;
        assert_eq!(text.matches("The first half").count(), 1, "{text}");
    }
}

#[tokio::test]
async fn thinking_is_told_from_the_answer_also_without_colours() {
    let fleet = Fleet::new().with_script(SLOW_SCRIPT);
    let _up = fleet.start_up().await;
    for (task, columns, variables, has_colours) in [
        ("a", 40, &[][..], true),
        ("b", 120, &[][..], true),
        ("c", 40, &[("NO_COLOR", "1")][..], false),
        ("d", 120, &[("NO_COLOR", "1")][..], false),
        ("e", 40, &[("TERM", "dumb")][..], false),
        ("f", 120, &[("TERM", "dumb")][..], false),
    ] {
        let mut terminal = Terminal::open_chat_about(&fleet, task, columns, variables).await;
        terminal.enter("count");
        terminal.wait_for("and that is all.").await;
        let rows = terminal.rows();
        let thinking: Vec<&String> = rows.iter().filter(|row| row.starts_with("| ")).collect();
        assert!(thinking.first().is_some_and(|row| row.starts_with("| thinking: I have to")), "{rows:#?}");
        let words: String = thinking.iter().flat_map(|row| row[2..].split(' ')).collect();
        assert!(words.ends_with("moment."), "every row of it is marked: {rows:#?}");
        assert!(rows.iter().any(|row| row.starts_with("One two")), "{rows:#?}");
        let styles = ["\x1b[2m", "\x1b[1m", "\x1b[0m"].map(|style| terminal.raw().contains(style));
        assert_eq!(styles, [has_colours; 3], "{variables:?}");
    }
}

#[tokio::test]
async fn requests_of_the_agent_are_answered_and_a_draft_is_no_answer() {
    let input = json!({"question": "Which colour?\u{1b}[2J", "options": ["red", "green"]});
    let (fleet, provider) = fleet([]).await;
    let up = fleet.start_up().await;
    for columns in WIDTHS {
        let gate = Gate::new();
        let file = format!("notes-{columns}");
        provider.enqueue_all([
            Reply::new()
                .text("I write it down.")
                .tool_use("write_file", json!({"path": file, "content": "buy milk"}))
                .hold(1, &gate),
            Reply::from_text("It is written."),
            Reply::new().tool_use("ask_user", input.clone()),
            Reply::from_text("Thank you."),
        ]);
        let mut terminal = Terminal::open_chat(&fleet, columns, &[]).await;
        terminal.enter("write it down");
        terminal.wait_for("working …").await;
        terminal.send("y");
        terminal.wait_for("> y").await;
        gate.release();
        let text = terminal.wait_for("[y]es / [n]o / [a]lways").await;
        assert!(text.contains("The agent asks for permission:") && text.contains("buy milk"), "{text}");
        terminal.send("\rmaybe\r");
        terminal.wait_for_count("Please answer `y`", 2).await;
        terminal.enter("y");
        terminal.wait_for("It is written.").await;
        terminal.wait_for("> y").await;
        terminal.send("\x15ask me\r");
        let text = terminal.wait_for("in your own words.").await;
        assert!(text.contains("Which colour?\\u{1b}[2J 1. red 2. green"), "{text}");
        terminal.enter("9");
        terminal.wait_for("There is no option 9").await;
        terminal.enter("2");
        terminal.wait_for("Thank you.").await;
        let results = provider.requests().last().unwrap().body["messages"].to_string();
        assert!(results.contains("green"), "{results}");
        let engine = up.product().engine("ada").await;
        let written = fleet.engine_folder(&engine.id).join("workspace").join(file);
        assert_eq!(std::fs::read_to_string(written).unwrap(), "buy milk");
    }
}

#[tokio::test]
async fn no_control_character_of_the_model_or_a_tool_reaches_the_terminal() {
    let evil = "\u{1b}]0;title\u{7}\u{1b}[2J\u{9b}31m\u{8}\rx";
    let (fleet, provider) = fleet([]).await;
    let _up = fleet.start_up().await;
    let kinds = [&[][..], &[("TERM", "dumb")][..]];
    for (columns, variables) in WIDTHS.into_iter().flat_map(|columns| kinds.map(|kind| (columns, kind))) {
        provider.enqueue_all([
            Reply::new()
                .text(format!("Say {evil} it."))
                .tool_use("working_memory_set", json!({"key": format!("k{evil}"), "value": evil})),
            Reply::from_text(format!("End {evil} of it.")).chars_per_delta(1),
        ]);
        let mut terminal = Terminal::open_chat(&fleet, columns, variables).await;
        terminal.enter("be evil");
        terminal.wait_for("of it.").await;
        terminal.enter("/memory");
        terminal.wait_for("In this conversation:").await;
        let raw = terminal.raw();
        assert!(raw.contains("\\u{1b}]0;title"), "{raw:?}");
        for sequence in ["\u{1b}]", "\u{1b}[2J", "\u{9b}", "\u{7}", "\u{8}"] {
            // The bell and the backspace are what a dumb terminal's own echo may send.
            assert!(!raw.contains(sequence), "{sequence:?} in {raw:?}");
        }
        terminal.enter("/quit");
        terminal.wait_for_exit().await;
    }
}

#[tokio::test]
async fn messages_that_are_typed_during_a_turn_are_sent_after_it() {
    let (fleet, provider) = fleet([]).await;
    let _up = fleet.start_up().await;
    for columns in WIDTHS {
        let gate = Gate::new();
        let before = provider.requests().len();
        provider.enqueue_all([
            Reply::from_text("The first half, and the second half.").deltas(4).hold(2, &gate),
            Reply::from_text("And that is all."),
            Reply::from_text("The same again."),
        ]);
        let mut terminal = Terminal::open_chat(&fleet, columns, &[]).await;
        terminal.enter("tell me");
        terminal.wait_for("The first half").await;
        terminal.enter("is that all?");
        terminal.wait_for("This waits until the turn has ended.").await;
        terminal.enter("/retry");
        terminal.wait_for_count("This waits until the turn has ended.", 2).await;
        assert_eq!(provider.requests().len(), before + 1);
        gate.release();
        terminal.wait_for("And that is all.").await;
        terminal.wait_for("The same again.").await;
        let messages = |number: usize| provider.requests()[before + number].body["messages"].to_string();
        let again = messages(2);
        assert!(again.contains("is that all?") && !again.contains("And that is all."), "{again}");
        assert!(messages(1).contains("is that all?"));
    }
}
