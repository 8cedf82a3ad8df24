//! How far a webhook has come: what it sends next, and what follows from an answer. It is pure.
//!
//! A webhook reads its product's audit log once, in order, through a window of a few rows. The rows of one user's engine
//! form a **lane**: they are sent one after the other, while those of other lanes may overtake them. The rows that
//! concern no engine form a lane, too. A lane whose row has failed is **lagging**: it gets a cursor of its own, and the
//! window goes on without it until it has caught up. So what is to be remembered is one position and the lagging lanes,
//! of which there is a bounded number: if there are too many, the window waits.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use api::audit::AuditRow;
use api::{Timestamp, UserId};
use http_service::backoff;
use serde::{Deserialize, Serialize};

use super::WebhookRules;

/// The most rows that are held in memory: those that are being sent, and those that wait for them.
const WINDOW: usize = 64;
/// The most lagging lanes with which the window goes on.
const MAX_LAGGING: usize = 100;
/// The longest delay that a receiver can ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_hours(24);
/// Longer than any delay.
const MAX_DELAY: Duration = Duration::from_hours(48);

/// The rows of one user's engine, or those that concern none.
pub(crate) type Lane = Option<UserId>;

/// The cursor of a lagging lane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lagging {
    pub(crate) lane: Lane,
    /// No row before this one is to be sent any more.
    pub(crate) next: i64,
    /// How often its next row has failed.
    pub(crate) failures: u32,
    /// Since when it fails; if it has not failed, since when it lags.
    pub(crate) since: Timestamp,
    /// When it is sent next.
    pub(crate) retry_at: Timestamp,
    /// The time of the row that it waits for, or of the one before.
    pub(crate) behind_since: Timestamp,
}

impl Lagging {
    fn is_due(&self, now: Timestamp) -> bool {
        // No delay is so long: the clock was set back.
        self.retry_at <= now || self.retry_at > after(now, MAX_DELAY)
    }
}

/// What is sent.
#[derive(Debug)]
pub(crate) enum Work {
    /// A row of the window, for the first time.
    Row(AuditRow),
    /// The first row of a lagging lane from `next` up to `end`, if it has one.
    Lagging { lane: Lane, next: i64, end: i64, failures: u32 },
}

/// What became of it.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The receiver has accepted the row.
    Delivered { row: i64, at: Timestamp },
    /// It has not.
    Failed { row: i64, at: Timestamp, failure: Failure },
    /// A lagging lane has no row up to `end`.
    CaughtUp { end: i64 },
}

/// Why a row was not delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The reason, for a person.
    pub(crate) error: String,
    /// The delay that the receiver asks for.
    pub(crate) retry_after: Option<Duration>,
}

/// A row that is given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GivenUp {
    pub(crate) row: i64,
    pub(crate) attempts: u32,
    pub(crate) error: String,
}

#[derive(Debug)]
struct Slot {
    id: i64,
    at: Timestamp,
    lane: Lane,
    state: SlotState,
}

#[derive(Debug)]
enum SlotState {
    Waiting(Box<AuditRow>),
    Sending,
    /// Delivered, of no interest, or its lane's cursor takes care of it.
    Settled,
}

#[derive(Debug)]
struct LaneState {
    cursor: Lagging,
    /// The last row of the window that was left to the cursor.
    last_left: i64,
}

/// The progress of a webhook.
#[derive(Debug)]
pub(crate) struct Progress {
    /// Every row up to this one is settled, but for those of lagging lanes.
    position: i64,
    window: VecDeque<Slot>,
    lagging: HashMap<Lane, LaneState>,
    /// The lanes of which something is being sent.
    busy: HashSet<Lane>,
    delivered_at: Option<Timestamp>,
    last_failed: bool,
}

impl Progress {
    pub(crate) fn new(position: i64, lagging: Vec<Lagging>, delivered_at: Option<Timestamp>) -> Self {
        let lagging = lagging.into_iter().map(|cursor| {
            // Any row up to the position may have been left to it.
            (cursor.lane.clone(), LaneState { cursor, last_left: position })
        });
        Self {
            position,
            window: VecDeque::new(),
            lagging: lagging.collect(),
            busy: HashSet::new(),
            delivered_at,
            last_failed: false,
        }
    }

    /// What has to be remembered.
    pub(crate) fn durable(&self) -> (i64, Vec<Lagging>) {
        let mut lagging: Vec<_> = self.lagging.values().map(|state| state.cursor.clone()).collect();
        lagging.sort_by_key(|cursor| cursor.next);
        (self.position, lagging)
    }

    /// Every row up to this one is settled, but for those of lagging lanes.
    pub(crate) const fn position(&self) -> i64 {
        self.position
    }

    pub(crate) const fn delivered_at(&self) -> Option<Timestamp> {
        self.delivered_at
    }

    /// Whether the last attempt has failed.
    pub(crate) const fn is_failing(&self) -> bool {
        self.last_failed
    }

    /// The id of the last row that was read into the window.
    pub(crate) fn end(&self) -> i64 {
        self.window.back().map_or(self.position, |slot| slot.id)
    }

    /// How many rows may be read into the window.
    pub(crate) fn room(&self) -> usize {
        WINDOW.saturating_sub(self.window.len())
    }

    /// Since when the oldest row waits that is not settled.
    pub(crate) fn waiting_since(&self) -> Option<Timestamp> {
        let first = self.window.iter().find(|slot| !matches!(slot.state, SlotState::Settled));
        let lagging = self.lagging.values().map(|state| state.cursor.behind_since);
        first.map(|slot| slot.at).into_iter().chain(lagging).min()
    }

    /// Reads the rows that follow [`Self::end`] into the window. Those that `matches` refuses are not sent.
    pub(crate) fn read(&mut self, rows: Vec<AuditRow>, matches: impl Fn(&AuditRow) -> bool) {
        for row in rows {
            let (id, at, lane) = (row.id, row.at, row.user_id.clone());
            let state = match self.lagging.get_mut(&lane) {
                _ if !matches(&row) => SlotState::Settled,
                Some(state) => {
                    state.last_left = id;
                    SlotState::Settled
                }
                None => SlotState::Waiting(Box::new(row)),
            };
            self.window.push_back(Slot { id, at, lane, state });
        }
        self.advance();
    }

    /// Takes what is to be sent now.
    pub(crate) fn next(&mut self, now: Timestamp) -> Option<Work> {
        let end = self.end();
        let due = self.lagging.values().filter(|state| !self.busy.contains(&state.cursor.lane));
        let due = due.map(|state| &state.cursor).filter(|cursor| cursor.is_due(now));
        if let Some(cursor) = due.min_by_key(|cursor| cursor.retry_at) {
            let Lagging { lane, next, failures, .. } = cursor.clone();
            self.busy.insert(lane.clone());
            return Some(Work::Lagging { lane, next, end, failures });
        }
        if self.lagging.len() >= MAX_LAGGING {
            return None;
        }
        let slot = self
            .window
            .iter_mut()
            .find(|slot| matches!(slot.state, SlotState::Waiting(_)) && !self.busy.contains(&slot.lane))?;
        let SlotState::Waiting(row) = std::mem::replace(&mut slot.state, SlotState::Sending) else {
            return None;
        };
        self.busy.insert(slot.lane.clone());
        Some(Work::Row(*row))
    }

    /// When the next lagging lane is due that is not being sent.
    pub(crate) fn next_retry_at(&self) -> Option<Timestamp> {
        let idle = self.lagging.values().filter(|state| !self.busy.contains(&state.cursor.lane));
        idle.map(|state| state.cursor.retry_at).min()
    }

    /// Records what became of the work of a lane. Returns the row that is given up thereby: it must be stored before
    /// anything else of its lane is sent.
    pub(crate) fn settle(
        &mut self,
        lane: &Lane,
        outcome: Outcome,
        now: Timestamp,
        rules: &WebhookRules,
    ) -> Option<GivenUp> {
        self.busy.remove(lane);
        match outcome {
            Outcome::Delivered { row, at } => {
                self.delivered(lane, row, at, now);
                None
            }
            Outcome::CaughtUp { end } => {
                match self.lagging.get_mut(lane) {
                    Some(state) if state.last_left > end => state.cursor.next = end.saturating_add(1),
                    _ => drop(self.lagging.remove(lane)),
                }
                None
            }
            Outcome::Failed { row, at, failure } => {
                self.last_failed = true;
                self.failed(lane, (row, at), failure, now, rules)
            }
        }
    }

    fn delivered(&mut self, lane: &Lane, row: i64, at: Timestamp, now: Timestamp) {
        self.last_failed = false;
        match self.lagging.get_mut(lane) {
            Some(state) => state.pass((row, at), now),
            None => {
                if let Some(slot) = self.window.iter_mut().find(|slot| slot.id == row) {
                    slot.state = SlotState::Settled;
                }
            }
        }
        self.advance();
        // The receiver was away rather than that it refuses these rows: each is sent again at once, but only once.
        let before = self.delivered_at.replace(now);
        for state in self.lagging.values_mut() {
            if before.is_none_or(|before| state.cursor.since > before) {
                state.cursor.retry_at = state.cursor.retry_at.min(now);
            }
        }
    }

    fn failed(
        &mut self,
        lane: &Lane,
        (row, at): (i64, Timestamp),
        failure: Failure,
        now: Timestamp,
        rules: &WebhookRules,
    ) -> Option<GivenUp> {
        if !self.lagging.contains_key(lane) {
            self.leave_behind(lane, (row, at), now);
        }
        let state = self.lagging.get_mut(lane)?;
        let cursor = &mut state.cursor;
        if cursor.failures == 0 {
            cursor.since = now;
        }
        cursor.next = row;
        cursor.behind_since = at;
        cursor.failures = cursor.failures.saturating_add(1);
        let give_up_at = after(cursor.since, rules.give_up_after);
        // A clock that was set back must not prolong it for ever.
        let give_up_at = give_up_at.min(after(now, rules.give_up_after));
        if now >= give_up_at {
            let attempts = cursor.failures;
            state.pass((row, at), now);
            return Some(GivenUp { row, attempts, error: failure.error });
        }
        let delay =
            backoff::delay(rules.backoff_base, rules.backoff_max, cursor.failures - 1, backoff::jitter());
        let asked = failure.retry_after.unwrap_or_default().min(MAX_RETRY_AFTER);
        cursor.retry_at = after(now, delay.max(asked)).min(give_up_at);
        None
    }

    /// Gives a lane a cursor from `row` on.
    fn leave_behind(&mut self, lane: &Lane, (row, at): (i64, Timestamp), now: Timestamp) {
        let mut last_left = row;
        for slot in self.window.iter_mut().filter(|slot| slot.id >= row && slot.lane == *lane) {
            last_left = slot.id;
            slot.state = SlotState::Settled;
        }
        let lane_cursor = Lagging {
            lane: lane.clone(),
            next: row,
            failures: 0,
            since: now,
            retry_at: now,
            behind_since: at,
        };
        self.lagging.insert(lane.clone(), LaneState { cursor: lane_cursor, last_left });
        self.advance();
    }

    fn advance(&mut self) {
        while let Some(slot) = self.window.front().filter(|slot| matches!(slot.state, SlotState::Settled)) {
            self.position = slot.id;
            self.window.pop_front();
        }
    }
}

impl LaneState {
    /// Goes on behind `row`.
    fn pass(&mut self, (row, at): (i64, Timestamp), now: Timestamp) {
        self.cursor.next = row.saturating_add(1);
        self.cursor.failures = 0;
        self.cursor.since = now;
        self.cursor.retry_at = now;
        self.cursor.behind_since = at;
    }
}

fn after(at: Timestamp, delay: Duration) -> Timestamp {
    let ms = i64::try_from(delay.as_millis()).unwrap_or(i64::MAX);
    Timestamp::from_unix_ms(at.unix_ms().saturating_add(ms))
}

#[cfg(test)]
#[path = "../../tests/unit/domain/webhook_progress.rs"]
mod tests;
