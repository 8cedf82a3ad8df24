//! A simulated user of a task: answers the agent's requests, steers it and cancels it, at random times.

use std::sync::Arc;
use std::time::{Duration, Instant};

use api::TurnId;
use api::event::{HitlKind, HitlRequest};
use serde_json::{Value, json};

use crate::client::{CallOutcome, error_code};
use crate::context::{EngineEndpoint, RunContext};
use crate::model_script::message_marker;
use crate::rng::{SeededRng, stable_hash};
use crate::task::TrackedTask;

/// How often a user looks for something to do.
const POLL_INTERVAL: Duration = Duration::from_millis(15);
/// How long to wait before repeating an answer whose outcome is unknown.
const RESEND_DELAY: Duration = Duration::from_millis(150);

/// A user of one task.
pub(crate) struct SimulatedUser {
    context: Arc<RunContext>,
    task: Arc<TrackedTask>,
    rng: SeededRng,
    /// When the planned steers of the turn are due.
    steers: Vec<Instant>,
    cancel: Option<Instant>,
    answer: Option<(HitlRequest, Instant)>,
    message_count: u64,
}

impl SimulatedUser {
    /// Creates a user of `task`.
    pub(crate) fn new(context: Arc<RunContext>, task: Arc<TrackedTask>) -> Self {
        let rng = SeededRng::new(context.seed, ("person", &task.name));
        Self { context, task, rng, steers: Vec::new(), cancel: None, answer: None, message_count: 0 }
    }

    /// Plans what to do in a turn that has started.
    pub(crate) fn plan_turn(&mut self, _turn: TurnId) {
        let now = Instant::now();
        let workload = self.context.workload;
        self.steers.clear();
        while self.rng.chance(workload.steer) {
            self.steers.push(now + self.rng.millis(0..=80));
        }
        self.cancel = self.rng.chance(workload.cancel).then(|| now + self.rng.millis(0..=150));
        self.answer = None;
    }

    /// Does what is due; returns how long nothing else will be.
    pub(crate) async fn act(&mut self, turn: TurnId) -> Duration {
        let Some(endpoint) = self.context.endpoint.borrow().clone() else { return POLL_INTERVAL };
        let now = Instant::now();
        if self.steers.pop_if(|due| *due <= now).is_some() {
            self.steer(&endpoint, turn).await;
        } else if self.cancel.take_if(|due| *due <= now).is_some() {
            self.cancel(&endpoint, turn).await;
        } else {
            self.handle_request(&endpoint, turn).await;
        }
        POLL_INTERVAL
    }

    async fn handle_request(&mut self, endpoint: &EngineEndpoint, turn: TurnId) {
        let pending = {
            let view = self.task.view();
            let unanswered =
                |request: &HitlRequest| !view.acknowledged.answers.contains_key(&request.request_id);
            view.pending.clone().filter(unanswered)
        };
        let Some(request) = pending else {
            self.answer = None;
            return;
        };
        match &self.answer {
            Some((planned, due)) if planned.request_id == request.request_id => {
                if *due <= Instant::now() {
                    self.respond(endpoint, turn, &request).await;
                }
            }
            _ => {
                let slow = self.rng.chance(self.context.workload.slow_user) && !self.context.is_settling();
                let wait = self.rng.millis(if slow { 800..=2_500 } else { 0..=60 });
                self.answer = Some((request, Instant::now() + wait));
            }
        }
    }

    async fn respond(&mut self, endpoint: &EngineEndpoint, turn: TurnId, request: &HitlRequest) {
        let first_try = self.task.view().acknowledged.attempted_answers.insert(request.request_id);
        let mut answers = vec![self.choose_answer(request.kind)];
        if self.rng.chance(self.context.workload.concurrent_answers) {
            answers.push(self.choose_answer(request.kind));
        }
        let first = self.send_answer(endpoint, request, answers.first());
        let (first, second) = tokio::join!(first, self.send_answer(endpoint, request, answers.get(1)));
        let accepted = [&first, &second]
            .into_iter()
            .flatten()
            .filter(|outcome| matches!(outcome, CallOutcome::Response(200, _)));
        let accepted = accepted.count();
        let refused = [&first, &second]
            .into_iter()
            .flatten()
            .all(|outcome| matches!(outcome, CallOutcome::Response(404, _)));
        let name = &self.task.name;
        if accepted > 1 {
            self.context
                .counters
                .record_violation(format!("{name}: {} accepted two answers", request.request_id));
        }
        let awaits_human = {
            let view = self.task.view();
            view.open_turn == Some(turn)
                && view.pending.as_ref() == Some(request)
                && !view.acknowledged.attempted_cancels.contains(&turn)
        };
        if refused
            && first_try
            && awaits_human
            && self.context.engine_number() == Some(endpoint.engine_number)
        {
            self.context.counters.record_violation(format!(
                "{name}: {} is pending, but its answer was refused",
                request.request_id
            ));
        }
        self.answer = Some((request.clone(), Instant::now() + RESEND_DELAY));
    }

    fn choose_answer(&mut self, kind: HitlKind) -> Value {
        self.message_count += 1;
        match kind {
            HitlKind::Question => json!({"answer": format!("Answer {} to that.", self.message_count)}),
            HitlKind::Permission => match self.rng.between(0..=9) {
                0..=1 => json!({"answer": "no", "feedback": "Not now."}),
                2..=3 => json!({"answer": "always", "scope": "task"}),
                _ => json!({"answer": "yes"}),
            },
        }
    }

    async fn send_answer(
        &self,
        endpoint: &EngineEndpoint,
        request: &HitlRequest,
        answer: Option<&Value>,
    ) -> Option<CallOutcome> {
        let mut body = answer?.clone();
        let answer = body.get("answer")?.as_str()?.to_owned();
        let fields = body.as_object_mut()?;
        fields.insert("task_id".into(), self.task.name.as_str().into());
        fields.insert("request_id".into(), request.request_id.to_string().into());
        let outcome = self.context.api.post(&format!("{}/hitl/respond", endpoint.base_url), &body).await;
        match &outcome {
            CallOutcome::Response(200, _) => {
                self.context.trigger.notify("answer accepted");
                self.task.view().acknowledged.answers.insert(request.request_id, answer);
                self.context.counters.count("answers of a person");
            }
            CallOutcome::Response(404, body) if error_code(body) == "HITL_NOT_PENDING" => {
                self.context.counters.count("answers refused as too late");
            }
            CallOutcome::Response(503, body) if error_code(body) == "SHUTTING_DOWN" => {}
            CallOutcome::Response(status, answer) => {
                self.context
                    .counters
                    .record_violation(format!("{}: {body} was refused: {status} {answer}", self.task.name));
            }
            CallOutcome::NotSent | CallOutcome::Unknown => {}
        }
        Some(outcome)
    }

    async fn steer(&mut self, endpoint: &EngineEndpoint, turn: TurnId) {
        self.message_count += 1;
        let number = stable_hash((&self.task.name, "steer", self.message_count)) >> 16;
        let body = json!({"task_id": self.task.name, "message": format!("{} And mind this.", message_marker(number))});
        match self.context.api.post(&format!("{}/execute/steer", endpoint.base_url), &body).await {
            CallOutcome::Response(200, _) => {
                self.context.trigger.notify("steer accepted");
                self.task.view().acknowledged.steers.push((number, turn));
                self.context.counters.count("steers");
            }
            outcome => self.check_rejection("steer", &outcome, turn, endpoint).await,
        }
    }

    async fn cancel(&mut self, endpoint: &EngineEndpoint, turn: TurnId) {
        self.task.view().acknowledged.attempted_cancels.insert(turn);
        let body = json!({"task_id": self.task.name});
        match self.context.api.post(&format!("{}/execute/cancel", endpoint.base_url), &body).await {
            CallOutcome::Response(200, body) => {
                self.context.trigger.notify("cancel accepted");
                let cancelled = body.get("turn_id").and_then(Value::as_str).and_then(|id| id.parse().ok());
                self.task.view().acknowledged.cancelled.insert(cancelled.unwrap_or(turn));
                self.context.counters.count("cancels");
            }
            outcome => self.check_rejection("cancel", &outcome, turn, endpoint).await,
        }
    }

    /// Checks a refusal: a turn that has just ended can be neither steered nor cancelled, a running one can.
    async fn check_rejection(
        &self,
        what: &str,
        outcome: &CallOutcome,
        turn: TurnId,
        endpoint: &EngineEndpoint,
    ) {
        match outcome {
            CallOutcome::Response(404, body) if error_code(body) == "TASK_NOT_RUNNING" => {
                let mut changes = self.task.subscribe();
                let ended = changes.wait_for(|_| self.task.view().open_turn != Some(turn));
                let ended = tokio::time::timeout(Duration::from_secs(2), ended).await.is_ok();
                if !ended && self.context.engine_number() == Some(endpoint.engine_number) {
                    self.context.counters.record_violation(format!(
                        "{}: {turn} is running, but {what} returned that it is not",
                        self.task.name
                    ));
                }
            }
            CallOutcome::Response(503, body) if error_code(body) == "SHUTTING_DOWN" => {}
            CallOutcome::Response(status, body) => {
                self.context
                    .counters
                    .record_violation(format!("{}: {what} was refused: {status} {body}", self.task.name));
            }
            CallOutcome::NotSent | CallOutcome::Unknown => {}
        }
    }
}
