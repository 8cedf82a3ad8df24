//! Tests of listing facts, which is what a search without words does.

use pretty_assertions::assert_eq;
use testkit::with_deadline;

use super::*;
use crate::fixture::{MemoryFixture, run_tool};

async fn output(tool: &MemorySearch, input: serde_json::Value) -> ToolOutput {
    let invocation = Invocation {
        call_id: api::CallId::new(),
        at: api::Timestamp::from_unix_ms(0),
        task: None,
        input,
        answers: Vec::new(),
    };
    match with_deadline(tool.run(invocation)).await.unwrap() {
        ToolStep::Done(output) => output,
        ToolStep::Ask(question) => panic!("{question:?}"),
    }
}

#[tokio::test]
async fn without_a_word_to_search_for_the_facts_are_listed() {
    let fixture = MemoryFixture::new();
    let tool = MemorySearch(fixture.brain.clone());
    assert_eq!(run_tool(&tool, json!({})).await, Ok("No facts are saved.".into()));
    let old = fixture.save("The user lives in Bonn.", Source::Agent, None).await;
    let new = fixture.save("The user lives in Kiel.", Source::User, Some(old)).await;
    let cat = fixture.save("猫の名前はタマです。", Source::Agent, None).await;
    let expected = format!(
        "{HEADING} Facts that hold now, 2 in all, the last said first:\
         \n{cat} (1970-01-01, you noted):\n> 猫の名前はタマです。\
         \n{new} (1970-01-01, the user saved, in place of 1 earlier):\n> The user lives in Kiel."
    );
    for input in [
        json!({}),
        json!({"query": null}),
        json!({"query": ""}),
        json!({"query": " ?! "}),
        json!({"query": "What do you know about me?"}),
        json!({"query": "Wer bin ich?"}),
        json!({"query": "Was weißt du über mich?"}),
        json!({"query": "¿Qué sabes de mí?"}),
    ] {
        assert_eq!(run_tool(&tool, input.clone()).await, Ok(expected.clone()), "{input}");
    }
    let found = run_tool(&tool, json!({"query": "Kiel"})).await.unwrap();
    assert!(found.contains("lives in Kiel") && !found.contains("タマ"), "{found}");
    // A single word may be a name, whatever it is.
    for name in ["Will", "nobody-of-this-name"] {
        let missed = run_tool(&tool, json!({"query": name})).await.unwrap();
        assert!(missed.contains("without a query the saved facts are listed"), "{missed}");
    }
}

#[tokio::test]
async fn facts_from_tools_are_a_list_of_their_own() {
    let fixture = MemoryFixture::new();
    let tool = MemorySearch(fixture.brain.clone());
    fixture.save("The invoice is due on Friday.", Source::Tool, None).await;
    fixture.save("The user is called Ada.", Source::User, None).await;
    let listed = output(&tool, json!({})).await;
    assert!(listed.text.contains("Ada") && !listed.text.contains("invoice"), "{}", listed.text);
    assert!(
        listed.text.ends_with("(1 more came from tools or the web, unverified: `unverified` lists them)")
    );
    assert_eq!(listed.source, None);
    let unverified = output(&tool, json!({"unverified": true})).await;
    assert!(unverified.text.contains("invoice") && !unverified.text.contains("Ada"), "{}", unverified.text);
    assert_eq!(unverified.source, Some(Source::Tool));
}

#[tokio::test]
async fn a_long_list_goes_on_where_it_ended() {
    let fixture = MemoryFixture::new();
    let tool = MemorySearch(fixture.brain.clone());
    for number in 0..20 {
        fixture.save(&format!("Fact {number}. {}", "x".repeat(3_000)), Source::Agent, None).await;
    }
    let first = run_tool(&tool, json!({})).await.unwrap();
    assert!(first.ends_with("(there are more: go on with `offset` 15)"), "{first}");
    let rest = run_tool(&tool, json!({"offset": 15})).await.unwrap();
    assert!(rest.contains("> Fact 4.") && rest.contains("> Fact 0.") && !rest.contains("there are more"));
    let one = run_tool(&tool, json!({"limit": 1})).await.unwrap();
    assert!(one.contains("> Fact 19.") && !one.contains("> Fact 18."), "{one}");
    assert_eq!(run_tool(&tool, json!({"offset": 25})).await, Ok("There are only 20 facts.".into()));

    // A fact as long as any hides none of those behind it, in lines however short.
    fixture.save(&"a\n".repeat(8_192), Source::Agent, None).await;
    let first = run_tool(&tool, json!({"limit": 2})).await.unwrap();
    assert!(first.contains("> Fact 19.") && first.ends_with("go on with `offset` 2)"), "{first}");
}
