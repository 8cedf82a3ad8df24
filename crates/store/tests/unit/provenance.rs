use super::*;

const MARKED: &str = "A note that came from a tool or the web, unverified.";

fn source_of(stored: &str) -> Source {
    serde_json::from_str::<Step>(stored).unwrap().source()
}

/// The stored forms of the steps that add a text to the conversation, with `{source}` at the end of each.
fn stored_steps(text: &str, source: Option<Source>) -> [String; 5] {
    let source =
        |field: &str| source.map(|source| format!(r#","{field}":"{}""#, source.as_str())).unwrap_or_default();
    let call = "call_01a1f979470673d69f90d7d72971a30a";
    let options = r#"{"max_turns":50,"super_thinking":false}"#;
    let opened = format!(
        r#""opened","message_id":"msg_01a1f9794701778689cc8ab646739d72","message":"{MARKED}","notes":["{text}"]"#
    );
    let resulted = format!(r#""resulted","call_id":"{call}","outcome":"#);
    [
        format!(r#"{{"step":{opened},"options":{options}{}}}"#, source("notes_source")),
        format!(r#"{{"step":"recalled","note":"{text}"{}}}"#, source("source")),
        format!(r#"{{"step":"planned","plan":"{text}"{}}}"#, source("source")),
        format!(r#"{{"step":{resulted}{{"output":"{text}","duration_ms":0}}{}}}"#, source("source")),
        format!(
            r#"{{"step":{resulted}{{"output":"","error":"{text}","duration_ms":0}}{}}}"#,
            source("source")
        ),
    ]
}

#[test]
fn the_stored_source_counts_whatever_the_text_says() {
    for stored in stored_steps("A note in other words.", Some(Source::Tool)) {
        assert_eq!(source_of(&stored), Source::Tool, "{stored}");
    }
    for stored in stored_steps(MARKED, Some(Source::Agent)) {
        assert_eq!(source_of(&stored), Source::Agent, "{stored}");
    }
}

#[test]
fn in_a_journal_without_sources_the_mark_counts() {
    for stored in stored_steps(MARKED, None) {
        assert_eq!(source_of(&stored), Source::Tool, "{stored}");
        let delegated = format!(
            r#"{{"step":"delegated","call_id":"call_01a1f979470673d69f90d7d72971a30a","did":{stored}}}"#
        );
        assert_eq!(source_of(&delegated), Source::Tool, "{delegated}");
    }
    // The user's message contains it too, but a user is no tool.
    for stored in stored_steps("A note in other words.", None) {
        assert_eq!(source_of(&stored), Source::Agent, "{stored}");
    }
}

#[test]
fn a_source_is_stored_as_it_was_read() {
    for source in [None, Some(Source::Agent), Some(Source::Tool)] {
        for stored in stored_steps(MARKED, source) {
            let step: Step = serde_json::from_str(&stored).unwrap();
            let again = serde_json::to_string(&step).unwrap();
            assert_eq!(serde_json::from_str::<Step>(&again).unwrap(), step);
            assert_eq!(again.contains("source"), source.is_some(), "{again}");
        }
    }
}

#[test]
fn the_words_of_old_journals_do_not_change() {
    assert_eq!(MARK_WITHOUT_SOURCE, "came from a tool or the web, unverified");
}
