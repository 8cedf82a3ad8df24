//! Token budgets: what a turn may still spend, and what current calls have reserved of it.
//!
//! Turns of many tasks share the hourly and daily budgets. A call's maximum cost is reserved for its duration,
//! atomically with reading the balance, so that concurrent calls cannot exceed together what each of them would
//! respect alone.

use std::sync::Arc;
use std::time::Duration;

use api::Timestamp;
use llm::{Budgets, Route};
use parking_lot::{Mutex, MutexGuard};
use store::Brain;

use super::conversation::Conversation;
use super::interrupt::Interrupt;
use super::turn_context::TurnDeps;
use super::{Services, turn_end, turn_overrides};

/// The total that current calls may cost, in tokens.
#[derive(Default)]
pub(crate) struct Reservations(Mutex<u64>);

/// The maximum cost of one call. Dropped when its actual cost is recorded.
pub(super) struct Reservation {
    reservations: Arc<Reservations>,
    tokens: u64,
}

/// The size that an answer may have.
pub(super) struct Allowance {
    /// In tokens; `None` if only the model itself limits it.
    pub(super) max_tokens: Option<u64>,
    /// Whether that is less than the model's own limit.
    pub(super) is_reduced: bool,
    _reservation: Option<Reservation>,
}

impl Reservations {
    fn lock(&self) -> MutexGuard<'_, u64> {
        self.0.lock()
    }

    /// Reserves the cost of an answer of at most `max_tokens` tokens to a prompt of `prompt` tokens out of `left`;
    /// `None` if that leaves less than `min_tokens`. `others` is the locked total of the reservations.
    fn reserve(
        self: &Arc<Self>,
        others: &mut u64,
        left: Option<u64>,
        prompt: u64,
        (max_tokens, min_tokens): (u64, u64),
    ) -> Option<Allowance> {
        let Some(left) = left else {
            return Some(Allowance { max_tokens: None, is_reduced: false, _reservation: None });
        };
        let available = left.saturating_sub(prompt);
        if available < min_tokens {
            return None;
        }
        let granted = available.min(max_tokens);
        let tokens = prompt + granted;
        *others += tokens;
        let reservation = Reservation { reservations: Arc::clone(self), tokens };
        Some(Allowance {
            max_tokens: Some(granted),
            is_reduced: available < max_tokens,
            _reservation: Some(reservation),
        })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut tokens = self.reservations.lock();
        *tokens = tokens.saturating_sub(self.tokens);
    }
}

/// Reserves an answer of at most `max_tokens` tokens for a model call outside any turn; `None` if the budgets
/// leave less than `min_tokens`. The budget of a turn limits it too.
pub(super) fn reserve_outside_turn(
    services: &Services,
    brain: &Brain,
    (prompt, max_tokens, min_tokens): (u64, u64, u64),
) -> Result<Option<Allowance>, store::StoreError> {
    let budgets = services.gateway.routes().map(|routes| routes.budgets).unwrap_or_default();
    let mut others = services.reservations.lock();
    let left = shared_tokens_left(services, brain, &budgets, *others)?;
    let left = left.into_iter().chain(budgets.tokens_per_turn).min();
    Ok(services.reservations.reserve(&mut others, left, prompt, (max_tokens, min_tokens)))
}

/// The number of tokens that all turns together may still spend while current calls may cost `others`; `None`
/// if there is no limit.
fn shared_tokens_left(
    services: &Services,
    brain: &Brain,
    budgets: &Budgets,
    others: u64,
) -> Result<Option<u64>, store::StoreError> {
    let windows = [
        (budgets.tokens_per_hour, Duration::from_hours(1)),
        (budgets.tokens_per_day, Duration::from_hours(24)),
    ];
    let now = services.clock.now();
    let mut left: Option<u64> = None;
    for (limit, window) in windows {
        let Some(limit) = limit else { continue };
        let spent = brain.tokens_since(window_start(now, window))?;
        let left_in_window = limit.saturating_sub(spent).saturating_sub(others);
        left = Some(left.map_or(left_in_window, |left| left.min(left_in_window)));
    }
    Ok(left)
}

/// Reserves an answer of `route` of at most `max_tokens` tokens to a prompt of `prompt` tokens in a conversation
/// of a turn; `None` if the budgets leave less than `min_tokens`.
pub(super) fn reserve_in_turn(
    deps: &TurnDeps,
    conversation: &Conversation<'_>,
    route: &Route,
    (prompt, max_tokens, min_tokens): (u64, u64, u64),
) -> Result<Option<Allowance>, Interrupt> {
    let output_left = turn_overrides::output_left(conversation.journal.thread().turn(), route, prompt);
    let output_left = output_left.filter(|left| *left < max_tokens);
    if output_left.is_some_and(|left| left < min_tokens) {
        return Ok(None);
    }
    let max_tokens = output_left.unwrap_or(max_tokens);
    let routes = deps.services.gateway.routes();
    let budgets = routes.map(|routes| routes.budgets).unwrap_or_default();
    let reservations = &deps.services.reservations;
    let mut others = reservations.lock();
    let left = tokens_left(deps, conversation, &budgets, *others)?;
    let allowance = reservations.reserve(&mut others, left, prompt, (max_tokens, min_tokens));
    Ok(allowance.map(|allowance| match output_left {
        None => allowance,
        Some(_) => Allowance {
            max_tokens: Some(allowance.max_tokens.unwrap_or(max_tokens)),
            is_reduced: true,
            ..allowance
        },
    }))
}

/// The number of tokens that a conversation may still spend while current calls may cost `others`; `None` if
/// there is no limit.
fn tokens_left(
    deps: &TurnDeps,
    conversation: &Conversation<'_>,
    budgets: &Budgets,
    others: u64,
) -> Result<Option<u64>, Interrupt> {
    let turn = conversation.journal.thread().turn();
    let spent = turn.usage().input_tokens + turn.usage().output_tokens;
    let limits = budgets.tokens_per_turn.into_iter().chain(turn_overrides::max_tokens(turn.overrides()));
    let turn = limits.min().map(|limit| limit.saturating_sub(spent));
    let all = shared_tokens_left(&deps.services, &deps.brain, budgets, others).map_err(|error| {
        tracing::error!(%error, "The tokens spent so far could not be read.");
        Interrupt::Failed(turn_end::internal_failure())
    })?;
    Ok([turn, conversation.tokens_left(), all].into_iter().flatten().min())
}

/// The time `window` before `now`.
fn window_start(now: Timestamp, window: Duration) -> Timestamp {
    let window = i64::try_from(window.as_millis()).unwrap_or(i64::MAX);
    Timestamp::from_unix_ms(now.unix_ms().saturating_sub(window))
}
