//! Token budgets: what a turn may still spend, and what current calls have reserved of it.
//!
//! Turns of many tasks share the hourly and daily budgets. A call's maximum cost is reserved for its duration,
//! atomically with reading the balance, so that concurrent calls cannot exceed together what each of them would
//! respect alone.

use std::sync::Arc;
use std::time::Duration;

use api::Timestamp;
use api::event::{Failure, FailureCode};
use llm::{Budgets, Prices, Route};
use parking_lot::{Mutex, MutexGuard};
use store::{Brain, StoreError, TaskRow, nano_usd};

use super::caps::{self, CapError};
use super::conversation::Conversation;
use super::interrupt::Interrupt;
use super::turn_context::TurnDeps;
use super::{Services, turn_end, turn_overrides};

/// The total that current calls may cost.
#[derive(Default)]
pub(crate) struct Reservations(Mutex<Reserved>);

#[derive(Clone, Copy, Default)]
struct Reserved {
    tokens: u64,
    /// In billionths of a US dollar; nothing for models without a known price.
    cost: u64,
}

/// The size of a call: its prompt, its longest answer, and the shortest one that is worth the prompt, in tokens.
type CallTokens = (u64, u64, u64);

/// The maximum cost of one call. Dropped when its actual cost is recorded.
pub(super) struct Reservation {
    reservations: Arc<Reservations>,
    reserved: Reserved,
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
    fn lock(&self) -> MutexGuard<'_, Reserved> {
        self.0.lock()
    }

    /// Reserves the cost of an answer of at most `max_tokens` tokens to a prompt of `prompt` tokens out of `left`;
    /// `None` if that leaves less than `min_tokens`. `others` is the locked total of the reservations.
    fn reserve(
        self: &Arc<Self>,
        others: &mut Reserved,
        left: Option<u64>,
        prices: Option<Prices>,
        (prompt, max_tokens, min_tokens): CallTokens,
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
        let cost = prices.map_or(0.0, |prices| prices.highest_cost(prompt, granted));
        let reserved = Reserved { tokens, cost: u64::try_from(nano_usd(cost)).unwrap_or(0) };
        others.tokens = others.tokens.saturating_add(reserved.tokens);
        others.cost = others.cost.saturating_add(reserved.cost);
        let reservation = Reservation { reservations: Arc::clone(self), reserved };
        Some(Allowance {
            max_tokens: Some(granted),
            is_reduced: available < max_tokens,
            _reservation: Some(reservation),
        })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut all = self.reservations.lock();
        all.tokens = all.tokens.saturating_sub(self.reserved.tokens);
        all.cost = all.cost.saturating_sub(self.reserved.cost);
    }
}

/// Reserves an answer of `route` for a model call outside any turn, of a task if it belongs to one; `None` if the
/// budgets and caps leave less than the least, or if there is a cap in US dollars and the price is unknown. The
/// budget of a turn limits it too.
pub(super) fn reserve_outside_turn(
    services: &Services,
    brain: &Brain,
    (route, task): (&Route, Option<TaskRow>),
    size: CallTokens,
) -> Result<Option<Allowance>, StoreError> {
    let budgets = services.gateway.routes().map(|routes| routes.budgets).unwrap_or_default();
    let mut others = services.reservations.lock();
    let left = shared_tokens_left(services, brain, &budgets, others.tokens)?;
    let reserved = [others.tokens, others.cost];
    let capped = match caps::tokens_left(services, brain, task, (size.0, route.prices), reserved) {
        Ok(capped) => capped,
        Err(CapError::Unpriced) => return Ok(None),
        Err(CapError::Read(error)) => return Err(error),
    };
    let left = left.into_iter().chain(budgets.tokens_per_turn).chain(capped).min();
    Ok(services.reservations.reserve(&mut others, left, route.prices, size))
}

/// The number of tokens that all turns together may still spend while current calls may cost `others`; `None`
/// if there is no limit.
fn shared_tokens_left(
    services: &Services,
    brain: &Brain,
    budgets: &Budgets,
    others: u64,
) -> Result<Option<u64>, StoreError> {
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
    (prompt, max_tokens, min_tokens): CallTokens,
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
    let left = tokens_left(deps, conversation, &budgets, others.tokens)?;
    let (task, reserved) = (conversation.journal.task(), [others.tokens, others.cost]);
    let call = (prompt, route.prices);
    let capped = caps::tokens_left(&deps.services, &deps.brain, Some(task), call, reserved);
    let left = left.into_iter().chain(capped.map_err(|error| no_call(error, route))?).min();
    let allowance = reservations.reserve(&mut others, left, route.prices, (prompt, max_tokens, min_tokens));
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
    let all = shared_tokens_left(&deps.services, &deps.brain, budgets, others);
    let all = all.map_err(|error| unreadable(&error))?;
    Ok([turn, conversation.tokens_left(), all].into_iter().flatten().min())
}

/// The end of a turn whose next call cannot be allowed.
fn no_call(error: CapError, route: &Route) -> Interrupt {
    match error {
        CapError::Read(error) => unreadable(&error),
        CapError::Unpriced => Interrupt::Failed(Failure {
            code: FailureCode::ProviderNotConfigured,
            message: format!(
                "there is a cap in US dollars, and the price of the model `{}` is not known: set its `prices` in \
                 gateway.json",
                route.name
            ),
            retryable: false,
        }),
    }
}

pub(super) fn unreadable(error: &StoreError) -> Interrupt {
    tracing::error!(%error, "What was spent so far could not be read.");
    Interrupt::Failed(turn_end::internal_failure())
}

/// The time `window` before `now`.
fn window_start(now: Timestamp, window: Duration) -> Timestamp {
    let window = i64::try_from(window.as_millis()).unwrap_or(i64::MAX);
    Timestamp::from_unix_ms(now.unix_ms().saturating_sub(window))
}
