//! Thinking: its configuration, and the blocks that a client brings back
//! (<https://platform.claude.com/docs/en/build-with-claude/extended-thinking>).
//!
//! A block must be one that this provider issued, for the model that is asked now, byte for byte and
//! in its place. Within the tool loop that is under way all blocks must be there. The newest models drop
//! a block of another model without a word; here it is refused, or nobody would notice that a client
//! sends it.

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

/// What a request asks of thinking.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ThinkingConfig {
    /// Nothing.
    Off,
    /// A token budget. Only here must a turn begin with thinking.
    Budget,
    /// Thinking as the model sees fit.
    Adaptive,
}

/// Checks `thinking` and tells what it asks for.
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
    // With interleaved thinking the budget is that of a whole turn of several answers.
    let is_for_whole_turn = has_beta(headers, "interleaved-thinking") && root.member("tools").is_some();
    if !is_for_whole_turn && root.required("max_tokens")?.integer()? <= budget.integer()? {
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

/// The index of the first message behind the last user message without a tool result. Text next to a
/// result does not begin a new turn.
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

/// A turn that was begun with a budget must begin with thinking. A later answer of the same turn need
/// not, unless it did when it was issued, which [`check_complete`] finds.
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

/// An assistant message's blocks and where the provider issued them.
struct AssistantContent<'a> {
    message: &'a Node<'a>,
    blocks: Vec<ReturnedBlock>,
}

/// A block of a request.
struct ReturnedBlock {
    path: String,
    block: Value,
    location: Option<BlockLocation>,
}

impl<'a> AssistantContent<'a> {
    fn read(message: &'a Node<'a>, ledger: &IssuedAnswers) -> Self {
        let content = message.value.get("content").map(blocks).unwrap_or_default();
        let returned = content.into_iter().enumerate().map(|(index, block)| ReturnedBlock {
            path: format!("{}.content.{index}", message.path),
            location: locate(&block, ledger),
            block,
        });
        Self { message, blocks: returned.collect() }
    }

    fn sealed(&self) -> impl Iterator<Item = &ReturnedBlock> {
        self.blocks.iter().filter(|block| block.is_sealed())
    }

    /// The refusal of the block at this index.
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

fn locate(block: &Value, ledger: &IssuedAnswers) -> Option<BlockLocation> {
    let member = |name: &str| block.get(name).and_then(Value::as_str);
    match block_type(block) {
        "thinking" => ledger.find_sealed(member("signature")?),
        "redacted_thinking" => ledger.find_sealed(member("data")?),
        "tool_use" => ledger.find_tool_use(member("id")?),
        _ => None,
    }
}

/// A sealed block is one that was issued, unchanged and for this model.
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
    let place = returned.location;
    let (Some(issued), Some(answer)) = (
        place.and_then(|place| context.issued.block(place)),
        place.and_then(|place| context.issued.answer(place)),
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

/// What has changed before an answer since it was made, when the provider binds thinking.
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

/// "The entire sequence of consecutive thinking blocks must match": blocks of an answer keep their
/// order, and each sealed block keeps its neighbour before it.
fn check_order(content: &AssistantContent<'_>, ledger: &IssuedAnswers) -> Result<(), ApiError> {
    let mut last: Option<BlockLocation> = None;
    for (index, returned) in content.blocks.iter().enumerate() {
        let Some(place) = returned.location else { continue };
        if last.is_some_and(|last| last.answer == place.answer && last.block >= place.block) {
            return Err(content.modified_error(index));
        }
        last = Some(place);
        let before = index.checked_sub(1).and_then(|before| content.blocks.get(before));
        if returned.is_sealed() && !has_same_neighbour(place, before, ledger) {
            return Err(content.modified_error(index));
        }
    }
    Ok(())
}

/// Whether a sealed block follows what it followed when it was issued. Blank text between is no
/// neighbour: the vendor refuses to take it back.
fn has_same_neighbour(place: BlockLocation, before: Option<&ReturnedBlock>, ledger: &IssuedAnswers) -> bool {
    let issued_before = ledger.answer(place).and_then(|answer| {
        let earlier = answer.blocks.iter().take(place.block);
        earlier.rev().find(|block| !matches!(block, IssuedBlock::Text { is_blank: true }))
    });
    let same_answer_before = before.filter(|before| before.is_sealed()).and_then(|before| before.location);
    match issued_before {
        None => before.is_none(),
        Some(issued) if issued.seal().is_some() => {
            same_answer_before.and_then(|place| ledger.block(place)) == Some(issued)
        }
        Some(_) => before.is_some_and(|before| !before.is_sealed()),
    }
}

/// A message with a tool call that was issued together with thinking still has all of it.
fn check_complete(content: &AssistantContent<'_>, ledger: &IssuedAnswers) -> Result<(), ApiError> {
    let Some(call) =
        content.blocks.iter().filter(|block| !block.is_sealed()).find_map(|block| block.location)
    else {
        return Ok(());
    };
    let issued = ledger.answer(call).map_or(&[][..], |answer| &answer.blocks);
    let issued_seals: Vec<usize> = (0..issued.len())
        .filter(|index| issued.get(*index).is_some_and(|block| block.seal().is_some()))
        .collect();
    for block in issued_seals {
        let is_there = content
            .sealed()
            .any(|sealed| sealed.location == Some(BlockLocation { answer: call.answer, block }));
        if !is_there {
            return Err(content.modified_error(block));
        }
    }
    Ok(())
}
