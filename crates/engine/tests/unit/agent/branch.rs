//! What a branch accepts into working memory.

use serde_json::{Value, json};

use super::*;

#[test]
fn memory_that_is_over_its_bound_already_can_be_made_smaller() {
    let write = |key: &str, value: Value| MemoryWrite { key: key.into(), value };
    let mut branch = Branch::default();
    // The state that a version without a limit may have left.
    for key in ["a", "b", "c"] {
        branch.record_memory_write(write(key, json!("x".repeat(MAX_WORKING_MEMORY_BYTES / 2))));
    }
    assert!(branch.has_room_for(&[write("a", Value::Null)]));
    assert!(branch.has_room_for(&[write("a", json!("shorter"))]));
    assert!(!branch.has_room_for(&[write("d", json!("more"))]));
    for key in ["a", "b"] {
        branch.record_memory_write(write(key, Value::Null));
    }
    assert!(branch.has_room_for(&[write("d", json!("more"))]));
}
