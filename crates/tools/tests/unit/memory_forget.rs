//! Tests of forgetting: what a person is asked, and what is erased.

use api::memory::Source;
use pretty_assertions::assert_eq;
use testkit::with_deadline;

use super::*;
use crate::fixture::{MemoryFixture, run_tool};

#[tokio::test]
async fn a_person_is_shown_what_is_erased() {
    let fixture = MemoryFixture::new();
    let tool = MemoryForget(fixture.brain.clone());
    let old = fixture.save("The user lives in Bonn.", Source::Agent, None).await;
    let new = fixture.save("The user lives in Kiel.\u{202e}", Source::User, Some(old)).await;
    let expected = format!(
        "Erase this from memory for good, with another statement that goes with it?\n\n\
         {new} (1970-01-01, the user saved):\n> The user lives in Kiel.\\u{{202e}}\n\n\
         {old} (1970-01-01, you noted):\n> The user lives in Bonn."
    );
    assert_eq!(tool.approval_prompt(&json!({"id": new})), expected);
    assert!(tool.approval_prompt(&json!({"id": "mem_7"})).contains("there is no such record"));
    assert!(tool.approval_prompt(&json!({})).starts_with("Allow `memory_forget`"));
    assert_eq!((tool.permission(), tool.needs_turn()), (Permission::Ask, true));

    let input = json!({"id": new});
    let invocation = Invocation {
        call_id: api::CallId::new(),
        at: api::Timestamp::from_unix_ms(0),
        task: None,
        input: input.clone(),
        answers: Vec::new(),
    };
    let ToolStep::Done(output) = with_deadline(tool.run(invocation)).await.unwrap() else { panic!("asks") };
    assert_eq!(output.knowledge, Some(KnowledgeChange::Forget(new)));
    assert!(output.text.starts_with("erased, with another statement that goes with it. "));
    // What was replaced is erased with what took its place.
    let error = run_tool(&tool, json!({"id": old})).await.unwrap_err();
    assert!(error.to_string().contains(&format!("since {new} took its place")), "{error}");
    for id in ["", "mem_7", "mem_zzzzzzzzzzzzzzzzzzzzzzzzzz"] {
        let error = run_tool(&tool, json!({"id": id})).await.unwrap_err();
        assert!(error.to_string().contains("memory_search"), "{error}");
    }
}
