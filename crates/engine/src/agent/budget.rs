//! Token budgets: what a turn may still spend, and what current calls have reserved of it.
//!
//! Turns of many tasks share the hourly and daily budgets. A call's maximum cost is reserved for its duration,
//! atomically with reading the balance, so that concurrent calls cannot exceed together what each of them would
//! respect alone.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::Timestamp;

use super::active_turn::{ActiveTurn, Interrupt};
use super::{Services, turn_end};
use crate::llm::Budgets;
use crate::store::Brain;

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
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves the cost of an answer of at most `most` tokens to a prompt of `prompt` tokens out of `left`;
    /// `None` if that leaves less than `least`. `others` is the locked total of the reservations.
    fn reserve(
        self: &Arc<Self>,
        others: &mut u64,
        left: Option<u64>,
        prompt: u64,
        (most, least): (u64, u64),
    ) -> Option<Allowance> {
        let Some(left) = left else {
            return Some(Allowance { max_tokens: None, is_reduced: false, _reservation: None });
        };
        let room = left.saturating_sub(prompt);
        if room < least {
            return None;
        }
        let bound = room.min(most);
        let tokens = prompt + bound;
        *others += tokens;
        let reservation = Reservation { reservations: Arc::clone(self), tokens };
        Some(Allowance { max_tokens: Some(bound), is_reduced: room < most, _reservation: Some(reservation) })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut tokens = self.reservations.lock();
        *tokens = tokens.saturating_sub(self.tokens);
    }
}

/// Reserves an answer of at most `most` tokens for a model call outside any turn; `None` if the budgets leave
/// less than `least`. The budget of a turn limits it too.
pub(super) fn reserve_outside_turn(
    means: &Services,
    brain: &Brain,
    (prompt, most, least): (u64, u64, u64),
) -> Result<Option<Allowance>, rusqlite::Error> {
    let budgets = means.gateway.routes().map(|routes| routes.budgets).unwrap_or_default();
    let mut others = means.reservations.lock();
    let left = shared_tokens_left(means, brain, &budgets, *others)?;
    let left = left.into_iter().chain(budgets.tokens_per_turn).min();
    Ok(means.reservations.reserve(&mut others, left, prompt, (most, least)))
}

/// The number of tokens that all turns together may still spend while current calls may cost `others`; `None`
/// if there is no limit.
fn shared_tokens_left(
    means: &Services,
    brain: &Brain,
    budgets: &Budgets,
    others: u64,
) -> Result<Option<u64>, rusqlite::Error> {
    let windows = [
        (budgets.tokens_per_hour, Duration::from_hours(1)),
        (budgets.tokens_per_day, Duration::from_hours(24)),
    ];
    let now = means.clock.now();
    let mut left: Option<u64> = None;
    for (limit, window) in windows {
        let Some(limit) = limit else { continue };
        let spent = brain.tokens_since(window_start(now, window))?;
        let of_window = limit.saturating_sub(spent).saturating_sub(others);
        left = Some(left.map_or(of_window, |left| left.min(of_window)));
    }
    Ok(left)
}

impl ActiveTurn {
    /// Reserves an answer of at most `most` tokens to a prompt of `prompt` tokens; `None` if the budgets leave
    /// less than `least`.
    pub(super) fn reserve(&self, prompt: u64, most: u64, least: u64) -> Result<Option<Allowance>, Interrupt> {
        let routes = self.context.services.gateway.routes();
        let budgets = routes.map(|routes| routes.budgets).unwrap_or_default();
        let reservations = &self.context.services.reservations;
        let mut others = reservations.lock();
        let left = self.tokens_left(&budgets, *others)?;
        Ok(reservations.reserve(&mut others, left, prompt, (most, least)))
    }

    /// The number of tokens that may still be spent while current calls may cost `others`; `None` if there is
    /// no limit.
    fn tokens_left(&self, budgets: &Budgets, others: u64) -> Result<Option<u64>, Interrupt> {
        let usage = self.thread.turn().usage();
        let spent = usage.input_tokens + usage.output_tokens;
        let turn = budgets.tokens_per_turn.map(|limit| limit.saturating_sub(spent));
        let all = shared_tokens_left(&self.context.services, &self.context.brain, budgets, others).map_err(
            |error| {
                tracing::error!(%error, "What was spent could not be read.");
                Interrupt::Failed(turn_end::internal_failure())
            },
        )?;
        Ok([turn, self.sub_agent_tokens_left(), all].into_iter().flatten().min())
    }
}

/// The time `window` before `now`.
fn window_start(now: Timestamp, window: Duration) -> Timestamp {
    let window = i64::try_from(window.as_millis()).unwrap_or(i64::MAX);
    Timestamp::from_unix_ms(now.unix_ms().saturating_sub(window))
}
