//! The prompt of `roundhouse chat` under a terminal of 40 and of 120 columns: keys, history, pasted text, commands.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use mock_llm::{MockProvider, Reply};
use serde_json::json;
use unicode_width::UnicodeWidthStr as _;

use crate::support::heard::{Heard, fleet_that_answers};
use crate::support::terminal::WIDTHS;
use crate::support::{Fleet, Terminal};

#[tokio::test]
async fn keys_edit_the_message_and_bring_back_earlier_ones() {
    let (fleet, _up, provider) = fleet_that_answers(Reply::from_text("I see.")).await;
    for columns in WIDTHS {
        let heard = Heard::from_now(&provider);
        let mut terminal = Terminal::open_chat(&fleet, columns, &[]).await;
        terminal.send("worl\x1b[D\x1b[D\x1b[D\x1b[Dhello \x1b[F\u{3bb}\x7fd\r");
        assert_eq!(heard.message(1).await, "hello world");
        terminal.wait_for_count("I see.", 1).await;
        terminal.send("one\x1b\rtwo\\\rthree\nfour\r");
        assert_eq!(heard.message(2).await, "one\ntwo\nthree\nfour");
        terminal.wait_for_count("I see.", 2).await;
        terminal.send("not sent\x1b[A\x1b[A\x1b[A\x1b[A\x1b[A!\r");
        assert_eq!(heard.message(3).await, "hello world!");
        terminal.wait_for_count("I see.", 3).await;
        terminal.send("thrown away\x03kept\r");
        assert_eq!(heard.message(4).await, "kept");
        terminal.wait_for_count("I see.", 4).await;
        terminal.send("\x04");
        assert!(terminal.wait_for_exit().await.success());

        let mut again = Terminal::open_chat(&fleet, columns, &[]).await;
        again.send("\x1b[A\x1b[A");
        again.wait_for("> hello world!").await;
        let history = fleet.test_env.path().join(".local/state/roundhouse/chat-ada.history");
        assert_eq!(fs::metadata(history).unwrap().permissions().mode() & 0o777, 0o600);
    }
}

#[tokio::test]
async fn pasted_text_of_any_length_and_number_of_lines_is_one_message() {
    let (fleet, _up, provider) = fleet_that_answers(Reply::from_text("I see.")).await;
    let lines: Vec<String> =
        (0..120).map(|number| format!("line {number} {}\t日本 e\u{301} 👍🏽", "x".repeat(150))).collect();
    let long = "y".repeat(50_000);
    for columns in WIDTHS {
        let heard = Heard::from_now(&provider);
        let mut terminal = Terminal::open_chat(&fleet, columns, &[]).await;
        let text = lines.join("\n");
        terminal.paste(&text);
        terminal.wait_for("line 119").await;
        assert_eq!(provider.requests().len(), heard.before(), "nothing is sent before Enter");
        terminal.send("\r");
        assert_eq!(heard.message(1).await, text);
        terminal.wait_for("I see.").await;
        terminal.paste(&long);
        terminal.send("\r");
        assert_eq!(heard.message(2).await, long);
    }
}

#[tokio::test]
async fn a_byte_that_is_no_text_neither_ends_the_chat_nor_is_lost_silently() {
    let (fleet, _up, provider) = fleet_that_answers(Reply::from_text("I see.")).await;
    for columns in WIDTHS {
        let heard = Heard::from_now(&provider);
        let mut terminal = Terminal::open_chat(&fleet, columns, &[]).await;
        terminal.send(b"a\xffb");
        // The emulator leaves out the replacement character itself.
        terminal.wait_for("A byte that is not UTF-8 became").await;
        terminal.send("\r");
        assert_eq!(heard.message(1).await, "a\u{fffd}b");
        terminal.wait_for("I see.").await;
    }
}

#[tokio::test]
async fn answers_are_wrapped_between_words_at_any_width() {
    let words = "Widths differ: 日本語のとても長いテキストは単語の間に空白がありません。 Émigre\u{301}s are welcome; \
                 so is 👍🏽 thumbs up, and incomprehensibilities.";
    let text = format!("{words} {words}\n\n    indented code stays");
    let (fleet, _up, _provider) = fleet_that_answers(Reply::from_text(text).chars_per_delta(3)).await;
    for columns in WIDTHS {
        let mut terminal = Terminal::open_chat(&fleet, columns, &[]).await;
        terminal.enter("go on");
        terminal.wait_for("code stays").await;
        let rows = terminal.rows();
        assert!(rows.iter().all(|row| row.width() < usize::from(columns)), "{rows:#?}");
        let text = terminal.text();
        for word in ["differ:", "Émigre\u{301}s", "welcome;", "thumbs", "incomprehensibilities."] {
            assert!(text.matches(word).count() >= 2, "{word}: {rows:#?}");
        }
        assert!(rows.iter().any(|row| row.starts_with("    indented")), "{rows:#?}");
        let without_spaces: String = text.split(' ').collect();
        assert!(
            without_spaces.contains("日本語のとても長いテキストは単語の間に空白がありません。"),
            "{rows:#?}"
        );
    }
}

#[tokio::test]
async fn commands_do_what_they_say() {
    let (fleet, up, provider) = fleet_that_answers(Reply::from_text("I see.")).await;
    let engine = up.product().engine("ada").await;
    let workspace = fleet.engine_folder(&engine.id).join("workspace");
    fs::create_dir_all(&workspace).unwrap();
    fs::write(workspace.join("notes \u{1b}[2J.txt"), "milk").unwrap();
    for columns in WIDTHS {
        let heard = Heard::from_now(&provider);
        let task = format!("wide-{columns}");
        let mut terminal = Terminal::open_chat(&fleet, columns, &[]).await;
        for (line, shown) in [
            ("/help", if columns < 70 { "/retry: answer your" } else { "/retry answer your last message" }),
            ("/nonsense", "There is no command /nonsense. There are /help, /new, /tasks, /edit,"),
            ("/quit now", "/quit takes nothing after it."),
            ("/retry", "There is no message of yours in this conversation."),
            ("/files", "notes \\u{1b}[2J.txt (4 bytes)"),
            ("/files missing", "missing"),
            ("/memory", "Nothing is remembered yet."),
            ("/memory green tea", "Nothing was found."),
            ("/model", "The configuration chooses; /model NAME chooses one"),
            ("/model none-such", "There is no model \"none-such\""),
        ] {
            terminal.enter(line);
            let text = terminal.wait_for(shown).await;
            assert!(text.contains(&format!("> {line}")), "what was typed stays visible: {text}");
        }
        assert_eq!(provider.requests().len(), heard.before(), "no command is sent to the model");

        terminal.enter("//etc/hosts");
        assert_eq!(heard.message(1).await, "/etc/hosts");
        terminal.wait_for_count("I see.", 1).await;
        terminal.enter("/retry");
        assert_eq!(heard.message(2).await, "/etc/hosts");
        terminal.wait_for_count("I see.", 2).await;
        terminal.enter("/edit the second try");
        assert_eq!(heard.message(3).await, "the second try");
        terminal.wait_for_count("I see.", 3).await;
        terminal.enter("/edit");
        terminal.wait_for("Ctrl-C leaves it as it was.").await;
        terminal.send("\x7f\x7f\x7fchance\r");
        assert_eq!(heard.message(4).await, "the second chance");
        terminal.wait_for_count("I see.", 4).await;
        let messages = provider.requests().last().unwrap().body["messages"].to_string();
        assert!(!messages.contains("try") && !messages.contains("hosts"), "they are replaced: {messages}");

        terminal.enter(&format!("/new trip {columns}"));
        terminal.wait_for(&format!("Conversation `trip {columns}`, which is new.")).await;
        terminal.enter("pack the bags");
        assert_eq!(heard.message(5).await, "pack the bags");
        terminal.wait_for_count("I see.", 5).await;
        // The list says so of a turn that has answered and not ended.
        terminal.wait_without("working …").await;
        terminal.enter("/tasks");
        let text = terminal.wait_for("/tasks NAME opens one.").await;
        assert!(text.contains(&format!("* trip {columns} pack the bags (2 messages)")), "{text}");
        assert!(text.contains(&task), "{text}");
        terminal.enter(&format!("/tasks {task}"));
        terminal.wait_for(&format!("Conversation `{task}`.")).await;
        terminal.wait_for_count("> the second chance", 1).await;
        terminal.enter("/quit");
        assert!(terminal.wait_for_exit().await.success());
    }
}

#[tokio::test]
async fn a_model_that_is_chosen_answers_until_the_choice_is_undone() {
    let provider = MockProvider::start().await.unwrap();
    provider.set_default_reply(Reply::from_text("I see."));
    let fleet = Fleet::new().with_provider(&provider);
    let model = |name: &str| {
        json!({
            "provider": "anthropic", "model": name, "base_url": provider.base_url(),
            "api_key_env": "LLM_API_KEY", "context_window": 100_000,
        })
    };
    let config =
        json!({"models": {"quick": model("sprinter"), "careful": model("thinker")}, "default": "quick"});
    fs::write(fleet.folder().join("catalog/gateway.json"), config.to_string()).unwrap();
    let _up = fleet.start_up().await;
    for columns in WIDTHS {
        let heard = Heard::from_now(&provider);
        let mut terminal = Terminal::open_chat(&fleet, columns, &[]).await;
        terminal.enter("one");
        assert_eq!(heard.model(1).await, "sprinter");
        terminal.wait_for_count("I see.", 1).await;
        terminal.enter("/model careful");
        terminal.wait_for("careful answers from now on.").await;
        terminal.enter("two");
        assert_eq!(heard.model(2).await, "thinker");
        terminal.wait_for_count("I see.", 2).await;
        terminal.enter("/retry");
        assert_eq!(heard.model(3).await, "thinker");
        terminal.wait_for_count("I see.", 3).await;
        terminal.enter("/model");
        let text = terminal.wait_for("careful answers; /model NAME chooses one").await;
        assert!(text.contains("* careful (anthropic thinker)"), "{text}");
        assert!(text.contains(" quick (anthropic sprinter)") && !text.contains("* quick"), "{text}");
        terminal.enter("/model default");
        terminal.wait_for("The configuration chooses the model.").await;
        terminal.enter("three");
        assert_eq!(heard.model(4).await, "sprinter");
        terminal.wait_for_count("I see.", 4).await;
    }
}

#[tokio::test]
async fn what_is_remembered_is_shown_and_found() {
    let (fleet, up, provider) = fleet_that_answers(Reply::from_text("I see.")).await;
    let engine = up.product().engine("ada").await;
    for content in ["Ada drinks green tea.", "Ada lives in Kiel.\u{1b}[2J"] {
        let saved = engine.post("/memory/knowledge", &json!({"content": content, "tags": []})).await;
        assert_eq!(saved.status, 200, "{saved:?}");
    }
    for columns in WIDTHS {
        provider
            .enqueue(Reply::new().tool_use("working_memory_set", json!({"key": "colour", "value": "green"})));
        let mut terminal = Terminal::open_chat(&fleet, columns, &[]).await;
        terminal.enter("my colour is green");
        terminal.wait_for("I see.").await;
        terminal.enter("/memory");
        terminal
            .wait_for("In this conversation: - colour: green About you: - Ada lives in Kiel.\\u{1b}[2J")
            .await;
        let text = terminal.wait_for("[2J - Ada drinks green tea.").await;
        assert_eq!(text.matches("Kiel").count(), 1, "{text}");
        terminal.enter("/memory green tea");
        terminal.wait_for("> /memory green tea - Ada drinks green tea.").await;
        terminal.enter("/memory zeppelins");
        terminal.wait_for("> /memory zeppelins Nothing was found.").await;
    }
}

#[tokio::test]
async fn folders_of_the_workspace_are_listed() {
    let (fleet, up, _provider) = fleet_that_answers(Reply::from_text("I see.")).await;
    let engine = up.product().engine("ada").await;
    let workspace = fleet.engine_folder(&engine.id).join("workspace");
    fs::create_dir_all(workspace.join("my trip/photos")).unwrap();
    fs::write(workspace.join("my trip/plan.md"), "north").unwrap();
    for number in 0..60 {
        fs::write(workspace.join(format!("my trip/photos/{number:02}.jpg")), "").unwrap();
    }
    for columns in WIDTHS {
        let mut terminal = Terminal::open_chat(&fleet, columns, &[]).await;
        terminal.enter("/files");
        terminal.wait_for("> /files my trip/").await;
        terminal.enter("/files my trip");
        let text = terminal.wait_for("plan.md (5 bytes)").await;
        assert!(text.contains("photos/"), "{text}");
        terminal.enter("/files my trip/photos/");
        let text = terminal.wait_for("49.jpg (0 bytes) …").await;
        assert!(text.contains("00.jpg (0 bytes)") && !text.contains("50.jpg"), "{text}");
        terminal.enter("/files my trip/plan.md");
        terminal.wait_for("/files my trip/plan.md This is a file, not a folder.").await;
    }
}

#[tokio::test]
async fn a_message_that_was_to_be_changed_stays_if_that_is_given_up() {
    let (fleet, _up, provider) = fleet_that_answers(Reply::from_text("I see.")).await;
    for columns in WIDTHS {
        let mut terminal = Terminal::open_chat(&fleet, columns, &[]).await;
        terminal.enter("first");
        terminal.wait_for_count("I see.", 1).await;
        terminal.enter("/edit");
        terminal.wait_for("Ctrl-C leaves it as it was.").await;
        terminal.send("\x03second\r");
        terminal.wait_for_count("I see.", 2).await;
        let messages = provider.requests().last().unwrap().body["messages"].to_string();
        assert!(messages.contains("first") && messages.contains("second"), "{messages}");
    }
}

#[tokio::test]
async fn a_dumb_terminal_gets_plain_lines_and_can_be_used() {
    let text = "The answer is so long that it takes more than one row of a small terminal.";
    let (fleet, _up, provider) = fleet_that_answers(Reply::from_text(text)).await;
    for columns in WIDTHS {
        let heard = Heard::from_now(&provider);
        let mut terminal = Terminal::open_chat(&fleet, columns, &[("TERM", "dumb")]).await;
        terminal.send("/help\n");
        terminal.wait_for("answer your last message again").await;
        terminal.send("one\\\ntwo\n");
        assert_eq!(heard.message(1).await, "one\ntwo");
        terminal.wait_for_count("of a small terminal.", 1).await;
        terminal.send(format!("{}\n", "x".repeat(4_200)));
        terminal.wait_for("its end may be missing. It was not sent").await;
        terminal.send(b"a\xffb\n");
        terminal.wait_for("This line is not UTF-8 and was not sent.").await;
        terminal.send("still there?\n");
        assert_eq!(heard.message(2).await, "still there?");
        terminal.wait_for_count("of a small terminal.", 2).await;
        assert!(!terminal.raw().contains('\u{1b}'), "{:?}", terminal.raw());
        terminal.send("/quit\n");
        assert!(terminal.wait_for_exit().await.success());
    }
}
