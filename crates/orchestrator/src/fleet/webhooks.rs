//! Webhooks of the audit log: a product's team registers receivers, which get the rows of its audit log.
//!
//! Each webhook that sends has a worker ([`worker`]), which continues where the registry says that it is. Whoever changes
//! a webhook commits the change and then replaces its worker before the call is answered: what was under way under the
//! former settings is dropped, and nothing is sent under them any more.

mod attempt;
mod worker;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use api::audit::AuditEvent;
use api::audit_webhooks::{
    AuditWebhook, AuditWebhookList, AuditWebhookState, CreateAuditWebhook, CreatedAuditWebhook,
    DeadLetterList, DeletedAuditWebhook, ListDeadLetters, MAX_AUDIT_WEBHOOKS, MAX_DEAD_LETTERS,
    ReplayAuditWebhook, RotatedWebhookSecret, SECRET_OVERLAP_S, SelectDeadLetters, SettledDeadLetters,
    UpdateAuditWebhook,
};
use api::orchestrator::PageLimit;
use api::serde_helpers::BoundedInt;
use api::webhooks::WebhookSecretText;
use api::{AuditWebhookId, ProductId, Timestamp};
use fetch::{Target, special_purpose};
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use url::Host;

use self::worker::{Worker, WorkerStatus};
use super::FleetError;
use super::caller::Caller;
use super::queries::DEFAULT_PAGE_SIZE;
use super::shared::Shared;
use crate::domain::{Actor, WebhookRules};
use crate::keys::Purpose;
use crate::registry::{AuditEntry, Event, NewWebhook, Product, WebhookChange, WebhookRefused, WebhookRow};

/// The pause before the webhooks are looked up again if that failed.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Attempts under way of all products together. Those that wait for one are served in order, and each webhook waits with
/// few at a time, so that no product's receivers keep those of others from their turn.
const MAX_ATTEMPTS: usize = 256;
/// Attempts under way of one product.
const MAX_ATTEMPTS_OF_PRODUCT: usize = 16;

/// The webhooks of all products.
pub(crate) struct Webhooks {
    shared: Arc<Shared>,
    /// Whether the first comparison is done.
    ready: watch::Receiver<bool>,
    rules: Arc<WebhookRules>,
    permits: Arc<Semaphore>,
    product_permits: Mutex<HashMap<ProductId, Arc<Semaphore>>>,
    /// The workers. Whoever replaces one holds the lock until the former one has ended.
    workers: tokio::sync::Mutex<HashMap<AuditWebhookId, RunningWorker>>,
    /// How far each worker is behind, for metrics.
    statuses: Mutex<HashMap<AuditWebhookId, Arc<WorkerStatus>>>,
    tasks: TaskTracker,
    shutdown: CancellationToken,
}

struct RunningWorker {
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Webhooks {
    pub(super) fn new(shared: &Arc<Shared>, ready: &watch::Receiver<bool>, rules: WebhookRules) -> Arc<Self> {
        Arc::new(Self {
            shared: Arc::clone(shared),
            ready: ready.clone(),
            rules: Arc::new(rules),
            permits: Arc::new(Semaphore::new(MAX_ATTEMPTS)),
            product_permits: Mutex::default(),
            workers: tokio::sync::Mutex::default(),
            statuses: Mutex::default(),
            tasks: TaskTracker::new(),
            shutdown: CancellationToken::new(),
        })
    }

    /// Sends the rows of all webhooks until `shutdown`.
    pub(super) async fn run(self: Arc<Self>, shutdown: CancellationToken) {
        shutdown.run_until_cancelled(self.start_all()).await;
        shutdown.cancelled().await;
        self.shutdown.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    async fn start_all(self: &Arc<Self>) {
        // The sender lives as long as the fleet.
        let _ = self.ready.clone().wait_for(|ready| *ready).await;
        let active = loop {
            match self.shared.registry.active_webhooks().await {
                Ok(active) => break active,
                Err(error) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "The webhooks could not be looked up; retrying."
                    );
                    self.shared.clock.sleep(RETRY_INTERVAL).await;
                }
            }
        };
        for webhook_id in active {
            let mut workers = self.workers.lock().await;
            // One that was changed since then has its worker.
            workers.entry(webhook_id).or_insert_with(|| self.start(webhook_id));
        }
    }

    /// The age of the oldest row that waits to be sent.
    pub(crate) fn lag(&self) -> Duration {
        let now = self.shared.clock.now();
        let oldest = self.statuses.lock().values().filter_map(|status| status.waiting_since()).min();
        let lag = oldest.map_or(0, |oldest| now.unix_ms().saturating_sub(oldest.unix_ms()).max(0));
        Duration::from_millis(lag.unsigned_abs())
    }

    /// Lists the product's webhooks, oldest first.
    pub(crate) async fn list(&self, product: &Product) -> Result<AuditWebhookList, FleetError> {
        let rows = self.shared.registry.webhooks(product.product_id).await?;
        Ok(AuditWebhookList { webhooks: rows.into_iter().map(|row| self.presented(row.webhook)).collect() })
    }

    /// Returns a webhook of the product.
    pub(crate) async fn get(
        &self,
        product: &Product,
        webhook_id: AuditWebhookId,
    ) -> Result<AuditWebhook, FleetError> {
        let row = self.shared.registry.webhook_of(product.product_id, webhook_id).await?;
        Ok(self.presented(row.ok_or(FleetError::WebhookNotFound)?.webhook))
    }

    /// Creates a webhook, which sends from then on.
    pub(crate) async fn create(
        self: &Arc<Self>,
        caller: &Caller,
        request: CreateAuditWebhook,
    ) -> Result<CreatedAuditWebhook, FleetError> {
        let (product_id, actor, call) = (caller.product_id, caller.actor(), caller.call().cloned());
        let CreateAuditWebhook { url, events, after } = request;
        let (target, events) = (self.checked_address(&url)?, distinct(events));
        let (webhook_id, secret) = (AuditWebhookId::new(), generate_secret()?);
        let sealed_secret =
            self.shared.vault.seal(&webhook_id.to_string(), Purpose::WebhookSecret, secret.expose())?;
        let detail = json!({"webhook_id": webhook_id, "receiver": receiver(&target), "events": events});
        let entry = self.entry(Event::CreateWebhook, detail, actor);
        let after = after.map(BoundedInt::get);
        let new = NewWebhook { webhook_id, url: target.url().to_string(), events, sealed_secret, after };
        let webhooks = Arc::clone(self);
        uninterrupted(async move {
            let mut answer = None;
            let mark = |row: &WebhookRow| {
                let created = CreatedAuditWebhook { secret, webhook: row.webhook.clone() };
                let mark = call.map(|call| call.applied_with(&created)).transpose();
                answer = Some(created);
                mark
            };
            let created = webhooks.shared.registry.create_webhook(product_id, &new, &entry, mark).await;
            webhooks.restart(webhook_id).await;
            created?.map_err(refused)?;
            answer.ok_or(FleetError::WebhookNotFound)
        })
        .await
    }

    /// Changes the settings of a webhook.
    pub(crate) async fn update(
        self: &Arc<Self>,
        caller: &Caller,
        webhook_id: AuditWebhookId,
        request: UpdateAuditWebhook,
    ) -> Result<AuditWebhook, FleetError> {
        let UpdateAuditWebhook { url, events, paused } = request;
        let target = url.map(|url| self.checked_address(&url)).transpose()?;
        let events = events.map(distinct);
        let state =
            paused.map(|paused| if paused { AuditWebhookState::Paused } else { AuditWebhookState::Active });
        let detail = json!({
            "webhook_id": webhook_id, "receiver": target.as_ref().map(receiver), "events": events, "state": state,
        });
        let url = target.map(|target| target.url().to_string());
        let change = WebhookChange::Update { url, events, state };
        self.change(caller, webhook_id, change, Event::UpdateWebhook, detail, |webhook, _| webhook).await
    }

    /// Gives a webhook another secret. The present one signs, too, for some time.
    pub(crate) async fn rotate_secret(
        self: &Arc<Self>,
        caller: &Caller,
        webhook_id: AuditWebhookId,
    ) -> Result<RotatedWebhookSecret, FleetError> {
        let secret = generate_secret()?;
        let sealed_secret =
            self.shared.vault.seal(&webhook_id.to_string(), Purpose::WebhookSecret, secret.expose())?;
        let now = self.shared.clock.now();
        let old_expires_at = Timestamp::from_unix_ms(now.unix_ms().saturating_add(SECRET_OVERLAP_S * 1_000));
        let detail = json!({"webhook_id": webhook_id, "old_secret_expires_at": old_expires_at});
        let change = WebhookChange::RotateSecret { sealed_secret, old_expires_at };
        let rotated = RotatedWebhookSecret { webhook_id, secret, old_secret_expires_at: old_expires_at };
        self.change(caller, webhook_id, change, Event::RotateWebhookSecret, detail, move |_, _| rotated).await
    }

    /// Sends the rows behind a position, also those that were delivered before.
    pub(crate) async fn replay(
        self: &Arc<Self>,
        caller: &Caller,
        webhook_id: AuditWebhookId,
        request: ReplayAuditWebhook,
    ) -> Result<AuditWebhook, FleetError> {
        let after = request.after.get();
        let detail = json!({"webhook_id": webhook_id, "after": after});
        let change = WebhookChange::Replay { after };
        self.change(caller, webhook_id, change, Event::ReplayWebhook, detail, |webhook, _| webhook).await
    }

    /// Deletes a webhook. Nothing is sent any more once this has returned.
    pub(crate) async fn delete(
        self: &Arc<Self>,
        caller: &Caller,
        webhook_id: AuditWebhookId,
    ) -> Result<DeletedAuditWebhook, FleetError> {
        let detail = json!({"webhook_id": webhook_id});
        let deleted = DeletedAuditWebhook { webhook_id, deleted_at: self.shared.clock.now() };
        let change = WebhookChange::Delete;
        self.change(caller, webhook_id, change, Event::DeleteWebhook, detail, move |_, _| deleted).await
    }

    /// Lists the rows that a webhook has given up, oldest first.
    pub(crate) async fn dead_letters(
        &self,
        product: &Product,
        webhook_id: AuditWebhookId,
        query: ListDeadLetters,
    ) -> Result<DeadLetterList, FleetError> {
        self.get(product, webhook_id).await?;
        let limit = query.limit.map_or(DEFAULT_PAGE_SIZE, PageLimit::get);
        let after = query.after.map_or(0, BoundedInt::get);
        let dead_letters = self.shared.registry.dead_letters(webhook_id, after, limit).await?;
        Ok(DeadLetterList { dead_letters })
    }

    /// Sends dead letters once more.
    pub(crate) async fn retry_dead_letters(
        self: &Arc<Self>,
        caller: &Caller,
        webhook_id: AuditWebhookId,
        request: SelectDeadLetters,
    ) -> Result<SettledDeadLetters, FleetError> {
        let rows = selected(request)?;
        let detail = json!({"webhook_id": webhook_id, "action": "retry", "rows": rows});
        let change = WebhookChange::RetryDeadLetters(rows);
        self.settle_dead_letters(caller, webhook_id, change, detail).await
    }

    /// Removes dead letters.
    pub(crate) async fn discard_dead_letters(
        self: &Arc<Self>,
        caller: &Caller,
        webhook_id: AuditWebhookId,
        request: SelectDeadLetters,
    ) -> Result<SettledDeadLetters, FleetError> {
        let rows = selected(request)?;
        let detail = json!({"webhook_id": webhook_id, "action": "discard", "rows": rows});
        let change = WebhookChange::DiscardDeadLetters(rows);
        self.settle_dead_letters(caller, webhook_id, change, detail).await
    }

    async fn settle_dead_letters(
        self: &Arc<Self>,
        caller: &Caller,
        webhook_id: AuditWebhookId,
        change: WebhookChange,
        detail: Value,
    ) -> Result<SettledDeadLetters, FleetError> {
        let answer = |_, count| SettledDeadLetters { count };
        self.change(caller, webhook_id, change, Event::SettleDeadLetters, detail, answer).await
    }

    /// Commits a change, and replaces the worker whether or not that is confirmed. Returns what `answer` makes of the
    /// webhook as it is then, and the number of dead letters that the change concerns.
    async fn change<T: Serialize + Send + 'static>(
        self: &Arc<Self>,
        caller: &Caller,
        webhook_id: AuditWebhookId,
        change: WebhookChange,
        event: Event,
        detail: Value,
        answer: impl FnOnce(AuditWebhook, u64) -> T + Send + 'static,
    ) -> Result<T, FleetError> {
        let (webhooks, product_id, call) = (Arc::clone(self), caller.product_id, caller.call().cloned());
        let entry = self.entry(event, detail, caller.actor());
        uninterrupted(async move {
            let mut answered = None;
            let mark = |row: &WebhookRow, count: u64| {
                let answer = answer(webhooks.presented(row.webhook.clone()), count);
                let mark = call.map(|call| call.applied_with(&answer)).transpose();
                answered = Some(answer);
                mark
            };
            let registry = &webhooks.shared.registry;
            let changed = registry.change_webhook(product_id, webhook_id, &change, &entry, mark).await;
            webhooks.restart(webhook_id).await;
            changed?.map_err(refused)?;
            answered.ok_or(FleetError::WebhookNotFound)
        })
        .await
    }

    /// Replaces the worker of a webhook, or starts one: it reads from the registry what is to be done. The former one
    /// sends nothing any more once this has returned.
    async fn restart(self: &Arc<Self>, webhook_id: AuditWebhookId) {
        let mut workers = self.workers.lock().await;
        if let Some(RunningWorker { stop, task }) = workers.remove(&webhook_id) {
            stop.cancel();
            // It has ended in any case, also if it panicked.
            let _ = task.await;
        }
        workers.retain(|_, worker| !worker.task.is_finished());
        workers.insert(webhook_id, self.start(webhook_id));
    }

    fn start(self: &Arc<Self>, webhook_id: AuditWebhookId) -> RunningWorker {
        let stop = self.shutdown.child_token();
        let (webhooks, stopped) = (Arc::clone(self), stop.clone());
        let task = self.tasks.spawn(async move {
            let status = Arc::new(WorkerStatus::default());
            webhooks.statuses.lock().insert(webhook_id, Arc::clone(&status));
            let worker = Worker::new(&webhooks, webhook_id, status);
            stopped.run_until_cancelled(worker.run()).await;
            webhooks.statuses.lock().remove(&webhook_id);
        });
        RunningWorker { stop, task }
    }

    /// The permits of a product's attempts.
    fn product_permits(&self, product_id: ProductId) -> Arc<Semaphore> {
        let mut permits = self.product_permits.lock();
        let new = || Arc::new(Semaphore::new(MAX_ATTEMPTS_OF_PRODUCT));
        Arc::clone(permits.entry(product_id).or_insert_with(new))
    }

    /// Checks an address as far as that is possible without resolving its name.
    fn checked_address(&self, url: &str) -> Result<Target, FleetError> {
        let refused = |reason: String| FleetError::InvalidWebhook(format!("url: {reason}"));
        let target = Target::parse(url).map_err(|error| refused(error.to_string()))?;
        if self.rules.allow.allows_host(target.url()) {
            return Ok(target);
        }
        if !target.is_secure() {
            return Err(refused(
                "must be an `https:` address, unless the operator allows it with ORCH_WEBHOOK_ALLOW"
                    .to_owned(),
            ));
        }
        let purpose = match target.url().host() {
            Some(Host::Ipv4(address)) => special_purpose(address.into()),
            Some(Host::Ipv6(address)) => special_purpose(address.into()),
            Some(Host::Domain(_)) | None => None,
        };
        match purpose {
            Some(what) => Err(refused(attempt::not_public(what))),
            None => Ok(target),
        }
    }

    /// The webhook as callers see it: without a secret that has expired.
    fn presented(&self, mut webhook: AuditWebhook) -> AuditWebhook {
        let now = self.shared.clock.now();
        webhook.old_secret_expires_at = webhook.old_secret_expires_at.filter(|at| *at > now);
        webhook
    }

    fn entry(&self, event: Event, detail: Value, actor: Actor) -> AuditEntry {
        let at = self.shared.clock.now();
        AuditEntry { at, event, engine: None, duration_ms: None, detail, call: None }.by(actor)
    }
}

/// Runs a change in a task of its own: a caller who disconnects must not leave a worker with former settings.
async fn uninterrupted<T: Send + 'static>(
    change: impl Future<Output = Result<T, FleetError>> + Send + 'static,
) -> Result<T, FleetError> {
    tokio::spawn(change).await.unwrap_or_else(|error| Err(FleetError::internal(error)))
}

fn generate_secret() -> Result<WebhookSecretText, FleetError> {
    WebhookSecretText::generate().map_err(FleetError::internal)
}

/// The receiver as the audit log names it: the rest of its address may be a secret.
fn receiver(target: &Target) -> String {
    target.url().origin().ascii_serialization()
}

fn selected(request: SelectDeadLetters) -> Result<Option<Vec<i64>>, FleetError> {
    let Some(rows) = request.rows else { return Ok(None) };
    if rows.len() > MAX_DEAD_LETTERS {
        let message = format!("rows: must have at most {MAX_DEAD_LETTERS} ids");
        return Err(FleetError::InvalidWebhook(message));
    }
    Ok(Some(rows.into_iter().map(BoundedInt::get).collect()))
}

/// The events of a filter, each once.
fn distinct(events: Vec<AuditEvent>) -> Vec<AuditEvent> {
    let mut seen = HashSet::new();
    events.into_iter().filter(|event| seen.insert(*event)).collect()
}

const fn refused(refused: WebhookRefused) -> FleetError {
    match refused {
        WebhookRefused::Limit => FleetError::WebhookLimit { max: MAX_AUDIT_WEBHOOKS },
        WebhookRefused::NoWebhook => FleetError::WebhookNotFound,
        WebhookRefused::Beyond { after, end } => FleetError::BeyondAuditLog { after, end },
    }
}
