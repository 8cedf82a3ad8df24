//! The rules of reasoning items (<https://platform.openai.com/docs/guides/reasoning>): they must be sent back
//! unchanged and with the item that followed them, and that item must be sent back with its reasoning. The
//! refusals are quoted in <https://github.com/openai/codex/issues/8145>,
//! <https://github.com/vercel/ai/issues/7099> and <https://github.com/continuedev/continue/issues/11994>.

use axum::http::StatusCode;

use super::super::error::{mismatched_item_id, unverified_content};
use super::super::read::{item_type, text_member};
use crate::issued::{BlockLocation, IssuedAnswers, IssuedBlock, IssuedItem, ItemKind};
use crate::openai::node::Node;
use crate::protocol::ApiError;

pub(super) fn check(items: &[Node<'_>], model: &str, issued_answers: &IssuedAnswers) -> Result<(), ApiError> {
    for (index, item) in items.iter().enumerate() {
        let before = items.get(..index).unwrap_or_default();
        match item_type(item.value) {
            "reasoning" => {
                let location = check_issued(item, model, issued_answers)?;
                check_followed(item, items.get(index + 1), location, issued_answers)?;
            }
            "message" | "function_call" => check_has_reasoning(item, before, issued_answers)?,
            _ => {}
        }
    }
    Ok(())
}

/// Checks that a reasoning item was issued for this model, and that it can be restored from its encrypted content
/// or from the vendor's storage.
fn check_issued(
    item: &Node<'_>,
    model: &str,
    issued_answers: &IssuedAnswers,
) -> Result<BlockLocation, ApiError> {
    let id = text_member(item.value, "id");
    let Some(encrypted) = item.member("encrypted_content") else {
        return match issued_answers
            .find_item(id)
            .map(|location| (location, issued_item(location, issued_answers)))
        {
            Some((location, Some(issued))) if issued.is_stored => Ok(location),
            _ => Err(not_persisted(id)),
        };
    };
    let encrypted = encrypted.string()?;
    let location = issued_answers.find_sealed(encrypted).ok_or_else(|| unverified_content(encrypted))?;
    match (issued_item(location, issued_answers), issued_answers.answer(location)) {
        (Some(issued), Some(answer)) if answer.model == model => {
            if issued.id == id {
                Ok(location)
            } else {
                Err(mismatched_item_id(id))
            }
        }
        _ => Err(unverified_content(encrypted)),
    }
}

/// Checks that a reasoning item is followed by the same item as in its answer.
fn check_followed(
    item: &Node<'_>,
    next: Option<&Node<'_>>,
    location: BlockLocation,
    issued_answers: &IssuedAnswers,
) -> Result<(), ApiError> {
    let following = issued_item(BlockLocation { block: location.block + 1, ..location }, issued_answers);
    let is_followed = match (following, next) {
        (Some(following), Some(next)) => is_same_item(following, next),
        _ => false,
    };
    if is_followed {
        return Ok(());
    }
    let id = text_member(item.value, "id");
    Err(ApiError::invalid(format!(
        "Item '{id}' of type 'reasoning' was provided without its required following item."
    ))
    .with_param("input"))
}

/// Whether an input item matches an issued one. Ids are optional, except those of reasoning items.
fn is_same_item(issued: &IssuedItem, item: &Node<'_>) -> bool {
    let has_kind = match issued.kind {
        ItemKind::Reasoning { .. } => item_type(item.value) == "reasoning",
        ItemKind::Message => {
            item_type(item.value) == "message" && text_member(item.value, "role") == "assistant"
        }
        ItemKind::FunctionCall => item_type(item.value) == "function_call",
    };
    has_kind && item.member("id").is_none_or(|id| id.value == issued.id.as_str())
}

/// Checks that an item with an id comes after the reasoning that preceded it in its answer.
fn check_has_reasoning(
    item: &Node<'_>,
    before: &[Node<'_>],
    issued_answers: &IssuedAnswers,
) -> Result<(), ApiError> {
    let id = text_member(item.value, "id");
    let Some(location) = issued_answers.find_item(id) else { return Ok(()) };
    let earlier = (0..location.block)
        .rev()
        .filter_map(|block| issued_item(BlockLocation { block, ..location }, issued_answers));
    let Some(reasoning) = earlier.into_iter().find(|issued| issued.is_reasoning()) else { return Ok(()) };
    if before.iter().any(|earlier| text_member(earlier.value, "id") == reasoning.id) {
        return Ok(());
    }
    Err(ApiError::invalid(format!(
        "Item '{id}' of type '{}' was provided without its required 'reasoning' item: '{}'.",
        item_type(item.value),
        reasoning.id
    ))
    .with_param("input"))
}

fn issued_item(location: BlockLocation, issued_answers: &IssuedAnswers) -> Option<&IssuedItem> {
    match issued_answers.block(location)? {
        IssuedBlock::Item(item) => Some(item),
        _ => None,
    }
}

fn not_persisted(id: &str) -> ApiError {
    let message = format!(
        "Item with id '{id}' not found. Items are not persisted when `store` is set to false. Try again with `store` \
         set to true, or remove this item from your input."
    );
    ApiError::new(StatusCode::NOT_FOUND, "invalid_request_error", message).with_param("input")
}
