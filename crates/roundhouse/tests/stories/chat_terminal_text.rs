//! What is written in `roundhouse chat` under a terminal of 40 and of 120 columns: words that are moved by and deleted,
//! the scripts of the world, and text pasted from other systems.

use mock_llm::Reply;
use unicode_segmentation::UnicodeSegmentation as _;
use unicode_width::UnicodeWidthChar as _;

use crate::support::heard::{Heard, fleet_that_answers};
use crate::support::terminal::WIDTHS;
use crate::support::{Terminal, eventually};

/// Texts whose characters are wide, or consist of several, or run from right to left.
const TEXTS: [&str; 5] = [
    "你好，世界。这是一个很长的句子，中间没有空格，也要在行尾正确地换行，直到最后。",
    "👩\u{200d}👩\u{200d}👧\u{200d}👦👍🏽🏳\u{fe0f}\u{200d}🌈🇩🇪👩\u{200d}🚀👨\u{200d}👩\u{200d}👦👩🏿\u{200d}🔬🧑\u{200d}🤝\u{200d}🧑👍🏽🇯🇵🇩🇪",
    "e\u{301}a\u{308}o\u{302}\u{323} Vie\u{323}\u{302}t n\u{303}a\u{301}n\u{303}d\u{fa}",
    "שלום עולם, זה משפט ארוך שנכתב מימין לשמאל וצריך להישבר בסוף השורה",
    "नमस्ते दुनिया สวัสดีชาวโลก السلام عليكم",
];

/// The columns that a terminal of the emulator's kind needs for `text`.
fn columns(text: &str) -> usize {
    text.chars().map(|character| character.width().unwrap_or(0)).sum()
}

/// All that is shown, without the spaces at the ends of rows and in front of them.
fn joined(terminal: &Terminal) -> String {
    terminal.rows().iter().map(|row| row.split_whitespace().collect::<String>()).collect()
}

fn without_spaces(text: &str) -> String {
    text.split_whitespace().collect()
}

#[tokio::test]
async fn words_are_moved_by_deleted_and_brought_back() {
    let (fleet, _up, provider) = fleet_that_answers(Reply::from_text("I see.")).await;
    for width in WIDTHS {
        let heard = Heard::from_now(&provider);
        let mut terminal = Terminal::open_chat(&fleet, width, &[]).await;
        terminal.send("one two-three four");
        for (keys, shown) in [
            ("\x1b[1;5D", "> one two-three "),
            ("\x1bb", "> one two-"),
            ("\x1b[1;3D", "> one "),
            ("\x1b[1;5C", "> one two"),
            ("\x1bf", "> one two-three"),
            ("\x17", "> one two-"),
            ("\x0b", "> one two-"),
            ("\x19", "> one two- four"),
            ("\x1b\x7f", "> one two- "),
            ("\x01", "> "),
            ("\x19", "> four"),
            ("\x05", "> fourone two- "),
            ("\x15", "> "),
            ("\x19\x19", "> fourone two- fourone two- "),
            ("\x01\x06\x04\x02", "> "),
            ("\x0b", "> "),
        ] {
            terminal.send(keys);
            eventually(&format!("{shown:?} after {keys:?}"), async || {
                let before = terminal.text_before_cursor();
                // The emulator does not tell spaces from cells that nothing was written to.
                (before.trim_end() == shown.trim_end()).then_some(())
            })
            .await;
        }
        terminal.send("\x19\r");
        assert_eq!(heard.message(1).await, "furone two- fourone two- ");
        terminal.wait_for("I see.").await;
    }
}

#[tokio::test]
async fn every_script_is_edited_and_wrapped() {
    let (fleet, _up, provider) = fleet_that_answers(Reply::from_text("I see.")).await;
    for width in WIDTHS {
        let heard = Heard::from_now(&provider);
        let mut terminal = Terminal::open_chat(&fleet, width, &[]).await;
        for (number, text) in TEXTS.into_iter().enumerate() {
            provider.enqueue(Reply::from_text(format!("Read: {text} End.")).chars_per_delta(1));
            terminal.send(text);
            eventually(&format!("{text} is shown"), async || {
                joined(&terminal).ends_with(&without_spaces(text)).then_some(())
            })
            .await;
            // The third character from the end is replaced.
            let mut characters: Vec<&str> = text.graphemes(true).collect();
            let end = characters.split_off(characters.len() - 2);
            characters.pop();
            let before = characters.concat();
            terminal.send("\x1b[D\x02\x7f");
            let left = without_spaces(&format!("{before}{}", end.concat()));
            eventually("the character is gone, and the cursor where it was", async || {
                let row = terminal.text_before_cursor();
                let row = row.strip_prefix('>').unwrap_or(&row).trim();
                (before.trim_end().ends_with(row) && joined(&terminal).ends_with(&left)).then_some(())
            })
            .await;
            terminal.send("*\r");
            let message = format!("{before}*{}", end.concat());
            assert_eq!(heard.message(number + 1).await, message);
            terminal.wait_for_count("End.", number + 1).await;
            terminal.wait_without("working …").await;
            let shown = joined(&terminal);
            assert!(shown.contains(&format!(">{}", without_spaces(&message))), "{shown}");
            assert!(shown.contains(&without_spaces(&format!("Read: {text} End."))), "{shown}");
            let rows = terminal.rows();
            assert!(rows.iter().all(|row| columns(row) < usize::from(width)), "{rows:#?}");
        }
    }
}

#[tokio::test]
async fn text_pasted_from_other_systems_has_its_lines() {
    let (fleet, _up, provider) = fleet_that_answers(Reply::from_text("I see.")).await;
    let lines: Vec<String> = (0..200).map(|number| format!("line {number}")).collect();
    for width in WIDTHS {
        let heard = Heard::from_now(&provider);
        let mut terminal = Terminal::open_chat(&fleet, width, &[]).await;
        terminal.paste_as_it_is(&format!("{}\r\n\r\nlast\r\n", lines.join("\r\n")));
        terminal.wait_for("last").await;
        terminal.send("\r");
        assert_eq!(heard.message(1).await, format!("{}\n\nlast\n", lines.join("\n")));
        terminal.wait_for_count("I see.", 1).await;
        // The terminal may deliver a line break in two parts.
        terminal.send("\x1b[200~one\r");
        terminal.wait_for("> one").await;
        terminal.send("\ntwo\x1b[201~\r");
        assert_eq!(heard.message(2).await, "one\ntwo");
        terminal.wait_for_count("I see.", 2).await;
    }
}
