//! The bounds of what a request sets for its turn.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn refusal(fields: Value) -> String {
    serde_json::from_value::<TurnOverrides>(fields).unwrap_err().to_string()
}

#[test]
fn what_is_absent_or_null_is_not_set() {
    for fields in [json!({}), json!({"model": null, "metadata": null, "allowed_tools": null})] {
        assert!(serde_json::from_value::<TurnOverrides>(fields).unwrap().is_empty());
    }
    assert_eq!(serde_json::to_value(TurnOverrides::default()).unwrap(), json!({}));
    // No tool at all is a choice, too.
    let none: TurnOverrides = serde_json::from_value(json!({"allowed_tools": []})).unwrap();
    assert!(!none.is_empty() && none.allowed_tools.is_some_and(|tools| tools.is_empty()));
}

#[test]
fn options_are_bounded() {
    let entries = |count: usize| (0..count).map(|at| (at.to_string(), json!("x"))).collect::<Value>();
    for (fields, says) in [
        (json!({"effort": "enormous"}), "unknown variant"),
        (json!({"instructions": " \n"}), "not all of them blank"),
        (json!({"instructions": "x".repeat(16 * 1024 + 1)}), "16,384 bytes"),
        (json!({"allowed_tools": [""]}), "a tool's name"),
        (json!({"allowed_tools": vec!["a"; 129]}), "at most 128"),
        (json!({"max_output_tokens": 255}), "at least 256"),
        (json!({"max_tokens": 0}), "at least 1"),
        (json!({"max_cost_usd": 0}), "above 0"),
        (json!({"max_cost_usd": -1.5}), "above 0"),
        (json!({"metadata": entries(17)}), "at most 16"),
        (json!({"metadata": {"": "x"}}), "1 to 64"),
        (json!({"metadata": {"k".repeat(65): "x"}}), "1 to 64"),
        (json!({"metadata": {"k": "ü".repeat(513)}}), "at most 512"),
        (json!({"metadata": {"k": 1}}), "a string"),
    ] {
        let refusal = refusal(fields.clone());
        assert!(refusal.contains(says), "{fields}: {refusal}");
    }
    let most = json!({
        "instructions": "x".repeat(16 * 1024), "allowed_tools": vec!["a*"; 128],
        "metadata": {"k".repeat(64): "ü".repeat(512)},
    });
    assert!(serde_json::from_value::<TurnOverrides>(most).is_ok());
}

proptest! {
    #[test]
    fn metadata_reads_back(entries in prop::collection::btree_map(".{1,8}", ".{0,16}", 0..=16)) {
        let metadata = Metadata::try_from(entries).unwrap();
        let json = serde_json::to_string(&metadata).unwrap();
        prop_assert_eq!(serde_json::from_str::<Metadata>(&json).unwrap(), metadata);
    }
}
