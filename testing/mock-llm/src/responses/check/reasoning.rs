//! Reasoning items come back as they were issued, with what followed them, and what followed them comes back
//! with its reasoning (<https://platform.openai.com/docs/guides/reasoning>). The refusals are quoted in
//! <https://github.com/openai/codex/issues/8145>, <https://github.com/vercel/ai/issues/7099> and
//! <https://github.com/continuedev/continue/issues/11994>.

use axum::http::StatusCode;

use super::super::error::{mismatched_item_id, unverified_content};
use super::super::read::{item_type, text_member};
use crate::issued::{BlockLocation, IssuedAnswers, IssuedBlock, IssuedItem, ItemKind};
use crate::openai::node::Node;
use crate::protocol::ApiError;

pub(super) fn check(items: &[Node<'_>], model: &str, ledger: &IssuedAnswers) -> Result<(), ApiError> {
    for (index, item) in items.iter().enumerate() {
        let before = items.get(..index).unwrap_or_default();
        match item_type(item.value) {
            "reasoning" => {
                let place = check_issued(item, model, ledger)?;
                check_followed(item, items.get(index + 1), place, ledger)?;
            }
            "message" | "function_call" => check_has_reasoning(item, before, ledger)?,
            _ => {}
        }
    }
    Ok(())
}

/// A reasoning item is one that was issued, for this model, and can be read again: from its encrypted content
/// or from what the vendor kept.
fn check_issued(item: &Node<'_>, model: &str, ledger: &IssuedAnswers) -> Result<BlockLocation, ApiError> {
    let id = text_member(item.value, "id");
    let Some(encrypted) = item.member("encrypted_content") else {
        return match ledger.find_item(id).map(|place| (place, issued_item(place, ledger))) {
            Some((place, Some(issued))) if issued.is_stored => Ok(place),
            _ => Err(not_persisted(id)),
        };
    };
    let encrypted = encrypted.string()?;
    let place = ledger.find_sealed(encrypted).ok_or_else(|| unverified_content(encrypted))?;
    match (issued_item(place, ledger), ledger.answer(place)) {
        (Some(issued), Some(answer)) if answer.model == model => {
            if issued.id == id {
                Ok(place)
            } else {
                Err(mismatched_item_id(id))
            }
        }
        _ => Err(unverified_content(encrypted)),
    }
}

/// Behind a reasoning item stands what the model made of it.
fn check_followed(
    item: &Node<'_>,
    next: Option<&Node<'_>>,
    place: BlockLocation,
    ledger: &IssuedAnswers,
) -> Result<(), ApiError> {
    let following = issued_item(BlockLocation { block: place.block + 1, ..place }, ledger);
    let is_there = match (following, next) {
        (Some(following), Some(next)) => is_same_item(following, next),
        _ => false,
    };
    if is_there {
        return Ok(());
    }
    let id = text_member(item.value, "id");
    Err(ApiError::invalid(format!(
        "Item '{id}' of type 'reasoning' was provided without its required following item."
    ))
    .with_param("input"))
}

/// Whether an input item may be the issued one. Ids may be left out, except those of reasoning.
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

/// An item that is given with its id was made from the reasoning before it in its answer.
fn check_has_reasoning(item: &Node<'_>, before: &[Node<'_>], ledger: &IssuedAnswers) -> Result<(), ApiError> {
    let id = text_member(item.value, "id");
    let Some(place) = ledger.find_item(id) else { return Ok(()) };
    let earlier =
        (0..place.block).rev().filter_map(|block| issued_item(BlockLocation { block, ..place }, ledger));
    let Some(reasoning) = earlier.into_iter().find(|issued| issued.is_reasoning()) else { return Ok(()) };
    if before.iter().any(|given| text_member(given.value, "id") == reasoning.id) {
        return Ok(());
    }
    Err(ApiError::invalid(format!(
        "Item '{id}' of type '{}' was provided without its required 'reasoning' item: '{}'.",
        item_type(item.value),
        reasoning.id
    ))
    .with_param("input"))
}

fn issued_item(place: BlockLocation, ledger: &IssuedAnswers) -> Option<&IssuedItem> {
    match ledger.block(place)? {
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
