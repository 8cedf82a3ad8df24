//! Rules for the tool calls of every answer, independent of the protocol.

use std::collections::HashSet;

use api::tool_names;

use super::{Answer, Block, ToolUse};

/// Removes calls that a provider sent twice, and makes the names of the others valid for sending them back.
pub(super) fn normalize_calls(answer: &mut Answer) {
    let mut seen = HashSet::new();
    answer.blocks.retain_mut(|block| match block {
        Block::ToolUse(call) => {
            sanitize_name(call);
            seen.insert((call.provider_id.clone(), call.name.clone(), call.input.to_string()))
        }
        _ => true,
    });
}

/// Replaces an invalid tool name. A model may call something that is not one of its tools, such as
/// `multi_tool_use.parallel`. Vendors would refuse such a name in every later request, and under another name the
/// call must not run, because the model did not call that tool.
fn sanitize_name(call: &mut ToolUse) {
    if tool_names::is_valid(&call.name) {
        return;
    }
    let reason = format!("there is no tool called `{}`", call.name);
    call.broken.get_or_insert(reason);
    let sanitized: String = call
        .name
        .chars()
        .map(|character| if tool_names::is_valid_char(character) { character } else { '_' })
        .take(tool_names::MAX_BYTES)
        .collect();
    call.name = if sanitized.is_empty() { "unnamed".to_owned() } else { sanitized };
}

#[cfg(test)]
mod tests {
    use api::CallId;
    use serde_json::json;

    use super::*;

    fn call(id: &str, name: &str, number: u8) -> Block {
        let (provider_id, input) = (id.to_owned(), json!({"of": number}));
        let name = name.to_owned();
        Block::ToolUse(ToolUse {
            call_id: CallId::new(),
            provider_id,
            name,
            input,
            signature: None,
            broken: None,
        })
    }

    #[test]
    fn a_call_that_is_told_twice_is_one() {
        let blocks = vec![
            call("a", "t", 1),
            call("b", "t", 1),
            call("a", "t", 1),
            call("a", "t", 2),
            call("a", "u", 1),
        ];
        let mut answer = Answer { blocks: blocks.clone(), ..Answer::default() };
        normalize_calls(&mut answer);
        let kept: Vec<Block> = [0, 1, 3, 4].iter().map(|at: &usize| blocks[*at].clone()).collect();
        assert_eq!(answer.blocks, kept);
    }

    #[test]
    fn a_name_that_no_tool_can_have_can_be_sent_back_and_is_not_run() {
        let long = "x".repeat(65);
        for (name, kept) in [
            ("multi_tool_use.parallel", "multi_tool_use_parallel"),
            ("", "unnamed"),
            ("größer", "gr__er"),
            (&long, &long[..64]),
        ] {
            let mut answer = Answer { blocks: vec![call("a", name, 1)], ..Answer::default() };
            normalize_calls(&mut answer);
            let call = answer.calls().next().unwrap();
            assert!(call.name == kept && tool_names::is_valid(kept), "{name}: {call:?}");
            assert!(call.broken.as_ref().is_some_and(|reason| reason.contains(name)), "{name}: {call:?}");
        }
        let mut answer = Answer { blocks: vec![call("a", "read_file-2", 1)], ..Answer::default() };
        let before = answer.clone();
        normalize_calls(&mut answer);
        assert_eq!(answer, before);
    }
}
