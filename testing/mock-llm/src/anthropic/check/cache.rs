//! The rules of cache marks: their form, their number and the order of their lifetimes
//! (<https://platform.claude.com/docs/en/build-with-claude/prompt-caching>). The checks of the blocks decide which
//! blocks may have one.

use serde_json::Value;

use super::super::node::Node;
use crate::protocol::ApiError;

const MAX_MARKS: usize = 4;

/// Checks all marks of a request. The API processes `tools`, `system` and `messages` in this order. A mark on the
/// request itself counts as one on the last block.
pub(super) fn check(root: &Node<'_>) -> Result<(), ApiError> {
    let mut marks = Vec::new();
    for part in ["tools", "system", "messages"] {
        if let Some(part) = root.member(part) {
            collect(&part, &mut marks);
        }
    }
    marks.extend(root.member("cache_control"));

    let mut short_seen = false;
    for mark in &marks {
        mark.only(&["type", "ttl"])?;
        mark.tag(&["ephemeral"])?;
        let ttl = mark.member("ttl").map_or(Ok("5m"), |ttl| ttl.one_of(&["5m", "1h"]))?;
        if ttl == "1h" && short_seen {
            return Err(mark.error(
                "a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block. Note that \
                 blocks are processed in the following order: `tools`, `system`, `messages`.",
            ));
        }
        short_seen |= ttl == "5m";
    }
    if marks.len() > MAX_MARKS {
        return Err(ApiError::invalid(format!(
            "A maximum of {MAX_MARKS} blocks with cache_control may be provided. Found {}.",
            marks.len()
        )));
    }
    Ok(())
}

/// Collects the marks of the objects in a list and of the lists in their `content`. Nothing else is searched,
/// because tool schemas and inputs may have a member of that name that is not a mark.
fn collect<'a>(list: &Node<'a>, marks: &mut Vec<Node<'a>>) {
    if !matches!(list.value, Value::Array(_)) {
        return;
    }
    for item in list.list().unwrap_or_default() {
        marks.extend(item.member("cache_control"));
        if let Some(content) = item.member("content") {
            collect(&content, marks);
        }
    }
}
