//! The webhook: reports to the product that a turn has ended or waits for a person.
//!
//! What is to be reported is committed to the brain's outbox together with what happened. One task sends it, one request
//! at a time, until the receiver accepts it or it is given up. A request that is under way when the engine is killed is
//! sent again, with the same id.

mod attempt;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use api::turns::TurnRecord;
use api::webhooks::{
    DeliveryState, WebhookData, WebhookDeliveries, WebhookEvent, WebhookPayload, WebhookStatus, WebhookTest,
};
use api::{Timestamp, TurnId};
use attempt::{SendError, send};
use catalog::{WebhookSetting, WebhookSpec};
use store::{AttemptOutcome, Brain, DueDelivery};

use super::{Agent, AgentError, Services};

/// The longest pause: the wall clock may be set meanwhile.
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// How long to wait after a failure of the brain.
const STORE_RETRY_DELAY: Duration = Duration::from_secs(5);
/// The longest text of a turn that is reported, in bytes.
const MAX_TEXT_BYTES: usize = 256 * 1024;

/// The background task that sends what is to be reported.
pub(super) struct WebhookSender {
    brain: Brain,
    services: Arc<Services>,
}

/// What remains to be done.
enum Progress {
    /// There may be another delivery.
    Continue,
    /// The next one is sent after this time.
    Wait(Duration),
    /// There is none.
    Idle,
}

impl Services {
    /// The receiver, if the catalog names one.
    fn webhook_receiver(&self) -> Option<Arc<WebhookSpec>> {
        match &self.snapshots.current().webhook {
            WebhookSetting::Receiver(spec) => Some(Arc::clone(spec)),
            WebhookSetting::None | WebhookSetting::Unknown => None,
        }
    }

    fn webhook_data(&self) -> WebhookData {
        WebhookData { engine_id: self.engine_id.clone(), ..WebhookData::default() }
    }
}

impl WebhookSender {
    pub(super) fn new(brain: Brain, services: Arc<Services>) -> Self {
        Self { brain, services }
    }

    /// Sends deliveries forever. It may be dropped at any await.
    pub(super) async fn run(self) {
        loop {
            let progress = self.step().await.unwrap_or_else(|error| {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "A delivery could not be read or stored; this is retried.");
                Progress::Wait(STORE_RETRY_DELAY)
            });
            match progress {
                Progress::Continue => {}
                Progress::Wait(pause) => tokio::select! {
                    () = self.brain.webhook_changed() => {}
                    () = self.services.clock.sleep(pause) => {}
                },
                Progress::Idle => self.brain.webhook_changed().await,
            }
        }
    }

    /// Sends the next delivery.
    async fn step(&self) -> Result<Progress, AgentError> {
        let Some(receiver) = self.services.webhook_receiver() else { return Ok(Progress::Idle) };
        let now = self.services.clock.now();
        let due = self.brain.run_blocking(move |brain| brain.due_delivery(now)).await;
        let Some(due) = due.ok_or(AgentError::Stopping)?? else {
            let next = self.brain.next_delivery_at(now)?;
            let pause = next.map(|next| next.unix_ms().saturating_sub(now.unix_ms()).max(0).unsigned_abs());
            let pause = pause.map(|ms| Duration::from_millis(ms).min(MAX_PAUSE));
            return Ok(pause.map_or(Progress::Idle, Progress::Wait));
        };
        let outcome = match self.payload(&due).await? {
            None => AttemptOutcome::Obsolete,
            Some(payload) => {
                let sent = send(&self.services, &receiver, &due.id, &payload).await;
                attempt::decide(&due, sent, self.services.clock.now())
            }
        };
        if let AttemptOutcome::Failed { error } = &outcome {
            tracing::warn!(id = due.id, error, "An event could not be reported to the webhook.");
        }
        self.record(due, outcome).await;
        Ok(Progress::Continue)
    }

    /// Stores what came of an attempt. Until that is possible nothing is sent: it would be sent again and again.
    async fn record(&self, due: DueDelivery, outcome: AttemptOutcome) {
        let (attempt, at) = (Arc::new((due, outcome)), self.services.clock.now());
        loop {
            let recorded = Arc::clone(&attempt);
            let written = self.brain.write(move |tx| tx.record_attempt(&recorded.0, &recorded.1, at)).await;
            let Err(error) = written else { return };
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "What came of a delivery could not be stored; this is retried."
            );
            self.services.clock.sleep(STORE_RETRY_DELAY).await;
        }
    }

    /// What is reported now; `None` if there is nothing to report any more.
    async fn payload(&self, due: &DueDelivery) -> Result<Option<WebhookPayload>, AgentError> {
        let data = match due.event {
            WebhookEvent::TurnEnded => {
                let (task, turn_id) = (due.task, due.turn_id);
                let read = self.brain.run_blocking(move |brain| brain.turn_record(task, turn_id)).await;
                let Some(turn) = read.ok_or(AgentError::Stopping)?? else { return Ok(None) };
                WebhookData { turn: Some(shortened(turn)), ..self.services.webhook_data() }
            }
            WebhookEvent::TurnWaiting => {
                let pending = self.brain.run_blocking(Brain::pending).await;
                let mut pending = pending.ok_or(AgentError::Stopping)??.into_iter();
                let Some(request) = pending.find(|request| Some(request.request_id) == due.request_id) else {
                    return Ok(None);
                };
                let turn_id = Some(due.turn_id);
                WebhookData { turn_id, request: Some(request), ..self.services.webhook_data() }
            }
        };
        let data = WebhookData { task_id: Some(due.task_id.clone()), ..data };
        Ok(Some(WebhookPayload { kind: due.event.as_str().to_owned(), timestamp: due.created_at, data }))
    }
}

/// The turn, without its text if that is too long.
fn shortened(turn: TurnRecord) -> TurnRecord {
    let text = turn.text.filter(|text| text.len() <= MAX_TEXT_BYTES);
    TurnRecord { text, ..turn }
}

impl Agent {
    /// Has what the catalog names reported from now on.
    pub(crate) async fn apply_webhook_setting(&self) {
        let events = match &self.services.snapshots.current().webhook {
            WebhookSetting::None => BTreeSet::new(),
            WebhookSetting::Receiver(spec) => spec.events.clone(),
            // As before.
            WebhookSetting::Unknown => return,
        };
        let written = self.brain.write(move |tx| tx.set_webhook_events(&events)).await;
        if let Err(error) = written {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "What the webhook reports could not be stored; it is as before."
            );
        }
        self.brain.notify_webhook();
    }

    /// The receiver, and how many deliveries there are.
    pub fn webhook_status(&self) -> Result<WebhookStatus, AgentError> {
        let (pending, failed) = self.brain.delivery_counts()?;
        let receiver = self.services.webhook_receiver();
        Ok(WebhookStatus {
            receiver: receiver.as_ref().map(|receiver| receiver.call.origin()),
            events: receiver.map(|receiver| receiver.events.iter().copied().collect()).unwrap_or_default(),
            pending,
            failed,
        })
    }

    /// The deliveries in a state, or in any.
    pub async fn deliveries(&self, state: Option<DeliveryState>) -> Result<WebhookDeliveries, AgentError> {
        Ok(WebhookDeliveries { deliveries: self.read(move |brain| brain.deliveries(state)).await? })
    }

    /// Sends a delivery again.
    pub async fn retry_delivery(&self, id: String) -> Result<(), AgentError> {
        let _busy = self.begin_transfer()?;
        let at = self.services.clock.now();
        let found = self.brain.write(move |tx| tx.retry_delivery(&id, at)).await?;
        found.then_some(()).ok_or(AgentError::UnknownDelivery)
    }

    /// Sends a test to the receiver.
    pub async fn test_webhook(&self) -> Result<WebhookTest, AgentError> {
        let receiver = self.services.webhook_receiver().ok_or(AgentError::NoWebhook)?;
        let _busy_guard = self.begin_direct_call()?;
        let payload = WebhookPayload {
            kind: "test".to_owned(),
            timestamp: self.services.clock.now(),
            data: self.services.webhook_data(),
        };
        let id = TurnId::new().to_string().replacen("turn_", "test_", 1);
        let sent = send(&self.services, &receiver, &id, &payload).await;
        let error = sent.err().map(|SendError { reason, .. }| reason);
        Ok(WebhookTest { delivered: error.is_none(), error })
    }

    /// When the sender has to be awake next.
    pub(super) fn next_delivery_at(&self) -> Result<Option<Timestamp>, AgentError> {
        match self.services.webhook_receiver() {
            Some(_) => Ok(self.brain.next_delivery_at(self.services.clock.now())?),
            None => Ok(None),
        }
    }
}
