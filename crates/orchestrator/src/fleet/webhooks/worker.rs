//! The worker of one webhook: reads the audit log, sends what [`Progress`] says, and stores how far it has come.
//!
//! Progress is stored a moment after it is made, so a kill at any point makes the next worker repeat a few rows and lose
//! none. A row that is given up is stored at once, before anything else of its lane is sent. If the registry fails or
//! says that the webhook was changed, the worker begins again from what is stored.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use api::audit::AuditRow;
use api::audit_webhooks::AuditWebhookState;
use api::webhooks::WebhookSecret;
use api::{AuditWebhookId, ProductId, Timestamp};
use fetch::Target;
use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use serde_json::json;
use tokio::sync::{Semaphore, watch};

use super::Webhooks;
use super::attempt::{Answer, AttemptTime, Receiver};
use crate::domain::WebhookRules;
use crate::domain::webhook_progress::{GivenUp, Lane, Outcome, Progress, Work};
use crate::fleet::FleetError;
use crate::fleet::shared::Shared;
use crate::keys::Purpose;
use crate::metrics::labels::DeliveryOutcome;
use crate::registry::{AuditEntry, Event, ProgressUpdate, RegistryError, RetriedLetter, WebhookRow};

/// How long progress is kept in memory before it is stored.
const SAVE_INTERVAL: Duration = Duration::from_millis(500);
/// The pause before a worker begins again after a failure of the registry.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// The longest pause: the wall clock may be set meanwhile, and a commit may have been missed.
const MAX_PAUSE: Duration = Duration::from_mins(1);
/// Attempts of one webhook under way; a single one while they fail.
const MAX_ATTEMPTS: usize = 8;
/// Rows of a lagging lane that are looked through at once.
const LANE_PAGE: i64 = 50;

/// No row waits.
const NOTHING_WAITS: i64 = i64::MAX;

/// What is known of a worker from outside.
pub(super) struct WorkerStatus {
    waiting_since_ms: AtomicI64,
}

impl Default for WorkerStatus {
    fn default() -> Self {
        Self { waiting_since_ms: AtomicI64::new(NOTHING_WAITS) }
    }
}

impl WorkerStatus {
    /// Since when the oldest row waits.
    pub(super) fn waiting_since(&self) -> Option<Timestamp> {
        let since = self.waiting_since_ms.load(Ordering::Relaxed);
        (since != NOTHING_WAITS).then(|| Timestamp::from_unix_ms(since))
    }

    fn set(&self, since: Option<Timestamp>) {
        self.waiting_since_ms.store(since.map_or(NOTHING_WAITS, Timestamp::unix_ms), Ordering::Relaxed);
    }
}

pub(super) struct Worker {
    shared: Arc<Shared>,
    rules: Arc<WebhookRules>,
    permits: Arc<Semaphore>,
    webhooks: Arc<Webhooks>,
    webhook_id: AuditWebhookId,
    status: Arc<WorkerStatus>,
}

/// Why a session has ended.
enum Ended {
    /// The webhook sends nothing any more, or never did.
    Inactive,
    /// It was changed: the next session knows more.
    Changed,
}

/// What has come of an attempt.
enum Settled {
    /// Of a lane.
    Lane(Lane, LaneOutcome),
    /// Of a dead letter.
    Letter(i64, LaneOutcome),
}

enum LaneOutcome {
    Known(Outcome),
    Gone,
}

impl Worker {
    pub(super) fn new(
        webhooks: &Arc<Webhooks>,
        webhook_id: AuditWebhookId,
        status: Arc<WorkerStatus>,
    ) -> Self {
        Self {
            shared: Arc::clone(&webhooks.shared),
            rules: Arc::clone(&webhooks.rules),
            permits: Arc::clone(&webhooks.permits),
            webhooks: Arc::clone(webhooks),
            webhook_id,
            status,
        }
    }

    /// Sends until the webhook is paused or deleted. It may be dropped at any await.
    pub(super) async fn run(self) {
        loop {
            match self.session().await {
                Ok(Ended::Inactive) => return,
                Ok(Ended::Changed) => {}
                Err(error) => {
                    tracing::warn!(
                        webhook_id = %self.webhook_id,
                        error = &error as &dyn std::error::Error,
                        "A webhook is interrupted; retrying."
                    );
                    self.shared.clock.sleep(RETRY_INTERVAL).await;
                }
            }
        }
    }

    async fn session(&self) -> Result<Ended, FleetError> {
        let Some(row) = self.shared.registry.webhook(self.webhook_id).await? else {
            return Ok(Ended::Inactive);
        };
        if row.webhook.state != AuditWebhookState::Active {
            return Ok(Ended::Inactive);
        }
        let letters = self.shared.registry.letters_to_retry(self.webhook_id).await?;
        let context = Arc::new(AttemptContext {
            shared: Arc::clone(&self.shared),
            rules: Arc::clone(&self.rules),
            permits: Arc::clone(&self.permits),
            product_permits: self.webhooks.product_permits(row.product_id),
            receiver: self.receiver(&row)?,
            product_id: row.product_id,
            events: row.webhook.events.iter().map(|event| event.as_str()).collect(),
        });
        let progress = Progress::new(row.webhook.position, row.lagging.clone(), row.webhook.delivered_at);
        let session = Session {
            context,
            commits: self.shared.registry.subscribe(row.product_id),
            row,
            status: Arc::clone(&self.status),
            progress,
            letters: letters.into(),
            letter_in_flight: false,
            attempts: FuturesUnordered::new(),
            may_have_more: true,
            unsaved: Unsaved::default(),
        };
        session.run().await
    }

    fn receiver(&self, row: &WebhookRow) -> Result<Receiver, FleetError> {
        let open = |sealed: &str| {
            let text =
                self.shared.vault.open(&self.webhook_id.to_string(), Purpose::WebhookSecret, sealed)?;
            WebhookSecret::parse(&text).ok_or(FleetError::UnreadableRow("sealed_secret"))
        };
        let mut secrets = vec![(open(&row.sealed_secret)?, None)];
        if let Some((old, until)) = row.old_sealed_secret.as_deref().zip(row.webhook.old_secret_expires_at) {
            secrets.push((open(old)?, Some(until)));
        }
        let target = Target::parse(&row.webhook.url).map_err(|_| FleetError::UnreadableRow("url"))?;
        Ok(Receiver { webhook_id: self.webhook_id, target, secrets, client: parking_lot::Mutex::default() })
    }
}

/// What every attempt of a session needs.
struct AttemptContext {
    shared: Arc<Shared>,
    rules: Arc<WebhookRules>,
    permits: Arc<Semaphore>,
    product_permits: Arc<Semaphore>,
    receiver: Receiver,
    product_id: ProductId,
    /// The names of the events whose rows are sent; all if there are none.
    events: Vec<&'static str>,
}

/// What is not stored yet.
#[derive(Default)]
struct Unsaved {
    /// Since when, by the monotonic clock; `None` if everything is stored.
    since: Option<Duration>,
    last_error: Option<String>,
    given_up: Vec<GivenUp>,
    retried: Vec<RetriedLetter>,
}

/// A worker's time under the same settings.
struct Session {
    context: Arc<AttemptContext>,
    row: WebhookRow,
    status: Arc<WorkerStatus>,
    commits: watch::Receiver<()>,
    progress: Progress,
    /// The dead letters that are to be sent once more, with the number of their attempts.
    letters: VecDeque<(i64, u32)>,
    letter_in_flight: bool,
    attempts: FuturesUnordered<BoxFuture<'static, Result<Settled, FleetError>>>,
    /// Whether the audit log may have rows behind the window.
    may_have_more: bool,
    unsaved: Unsaved,
}

impl Session {
    async fn run(mut self) -> Result<Ended, FleetError> {
        loop {
            self.read().await?;
            self.begin_attempts();
            self.status.set(self.progress.waiting_since());
            if self.is_save_due() && !self.save().await? {
                return Ok(Ended::Changed);
            }
            let pause = self.pause();
            let clock = Arc::clone(&self.context.shared.clock);
            tokio::select! {
                biased;
                Some(settled) = self.attempts.next() => {
                    if let Some(ended) = self.settle(settled?).await? {
                        return Ok(ended);
                    }
                }
                // The registry, which holds the sender, lives as long as the fleet.
                _ = self.commits.changed() => self.may_have_more = true,
                () = clock.sleep(pause) => {
                    if pause >= MAX_PAUSE {
                        self.may_have_more = true;
                        self.context.receiver.forget_client();
                    }
                }
            }
        }
    }

    /// Reads rows into the window.
    async fn read(&mut self) -> Result<(), FleetError> {
        while self.may_have_more && self.progress.room() > 0 {
            let (registry, product_id) = (&self.context.shared.registry, self.context.product_id);
            // Marked before the read, so that a commit after it is not missed.
            self.commits.mark_unchanged();
            let limit = i64::try_from(self.progress.room()).unwrap_or(i64::MAX);
            let rows = registry.audit_rows_after(product_id, self.progress.end(), limit).await?;
            self.may_have_more = i64::try_from(rows.len()).is_ok_and(|count| count == limit);
            if rows.is_empty() {
                return Ok(());
            }
            let before = self.progress.position();
            let context = Arc::clone(&self.context);
            self.progress.read(rows, |row| context.matches(row));
            if self.progress.position() != before {
                self.mark_unsaved();
            }
        }
        Ok(())
    }

    fn begin_attempts(&mut self) {
        let now = self.context.shared.clock.now();
        let max = if self.progress.is_failing() { 1 } else { MAX_ATTEMPTS };
        while self.attempts.len() < max {
            let letter = if self.letter_in_flight { None } else { self.letters.pop_front() };
            let attempt = match letter {
                Some((row, attempts)) => {
                    self.letter_in_flight = true;
                    Arc::clone(&self.context).send_letter(row, attempts)
                }
                None => match self.progress.next(now) {
                    Some(work) => Arc::clone(&self.context).send(work),
                    None => return,
                },
            };
            self.attempts.push(attempt);
        }
    }

    /// Records what has come of an attempt.
    async fn settle(&mut self, settled: Settled) -> Result<Option<Ended>, FleetError> {
        let now = self.context.shared.clock.now();
        match settled {
            Settled::Lane(_, LaneOutcome::Gone) | Settled::Letter(_, LaneOutcome::Gone) => {
                return self.suspend().await.map(Some);
            }
            Settled::Lane(lane, LaneOutcome::Known(outcome)) => {
                self.count(&outcome);
                let given_up = self.progress.settle(&lane, outcome, now, &self.context.rules);
                self.mark_unsaved();
                if let Some(given_up) = given_up {
                    self.context.shared.metrics.webhook_delivery(DeliveryOutcome::Dead);
                    tracing::warn!(
                        webhook_id = %self.row.webhook.webhook_id,
                        row = given_up.row,
                        error = given_up.error,
                        "A row was not delivered to a webhook and is given up."
                    );
                    self.unsaved.given_up.push(given_up);
                    if !self.save().await? {
                        return Ok(Some(Ended::Changed));
                    }
                }
            }
            Settled::Letter(row, LaneOutcome::Known(outcome)) => {
                self.count(&outcome);
                self.letter_in_flight = false;
                let error = match outcome {
                    Outcome::Failed { failure, .. } => Some(failure.error),
                    Outcome::Delivered { .. } | Outcome::CaughtUp { .. } => None,
                };
                self.unsaved.retried.push(RetriedLetter { row, error });
                self.mark_unsaved();
            }
        }
        Ok(None)
    }

    fn count(&mut self, outcome: &Outcome) {
        let outcome = match outcome {
            Outcome::Delivered { .. } => DeliveryOutcome::Delivered,
            Outcome::Failed { failure, .. } => {
                self.unsaved.last_error = Some(failure.error.clone());
                DeliveryOutcome::Failed
            }
            Outcome::CaughtUp { .. } => return,
        };
        self.context.shared.metrics.webhook_delivery(outcome);
    }

    /// The receiver is gone: the webhook pauses.
    async fn suspend(&mut self) -> Result<Ended, FleetError> {
        if !self.save().await? {
            return Ok(Ended::Changed);
        }
        let shared = &self.context.shared;
        let detail = json!({"webhook_id": self.row.webhook.webhook_id, "state": AuditWebhookState::Gone});
        let at = shared.clock.now();
        let entry = AuditEntry {
            at,
            event: Event::UpdateWebhook,
            engine: None,
            duration_ms: None,
            detail,
            call: None,
        };
        let error = "the receiver answered 410: it wants no more rows";
        shared.registry.suspend_webhook(&self.row, error, &entry).await?;
        Ok(Ended::Changed)
    }

    fn mark_unsaved(&mut self) {
        let now = self.context.shared.clock.monotonic();
        self.unsaved.since.get_or_insert(now);
    }

    fn is_save_due(&self) -> bool {
        let now = self.context.shared.clock.monotonic();
        self.unsaved.since.is_some_and(|since| now.saturating_sub(since) >= SAVE_INTERVAL)
    }

    /// Stores the progress. Returns whether the webhook is as it was.
    async fn save(&mut self) -> Result<bool, FleetError> {
        let Unsaved { since, last_error, given_up, retried } = std::mem::take(&mut self.unsaved);
        if since.is_none() {
            return Ok(true);
        }
        let (position, lagging) = self.progress.durable();
        let delivered_at = self.progress.delivered_at();
        let update = ProgressUpdate { position, lagging, delivered_at, last_error, given_up, retried };
        let (shared, row) = (&self.context.shared, &self.row);
        let (webhook_id, at) = (row.webhook.webhook_id, shared.clock.now());
        Ok(shared.registry.save_webhook_progress(webhook_id, row.revision, &update, at).await?)
    }

    /// How long to wait if nothing happens.
    fn pause(&self) -> Duration {
        let shared = &self.context.shared;
        let mut pause = MAX_PAUSE;
        if let Some(since) = self.unsaved.since {
            let passed = shared.clock.monotonic().saturating_sub(since);
            pause = pause.min(SAVE_INTERVAL.saturating_sub(passed));
        }
        // With attempts under way, the next one may have to wait for one of them.
        if let Some(at) = self.progress.next_retry_at().filter(|_| self.attempts.is_empty()) {
            let wait = at.unix_ms().saturating_sub(shared.clock.now().unix_ms()).max(0);
            pause = pause.min(Duration::from_millis(wait.unsigned_abs()));
        }
        pause
    }
}

impl AttemptContext {
    fn matches(&self, row: &AuditRow) -> bool {
        self.events.is_empty() || self.events.contains(&&*row.event)
    }

    /// Sends what is to be sent next of a lane.
    fn send(self: Arc<Self>, work: Work) -> BoxFuture<'static, Result<Settled, FleetError>> {
        Box::pin(async move {
            let (lane, end, row, failures) = match work {
                Work::Row(row) => (row.user_id.clone(), row.id, Some(row), 0),
                Work::Lagging { lane, next, end, failures } => {
                    let row = self.next_row(&lane, next, end).await?;
                    (lane, end, row, failures)
                }
            };
            let outcome = match row {
                Some(row) => self.deliver(row, failures.saturating_add(1)).await?,
                None => LaneOutcome::Known(Outcome::CaughtUp { end }),
            };
            Ok(Settled::Lane(lane, outcome))
        })
    }

    /// Sends a dead letter once more.
    fn send_letter(
        self: Arc<Self>,
        row: i64,
        attempts: u32,
    ) -> BoxFuture<'static, Result<Settled, FleetError>> {
        Box::pin(async move {
            let found = self.shared.registry.audit_rows_after(self.product_id, row - 1, 1).await?;
            let found = found.into_iter().next().ok_or(FleetError::UnreadableRow("row_id"))?;
            Ok(Settled::Letter(row, self.deliver(found, attempts.saturating_add(1)).await?))
        })
    }

    /// The first row of a lane from `next` to `end` that is to be sent.
    async fn next_row(&self, lane: &Lane, next: i64, end: i64) -> Result<Option<AuditRow>, FleetError> {
        let mut after = next.saturating_sub(1);
        loop {
            let registry = &self.shared.registry;
            let page =
                registry.audit_rows_of(self.product_id, lane.as_ref(), (after, end), LANE_PAGE).await?;
            let Some(last) = page.last() else { return Ok(None) };
            after = last.id;
            if let Some(row) = page.into_iter().find(|row| self.matches(row)) {
                return Ok(Some(row));
            }
        }
    }

    async fn deliver(&self, row: AuditRow, attempt: u32) -> Result<LaneOutcome, FleetError> {
        // First that of the product: whoever has many attempts waits for its own.
        let _product_permit = self.product_permits.acquire().await.map_err(FleetError::internal)?;
        let _permit = self.permits.acquire().await.map_err(FleetError::internal)?;
        if !self.shared.registry.is_leading_again().await {
            return Err(RegistryError::LostLeadership.into());
        }
        let (id, row_at) = (row.id, row.at);
        let clock = &self.shared.clock;
        let at = AttemptTime { wall: clock.now(), monotonic: clock.monotonic() };
        let outcome = match self.receiver.send(row, attempt, at, &self.rules).await {
            Answer::Accepted => Outcome::Delivered { row: id, at: row_at },
            Answer::Failed(failure) => Outcome::Failed { row: id, at: row_at, failure },
            Answer::Gone => return Ok(LaneOutcome::Gone),
        };
        Ok(LaneOutcome::Known(outcome))
    }
}
