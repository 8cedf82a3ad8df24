//! The rules of thinking: its configuration, and the blocks that a client sends back
//! (<https://platform.claude.com/docs/en/build-with-claude/extended-thinking>).
//!
//! A block must have been issued by this provider, for the requested model, and must be unchanged and in its
//! original position. Within the current tool loop all blocks must be present. The newest models silently drop
//! blocks of another model; here they are refused, because otherwise tests would not notice that a client sends
//! them.

use axum::http::HeaderMap;
use serde_json::Value;

use super::super::has_beta;
use super::super::node::{Node, block_type, blocks};
use super::super::prefix::prefix;
use super::content::role;
use crate::issued::{BlockLocation, IssuedAnswer, IssuedAnswers, IssuedBlock};
use crate::protocol::{ApiError, Context, IncomingRequest};

const MIN_BUDGET_TOKENS: i64 = 1024;
const MODIFIED_MESSAGE: &str = "`thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified. \
                        These blocks must remain as they were in the original response.";

/// The thinking that a request asks for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ThinkingConfig {
    /// No thinking.
    Off,
    /// Thinking with a token budget. Only then must a turn begin with thinking.
    Budget,
    /// The model decides how much it thinks.
    Adaptive,
}

/// Checks `thinking` and returns what it asks for.
pub(super) fn check_config(root: &Node<'_>, headers: &HeaderMap) -> Result<ThinkingConfig, ApiError> {
    let Some(config) = root.member("thinking") else { return Ok(ThinkingConfig::Off) };
    let kind = config.tag(&["adaptive", "between_tools", "disabled", "enabled"])?;
    let config = config.as_variant(kind);
    let mut known = vec!["type"];
    if matches!(kind, "adaptive" | "enabled") {
        known.push("display");
        if has_beta(headers, "thinking-binding-controls") {
            known.push("block_binding");
        }
    }
    if kind == "enabled" {
        known.push("budget_tokens");
    }
    config.only(&known)?;
    if let Some(display) = config.member("display") {
        display.one_of(&["summarized", "omitted"])?;
    }
    match kind {
        "disabled" => Ok(ThinkingConfig::Off),
        "enabled" => check_budget(root, &config, headers),
        _ => Ok(ThinkingConfig::Adaptive),
    }
}

fn check_budget(root: &Node<'_>, config: &Node<'_>, headers: &HeaderMap) -> Result<ThinkingConfig, ApiError> {
    let budget = config.required("budget_tokens")?;
    if budget.integer()? < MIN_BUDGET_TOKENS {
        return Err(budget.error(&format!("Input should be greater than or equal to {MIN_BUDGET_TOKENS}")));
    }
    // With interleaved thinking, the budget applies to a whole turn of several answers.
    let is_turn_budget = has_beta(headers, "interleaved-thinking") && root.member("tools").is_some();
    if !is_turn_budget && root.required("max_tokens")?.integer()? <= budget.integer()? {
        return Err(ApiError::invalid(
            "`max_tokens` must be greater than `thinking.budget_tokens`. Please consult our documentation at \
             https://docs.claude.com/en/docs/build-with-claude/extended-thinking#max-tokens-and-context-window-size",
        ));
    }
    Ok(ThinkingConfig::Budget)
}

/// Checks the thinking blocks of all messages.
pub(super) fn check_blocks(
    request: &IncomingRequest,
    messages: &[Node<'_>],
    thinking: ThinkingConfig,
    context: &Context<'_>,
) -> Result<(), ApiError> {
    let loop_start = start_of_tool_loop(messages);
    if thinking == ThinkingConfig::Budget {
        check_turn_begins_with_thinking(messages, loop_start)?;
    }
    for (index, message) in messages.iter().enumerate() {
        if role(message) != "assistant" {
            continue;
        }
        let returned = AssistantContent::read(message, context.issued);
        for block in returned.sealed() {
            check_issued(block, request, index, context)?;
        }
        check_order(&returned, context.issued)?;
        if thinking != ThinkingConfig::Off && index >= loop_start {
            check_complete(&returned, context.issued)?;
        }
    }
    Ok(())
}

/// The index of the first message after the last user message without a tool result. Text next to a result does
/// not begin a new turn.
fn start_of_tool_loop(messages: &[Node<'_>]) -> usize {
    let has_result = |message: &Node<'_>| {
        let content = message.value.get("content").map(blocks).unwrap_or_default();
        content.iter().any(|block| block_type(block) == "tool_result")
    };
    messages
        .iter()
        .rposition(|message| role(message) == "user" && !has_result(message))
        .map_or(0, |index| index + 1)
}

/// Checks that a turn with a budget begins with thinking. A later answer of the same turn need not, unless it did
/// when it was issued, which [`check_complete`] checks.
fn check_turn_begins_with_thinking(messages: &[Node<'_>], loop_start: usize) -> Result<(), ApiError> {
    let Some(message) = messages.get(loop_start).filter(|message| role(message) == "assistant") else {
        return Ok(());
    };
    let content = message.value.get("content").map(blocks).unwrap_or_default();
    let first = content.first().map(block_type).unwrap_or_default();
    let calls_tool = content.iter().any(|block| block_type(block) == "tool_use");
    if !calls_tool || matches!(first, "thinking" | "redacted_thinking") {
        return Ok(());
    }
    Err(ApiError::invalid(format!(
        "{}.content.0.type: Expected `thinking` or `redacted_thinking`, but found `{first}`. When `thinking` is enabled, \
         a final `assistant` message must start with a thinking block (preceeding the lastmost set of `tool_use` and \
         `tool_result` blocks). We recommend you include thinking blocks from previous turns. To avoid this \
         requirement, disable `thinking`. Please consult our documentation at \
         https://docs.claude.com/en/docs/build-with-claude/extended-thinking",
        message.path
    )))
}

/// The blocks of an assistant message, with their locations in the issued answers.
struct AssistantContent<'a> {
    message: &'a Node<'a>,
    blocks: Vec<ReturnedBlock>,
}

/// A block that a client sends back.
struct ReturnedBlock {
    path: String,
    block: Value,
    location: Option<BlockLocation>,
}

impl<'a> AssistantContent<'a> {
    fn read(message: &'a Node<'a>, issued_answers: &IssuedAnswers) -> Self {
        let content = message.value.get("content").map(blocks).unwrap_or_default();
        let returned = content.into_iter().enumerate().map(|(index, block)| ReturnedBlock {
            path: format!("{}.content.{index}", message.path),
            location: locate(&block, issued_answers),
            block,
        });
        Self { message, blocks: returned.collect() }
    }

    fn sealed(&self) -> impl Iterator<Item = &ReturnedBlock> {
        self.blocks.iter().filter(|block| block.is_sealed())
    }

    /// The error for a modified block at this index.
    fn modified_error(&self, index: usize) -> ApiError {
        ApiError::invalid(format!("{}.content.{index}: {MODIFIED_MESSAGE}", self.message.path))
    }
}

impl ReturnedBlock {
    fn is_sealed(&self) -> bool {
        matches!(block_type(&self.block), "thinking" | "redacted_thinking")
    }

    fn text(&self, member: &str) -> &str {
        self.block.get(member).and_then(Value::as_str).unwrap_or_default()
    }
}

fn locate(block: &Value, issued_answers: &IssuedAnswers) -> Option<BlockLocation> {
    let member = |name: &str| block.get(name).and_then(Value::as_str);
    match block_type(block) {
        "thinking" => issued_answers.find_sealed(member("signature")?),
        "redacted_thinking" => issued_answers.find_sealed(member("data")?),
        "tool_use" => issued_answers.find_tool_use(member("id")?),
        _ => None,
    }
}

/// Checks that a sealed block was issued for this model and is unchanged.
fn check_issued(
    returned: &ReturnedBlock,
    request: &IncomingRequest,
    index: usize,
    context: &Context<'_>,
) -> Result<(), ApiError> {
    let kind = block_type(&returned.block);
    let refuse = |detail: &str| {
        let member = if kind == "thinking" { "signature" } else { "data" };
        Err(ApiError::invalid(format!("{}: Invalid `{member}` in `{kind}` block{detail}", returned.path)))
    };
    let location = returned.location;
    let (Some(issued), Some(answer)) = (
        location.and_then(|location| context.issued.block(location)),
        location.and_then(|location| context.issued.answer(location)),
    ) else {
        return refuse("");
    };
    let is_same = match issued {
        IssuedBlock::Thinking { text, .. } => kind == "thinking" && text == returned.text("thinking"),
        IssuedBlock::Redacted { .. } => kind == "redacted_thinking",
        _ => false,
    };
    if !is_same || answer.model != request.model() {
        return refuse("");
    }
    match changed_prefix_part(answer, request, index) {
        None => Ok(()),
        Some(part) => refuse(&format!(
            ". The block is bound to a different conversation. Remove the block, or set \
             `thinking.block_binding.prefix_mismatch_behavior` to \"drop_block\". That setting requires the \
             `thinking-binding-controls-2026-08-01` value in the `anthropic-beta` header. The {part} the one this \
             block was created with."
        )),
    }
}

/// The part of the conversation before an answer that has changed since the answer was issued. `None` if nothing
/// has, or if the provider does not bind thinking.
fn changed_prefix_part(
    answer: &IssuedAnswer,
    request: &IncomingRequest,
    index: usize,
) -> Option<&'static str> {
    let before = answer.prefix.as_ref()?;
    let behavior = request.body.pointer("/thinking/block_binding/prefix_mismatch_behavior");
    if behavior.and_then(Value::as_str) == Some("drop_block") {
        return None;
    }
    let now = prefix(&request.body, index);
    if now.system != before.system {
        return Some("`system` prompt differs from");
    }
    if now.tools != before.tools {
        return Some("`tools` list differs from");
    }
    (now.messages != before.messages).then_some("list of earlier messages differs from")
}

/// Checks that "the entire sequence of consecutive thinking blocks" matches: the blocks of an answer keep their
/// order, and each sealed block keeps its predecessor.
fn check_order(content: &AssistantContent<'_>, issued_answers: &IssuedAnswers) -> Result<(), ApiError> {
    let mut last: Option<BlockLocation> = None;
    for (index, returned) in content.blocks.iter().enumerate() {
        let Some(location) = returned.location else { continue };
        if last.is_some_and(|last| last.answer == location.answer && last.block >= location.block) {
            return Err(content.modified_error(index));
        }
        last = Some(location);
        let before = index.checked_sub(1).and_then(|before| content.blocks.get(before));
        if returned.is_sealed() && !has_same_neighbour(location, before, issued_answers) {
            return Err(content.modified_error(index));
        }
    }
    Ok(())
}

/// Whether a sealed block has the same predecessor as when it was issued. Blank text does not count, because the
/// vendor refuses it in requests.
fn has_same_neighbour(
    location: BlockLocation,
    before: Option<&ReturnedBlock>,
    issued_answers: &IssuedAnswers,
) -> bool {
    let issued_before = issued_answers.answer(location).and_then(|answer| {
        let earlier = answer.blocks.iter().take(location.block);
        earlier.rev().find(|block| !matches!(block, IssuedBlock::Text { is_blank: true }))
    });
    let same_answer_before = before.filter(|before| before.is_sealed()).and_then(|before| before.location);
    match issued_before {
        None => before.is_none(),
        Some(issued) if issued.seal().is_some() => {
            same_answer_before.and_then(|location| issued_answers.block(location)) == Some(issued)
        }
        Some(_) => before.is_some_and(|before| !before.is_sealed()),
    }
}

/// Checks that a message with an issued tool call still has all the thinking of its answer.
fn check_complete(content: &AssistantContent<'_>, issued_answers: &IssuedAnswers) -> Result<(), ApiError> {
    let Some(call) =
        content.blocks.iter().filter(|block| !block.is_sealed()).find_map(|block| block.location)
    else {
        return Ok(());
    };
    let issued = issued_answers.answer(call).map_or(&[][..], |answer| &answer.blocks);
    let issued_seals: Vec<usize> = (0..issued.len())
        .filter(|index| issued.get(*index).is_some_and(|block| block.seal().is_some()))
        .collect();
    for block in issued_seals {
        let is_present = content
            .sealed()
            .any(|sealed| sealed.location == Some(BlockLocation { answer: call.answer, block }));
        if !is_present {
            return Err(content.modified_error(block));
        }
    }
    Ok(())
}
