//! Caps on usage: the most that the agent may use in a day and in a task. The operator and the product each set some;
//! the lower of two counts.
//!
//! Clients are told once about each cap when four fifths of it are used, and once when it is reached. What tells that
//! they were told is committed with the event, so a kill neither loses nor repeats it; between the decision and
//! the commit a claim in memory keeps concurrent turns from telling it too.

use std::collections::HashSet;
use std::sync::Arc;

use api::event::Event;
use api::usage_caps::{CapLevel, CapScope, CapUnit, ReadUsageCaps, UsageCap, UsageCapEvent, UsageCaps};
use api::{TaskId, Timestamp};
use llm::{Prices, UsageLimits};
use parking_lot::Mutex;
use store::event_log::Commit;
use store::{Brain, CallUsage, CapMark, CapPeriod, CapUse, StoreError, TaskRow, nano_usd, usd};

use super::{Agent, AgentError, Services};

/// The operator's caps, and what clients are being told about.
pub(crate) struct Caps {
    operator: UsageLimits,
    claims: Arc<Mutex<HashSet<CapMark>>>,
}

/// A cap with what is used of it.
struct Cap {
    period: CapPeriod,
    unit: CapUnit,
    /// In tokens or in billionths of a US dollar, like what is used.
    limit: i64,
    used: CapUse,
}

/// A cap that is reached.
#[derive(Clone, Copy, Debug)]
pub struct ReachedCap {
    scope: CapScope,
    unit: CapUnit,
    limit: f64,
    /// When it begins again, if it does.
    resets_at: Option<Timestamp>,
    /// The seconds until then.
    pub retry_after_s: Option<u64>,
}

impl std::fmt::Display for ReachedCap {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scope = match self.scope {
            CapScope::Day => "a day",
            CapScope::Task => "this task",
        };
        let unit = match self.unit {
            CapUnit::Tokens => "tokens",
            CapUnit::Usd => "US dollars",
        };
        write!(out, "the cap of {} {unit} for {scope} is reached; ", self.limit)?;
        match self.resets_at {
            Some(at) => write!(out, "it begins again at {at}"),
            None => write!(out, "raise it, or continue in another task"),
        }
    }
}

/// Why no call may be made.
pub(super) enum CapError {
    /// There is a cap in US dollars, and the price of the model is not known.
    Unpriced,
    Read(StoreError),
}

impl From<StoreError> for CapError {
    fn from(error: StoreError) -> Self {
        Self::Read(error)
    }
}

/// What clients are told in the next commit. The claims end when it is dropped, which is after the commit.
#[derive(Default)]
pub(super) struct CapNotices {
    events: Vec<Event>,
    marks: Vec<CapMark>,
    claims: Arc<Mutex<HashSet<CapMark>>>,
}

impl CapNotices {
    pub(super) fn is_empty(&self) -> bool {
        self.marks.is_empty()
    }

    /// Adds the events and their marks to a commit. They must outlive it.
    pub(super) fn add_to(&self, commit: Commit) -> Commit {
        let commit = self.marks.iter().copied().fold(commit, Commit::mark_cap);
        commit.events(self.events.iter().cloned())
    }
}

impl Drop for CapNotices {
    fn drop(&mut self) {
        let mut claims = self.claims.lock();
        for mark in &self.marks {
            claims.remove(mark);
        }
    }
}

impl Caps {
    /// Caps of which the operator has set these.
    pub(crate) fn new(operator: UsageLimits) -> Self {
        Self { operator, claims: Arc::default() }
    }
}

impl Cap {
    fn used(&self) -> i64 {
        self.used.used(self.unit)
    }

    /// What is left after `more` was used too.
    fn left(&self, more: i64) -> u64 {
        let used = self.used().saturating_add(more);
        u64::try_from(self.limit.saturating_sub(used)).unwrap_or(0)
    }

    fn reached(&self, now: Timestamp) -> ReachedCap {
        let resets_at = self.period.ends_at();
        let left_ms = resets_at.map(|at| at.unix_ms().saturating_sub(now.unix_ms()).max(0).unsigned_abs());
        ReachedCap {
            scope: self.period.scope(),
            unit: self.unit,
            limit: amount(self.unit, self.limit),
            resets_at,
            retry_after_s: left_ms.map(|ms| ms.div_ceil(1_000).max(1)),
        }
    }

    fn event(&self, level: CapLevel, used: i64) -> Event {
        Event::UsageCap(UsageCapEvent {
            level,
            scope: self.period.scope(),
            unit: self.unit,
            limit: amount(self.unit, self.limit),
            used: amount(self.unit, used),
            resets_at: self.period.ends_at(),
        })
    }

    /// The levels that are passed once `used` is used.
    fn passed(&self, used: i64) -> impl Iterator<Item = CapLevel> + use<> {
        let is_warning = i128::from(used) * 5 >= i128::from(self.limit) * 4;
        let warning = is_warning.then_some(CapLevel::Warning);
        warning.into_iter().chain((used >= self.limit).then_some(CapLevel::Reached))
    }
}

/// The caps of the operator and of the product: of each the lower one.
fn limits(services: &Services) -> UsageLimits {
    let product = services.gateway.routes().map(|routes| routes.caps).unwrap_or_default();
    services.caps.operator.lowest(product)
}

/// The caps in force for the day of `now`, and for a task.
fn caps(
    services: &Services,
    brain: &Brain,
    task: Option<CapPeriod>,
    now: Timestamp,
) -> Result<Vec<Cap>, StoreError> {
    let limits = limits(services);
    let day = (Some(CapPeriod::day_of(now)), limits.tokens_per_day, limits.usd_per_day);
    let task = (task, limits.tokens_per_task, limits.usd_per_task);
    let mut caps = Vec::new();
    for (period, tokens, cost) in [day, task] {
        let Some(period) = period.filter(|_| tokens.is_some() || cost.is_some()) else { continue };
        let used = brain.cap_use(period)?;
        let tokens = tokens.map(|limit| (CapUnit::Tokens, i64::try_from(limit).unwrap_or(i64::MAX)));
        let cost = cost.map(|limit| (CapUnit::Usd, nano_usd(limit)));
        caps.extend(tokens.into_iter().chain(cost).map(|(unit, limit)| Cap { period, unit, limit, used }));
    }
    Ok(caps)
}

/// A cap of the day or of a task that is reached, if there is one.
pub(super) fn reached(
    services: &Services,
    brain: &Brain,
    task_id: Option<&TaskId>,
) -> Result<Option<ReachedCap>, StoreError> {
    if limits(services) == UsageLimits::default() {
        return Ok(None);
    }
    let task = task_id.map(|task_id| brain.task(task_id)).transpose()?.flatten().map(|task| task.row);
    let now = services.clock.now();
    let caps = caps(services, brain, task.map(CapPeriod::of_task), now)?;
    Ok(caps.iter().find(|cap| cap.left(0) == 0).map(|cap| cap.reached(now)))
}

/// The tokens that the caps leave to a call with a prompt of `prompt` tokens and to its answer, while other calls may
/// use `others`: tokens and billionths of a US dollar. `None` without a cap.
pub(super) fn tokens_left(
    services: &Services,
    brain: &Brain,
    task: Option<TaskRow>,
    (prompt, prices): (u64, Option<Prices>),
    others: [u64; 2],
) -> Result<Option<u64>, CapError> {
    let caps = caps(services, brain, task.map(CapPeriod::of_task), services.clock.now())?;
    let [others_tokens, others_usd] = others.map(|others| i64::try_from(others).unwrap_or(i64::MAX));
    let mut least: Option<u64> = None;
    for cap in caps {
        // What other tasks may use is none of a task's.
        let counts_others = cap.period.scope() == CapScope::Day;
        let left = match cap.unit {
            CapUnit::Tokens => cap.left(if counts_others { others_tokens } else { 0 }),
            CapUnit::Usd => {
                let prices = prices.ok_or(CapError::Unpriced)?;
                let left =
                    amount(CapUnit::Usd, as_count(cap.left(if counts_others { others_usd } else { 0 })));
                match prices.affordable_output(prompt, left) {
                    0 => 0,
                    output => prompt.saturating_add(output),
                }
            }
        };
        least = Some(least.map_or(left, |least| least.min(left)));
    }
    Ok(least)
}

/// Claims what clients are told once `calls`, which are not committed yet, are counted.
pub(super) fn notices(services: &Services, brain: &Brain, task: TaskRow, calls: &[CallUsage]) -> CapNotices {
    let now = services.clock.now();
    let passed = |cap: &Cap, used| cap.passed(used).collect();
    claim(services, brain, task, now, calls, passed)
}

/// Claims what clients are told when too little is left for a prompt of `prompt` tokens. Returns a cap of which too
/// little is left, too, if there is one.
pub(super) fn exhausted_notices(
    services: &Services,
    brain: &Brain,
    task: TaskRow,
    (needed, prompt, prices): (u64, u64, Option<Prices>),
) -> Result<(CapNotices, Option<ReachedCap>), StoreError> {
    let now = services.clock.now();
    let is_exhausted = |cap: &Cap| match (cap.unit, prices) {
        (CapUnit::Tokens, _) => cap.left(0) < needed,
        (CapUnit::Usd, Some(prices)) => {
            let left = amount(CapUnit::Usd, as_count(cap.left(0)));
            prices.affordable_output(prompt, left) < needed.saturating_sub(prompt)
        }
        (CapUnit::Usd, None) => cap.left(0) == 0,
    };
    let exhausted = caps(services, brain, Some(CapPeriod::of_task(task)), now)?;
    let exhausted = exhausted.iter().find(|cap| is_exhausted(cap)).map(|cap| cap.reached(now));
    let passed = |cap: &Cap, used| {
        if is_exhausted(cap) {
            vec![CapLevel::Warning, CapLevel::Reached]
        } else {
            cap.passed(used).collect()
        }
    };
    Ok((claim(services, brain, task, now, &[], passed), exhausted))
}

/// Claims the marks of the levels that `passed` says are passed, and about which nobody was told.
fn claim(
    services: &Services,
    brain: &Brain,
    task: TaskRow,
    now: Timestamp,
    calls: &[CallUsage],
    passed: impl Fn(&Cap, i64) -> Vec<CapLevel>,
) -> CapNotices {
    // Locked before the marks are read: what another turn has just committed is either read or still claimed.
    let mut claims = services.caps.claims.lock();
    let found = caps(services, brain, Some(CapPeriod::of_task(task)), now).unwrap_or_else(|error| {
        tracing::warn!(%error, "The caps on usage could not be read; this is retried with the next call.");
        Vec::new()
    });
    let shared = Arc::clone(&services.caps.claims);
    let mut notices = CapNotices { events: Vec::new(), marks: Vec::new(), claims: shared };
    for cap in found {
        let used = cap.used().saturating_add(calls.iter().map(|call| counted(cap.unit, call)).sum());
        for level in passed(&cap, used) {
            let mark = CapMark { period: cap.period, unit: cap.unit, level, limit: cap.limit };
            if !cap.used.is_marked(cap.unit, level, cap.limit) && claims.insert(mark) {
                notices.events.push(cap.event(level, used));
                notices.marks.push(mark);
            }
        }
    }
    notices
}

/// What a call counts in a unit.
fn counted(unit: CapUnit, call: &CallUsage) -> i64 {
    match unit {
        CapUnit::Tokens => as_count(call.tokens.input.saturating_add(call.tokens.output)),
        CapUnit::Usd => call.cost_usd.map_or(0, nano_usd),
    }
}

fn as_count(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// An amount as clients read it.
#[expect(clippy::cast_precision_loss, reason = "a double counts more tokens than any cap has")]
fn amount(unit: CapUnit, count: i64) -> f64 {
    match unit {
        CapUnit::Tokens => count as f64,
        CapUnit::Usd => usd(count),
    }
}

impl Agent {
    /// The caps that are set, with what is used of them.
    pub fn usage_caps(&self, request: &ReadUsageCaps) -> Result<UsageCaps, AgentError> {
        let find = |task_id: &TaskId| self.brain.task(task_id)?.ok_or(AgentError::UnknownTask);
        let task = request.task_id.as_ref().map(find).transpose()?.map(|task| task.row);
        let now = self.services.clock.now();
        let period = task.map_or(CapPeriod::OF_NO_TASK, CapPeriod::of_task);
        let found = caps(&self.services, &self.brain, Some(period), now)?;
        let caps = found.iter().map(|cap| {
            let is_known = cap.period.scope() == CapScope::Day || task.is_some();
            UsageCap {
                scope: cap.period.scope(),
                unit: cap.unit,
                limit: amount(cap.unit, cap.limit),
                used: is_known.then(|| amount(cap.unit, cap.used())),
                remaining: is_known.then(|| amount(cap.unit, as_count(cap.left(0)))),
                resets_at: cap.period.ends_at(),
            }
        });
        Ok(UsageCaps { caps: caps.collect() })
    }
}

#[cfg(test)]
#[path = "../../tests/unit/agent/caps.rs"]
mod tests;
