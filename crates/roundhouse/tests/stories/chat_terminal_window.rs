//! `roundhouse chat` in a window that changes its size, is cleared, or belongs to a shell meanwhile.

use mock_llm::{Gate, Reply};
use rustix::process::Signal;

use crate::support::heard::{Heard, fleet_that_answers};
use crate::support::terminal::WIDTHS;
use crate::support::test_env::BINARY;
use crate::support::{Fleet, Terminal, eventually, processes};

/// The variables of terminals that break rows that no longer fit, and of those that cut them off.
const TERMINALS: [&[(&str, &str)]; 2] = [&[], &[("XTERM_VERSION", "XTerm(390)")]];

/// Changes from either width to the other one, in either terminal.
fn changes() -> impl Iterator<Item = (u16, u16, &'static [(&'static str, &'static str)])> {
    let [narrow, wide] = WIDTHS;
    let widths = [(wide, narrow), (narrow, wide)];
    widths.into_iter().flat_map(|(from, to)| TERMINALS.map(|variables| (from, to, variables)))
}

/// Words with their numbers.
fn numbered(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|number| format!("w{number:03}")).collect()
}

/// All that is shown, without spaces and line breaks.
fn squeezed(terminal: &Terminal) -> String {
    terminal.rows().concat().split_whitespace().collect()
}

/// The rows that begin with the mark of a message.
fn marked_rows(terminal: &Terminal) -> usize {
    terminal.rows().iter().filter(|row| row.starts_with('>')).count()
}

/// The rows of the line that is being typed, without their margin.
fn typed_rows(terminal: &Terminal) -> Vec<String> {
    let rows = terminal.rows();
    let rows = rows.iter().skip_while(|row| !row.starts_with('>'));
    rows.map(|row| row.chars().skip(2).collect::<String>().trim_end().to_owned()).collect()
}

/// Waits until the screen shows these rows and no other.
async fn wait_for_screen(terminal: &Terminal, rows: &[&str]) {
    eventually(&format!("the screen shows {rows:?}"), async || {
        let shown = terminal.screen_rows();
        let shown = shown.iter().map(|row| row.trim_end()).filter(|row| !row.is_empty());
        shown.eq(rows.iter().copied()).then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_answer_goes_on_when_the_window_changes_while_it_streams() {
    let (fleet, _up, provider) = fleet_that_answers(Reply::from_text("I see.")).await;
    for (number, (from, to, variables)) in changes().enumerate() {
        let gate = Gate::new();
        let words = numbered(0..80);
        provider.enqueue(Reply::from_text(words.join(" ")).deltas(4).hold(2, &gate));
        let task = format!("change-{number}");
        let mut terminal = Terminal::open_chat_about(&fleet, &task, from, variables).await;
        terminal.enter("count");
        terminal.wait_for("w038").await;
        terminal.wait_for("working … (Ctrl-C cancels)").await;
        terminal.send("dra");
        terminal.wait_for("> dra").await;
        terminal.resize(to).await;
        terminal.send("ft");
        terminal.wait_for("> draft").await;
        gate.release();
        terminal.wait_for("w079").await;
        terminal.wait_without("working …").await;
        let rows = terminal.rows().join("\n");
        // What was complete before, a terminal may cut off.
        let whole = if variables.is_empty() || from < to { words } else { numbered(24..80) };
        assert_eq!(squeezed(&terminal).matches(&whole.concat()).count(), 1, "{from} to {to}:\n{rows}");
        assert_eq!(squeezed(&terminal).matches("w079").count(), 1, "{from} to {to}:\n{rows}");
        assert_eq!(marked_rows(&terminal), 2, "what was sent, and the prompt:\n{rows}");
        assert_eq!(terminal.text_before_cursor(), "> draft", "{rows}");
    }
}

#[tokio::test]
async fn a_long_line_is_edited_on_when_the_window_changes() {
    let (fleet, _up, provider) = fleet_that_answers(Reply::from_text("I see.")).await;
    for (number, (from, to, variables)) in changes().enumerate() {
        let heard = Heard::from_now(&provider);
        let task = format!("change-{number}");
        let mut terminal = Terminal::open_chat_about(&fleet, &task, from, variables).await;
        let words = numbered(0..30).join(" ");
        terminal.send(&words);
        eventually("the line is shown", async || squeezed(&terminal).ends_with("w029").then_some(())).await;
        // Before the third word from the end.
        terminal.send("\x1bb\x1bb\x1bb");
        let moved = async || terminal.text_before_cursor().ends_with("w026 ").then_some(());
        eventually("the cursor is moved", moved).await;
        let mut expected = words.clone();
        for (width, typed) in [(to, "X"), (from, "Y"), (to, "Z")] {
            terminal.resize(width).await;
            terminal.send(typed);
            expected.insert_str(expected.find("w027").unwrap(), typed);
            let wanted: Vec<String> = expected
                .as_bytes()
                .chunks(usize::from(width) - 3)
                .map(|row| String::from_utf8_lossy(row).trim_end().to_owned())
                .collect();
            let case = format!("{from} to {to} with {variables:?}, at {width}");
            eventually(&format!("the line with {typed} is drawn, {case}"), async || {
                let drawn = typed_rows(&terminal) == wanted;
                (drawn && terminal.text_before_cursor().ends_with(typed)).then_some(())
            })
            .await;
            assert_eq!(marked_rows(&terminal), 1, "{case}");
        }
        terminal.send("\r");
        assert_eq!(heard.message(1).await, expected);
        terminal.wait_for("I see.").await;
    }
}

#[tokio::test]
async fn ctrl_l_clears_the_screen_and_loses_nothing() {
    let (fleet, _up, provider) = fleet_that_answers(Reply::from_text("I see.")).await;
    for columns in WIDTHS {
        let heard = Heard::from_now(&provider);
        let mut terminal = Terminal::open_chat(&fleet, columns, &[]).await;
        terminal.enter("one");
        terminal.wait_for("I see.").await;
        terminal.send("dra\x0c");
        wait_for_screen(&terminal, &["> dra"]).await;
        let text = terminal.text();
        assert_eq!(text.matches("> one I see.").count(), 1, "it has scrolled away: {text}");

        let gate = Gate::new();
        provider.enqueue(Reply::from_text("Half of it, and the rest.").deltas(2).hold(1, &gate));
        terminal.send("ft\r");
        assert_eq!(heard.message(2).await, "draft");
        let held = terminal.wait_for("Half of it").await;
        let held = held.split("> draft ").last().unwrap().split(" working").next().unwrap().to_owned();
        terminal.send("\x0c");
        wait_for_screen(&terminal, &[held.trim(), "working … (Ctrl-C cancels)", ">"]).await;
        gate.release();
        let text = terminal.wait_for("and the rest.").await;
        assert_eq!(text.matches("Half of it, and the rest.").count(), 1, "{text}");
    }
}

/// A shell in a terminal, in which `roundhouse chat` was started.
async fn shell_with_chat(fleet: &Fleet, columns: u16) -> Terminal {
    let mut variables = fleet.variables.clone();
    variables.insert("PS1".to_owned(), "shell$ ".to_owned());
    let line = ["bash", "--norc", "--noprofile", "--noediting", "-i"];
    let mut terminal = Terminal::start(&fleet.test_env, &line, &variables, columns);
    terminal.wait_for("shell$").await;
    let folder = fleet.folder().to_str().unwrap();
    terminal.enter(&format!("{BINARY} chat --user ada --dir {folder} --task wide-{columns}"));
    terminal.wait_for("lists commands and keys. >").await;
    terminal
}

#[tokio::test]
async fn ctrl_z_leaves_the_terminal_to_the_shell_until_fg() {
    let (fleet, _up, provider) = fleet_that_answers(Reply::from_text("I see.")).await;
    for columns in WIDTHS {
        let heard = Heard::from_now(&provider);
        let mut terminal = shell_with_chat(&fleet, columns).await;
        terminal.send("half a me");
        terminal.wait_for("> half a me").await;
        terminal.send("\x1a");
        terminal.wait_for_count("shell$", 2).await;
        assert!(terminal.is_cooked());
        let text = terminal.text();
        assert!(!text.contains("half a me"), "the prompt is gone: {text}");
        let raw = terminal.raw();
        assert!(raw.rfind("\x1b[?2004l") > raw.rfind("\x1b[?2004h"), "pasted text is not marked: {raw:?}");
        terminal.enter("echo $((40 + 2)) is the answer");
        terminal.wait_for("42 is the answer").await;
        terminal.enter("fg");
        terminal.wait_for("> half a me").await;
        assert!(!terminal.is_cooked());
        terminal.send("ssage\r");
        assert_eq!(heard.message(1).await, "half a message");
        terminal.wait_for("I see.").await;

        let gate = Gate::new();
        provider.enqueue(Reply::from_text("The first half, and the rest.").deltas(2).hold(1, &gate));
        terminal.enter("tell me");
        terminal.wait_for("The first").await;
        terminal.send("\x1a");
        terminal.wait_for_count("shell$", 4).await;
        gate.release();
        terminal.enter("fg");
        let text = terminal.wait_for("and the rest.").await;
        assert_eq!(text.matches("The first half, and the rest.").count(), 1, "{text}");
        terminal.wait_without("working …").await;

        // Stopped by somebody else, it cannot tidy up before.
        let chat = processes::children(terminal.pid());
        terminal.send("another");
        terminal.wait_for("> another").await;
        processes::signal(chat[0], Signal::STOP);
        terminal.wait_for_count("shell$", 5).await;
        terminal.enter("fg");
        terminal.wait_for_count("> another", 2).await;
        terminal.send(" one\r");
        assert_eq!(heard.message(3).await, "another one");
        terminal.wait_for_count("I see.", 2).await;
        terminal.enter("/quit");
        eventually("the shell is back", async || terminal.is_cooked().then_some(())).await;
    }
}
