//! The person at a task: answers what the agent asks, steers it and cancels it, at random moments.

use std::sync::Arc;
use std::time::{Duration, Instant};

use contract::TurnId;
use contract::event::{HitlKind, HitlRequest};
use serde_json::{Value, json};

use crate::api::{Asked, code};
use crate::dice::{Dice, hash};
use crate::script::mark;
use crate::task::Task;
use crate::world::{Place, World};

/// How often a person looks up.
const LOOK: Duration = Duration::from_millis(15);
/// How long to wait before an answer is sent again of which nobody knows whether it arrived.
const AGAIN: Duration = Duration::from_millis(150);

/// See the module.
pub(crate) struct Person {
    world: Arc<World>,
    task: Arc<Task>,
    dice: Dice,
    /// When what is planned for the turn is due.
    steers: Vec<Instant>,
    cancel: Option<Instant>,
    answer: Option<(HitlRequest, Instant)>,
    said: u64,
}

impl Person {
    /// Someone at `task`.
    pub(crate) fn new(world: Arc<World>, task: Arc<Task>) -> Self {
        let dice = Dice::new(world.seed, ("person", &task.name));
        Self { world, task, dice, steers: Vec::new(), cancel: None, answer: None, said: 0 }
    }

    /// Decides what to do in a turn that has begun.
    pub(crate) fn meets(&mut self, _turn: TurnId) {
        let now = Instant::now();
        let mix = self.world.mix;
        self.steers.clear();
        while self.dice.chance(mix.steer) {
            self.steers.push(now + self.dice.millis(0..=80));
        }
        self.cancel = self.dice.chance(mix.cancel).then(|| now + self.dice.millis(0..=150));
        self.answer = None;
    }

    /// Does what is due; gives how long nothing will be.
    pub(crate) async fn act(&mut self, turn: TurnId) -> Duration {
        let Some(place) = self.world.place.borrow().clone() else { return LOOK };
        let now = Instant::now();
        if self.steers.pop_if(|due| *due <= now).is_some() {
            self.steer(&place, turn).await;
        } else if self.cancel.take_if(|due| *due <= now).is_some() {
            self.cancel(&place, turn).await;
        } else {
            self.see_to_request(&place, turn).await;
        }
        LOOK
    }

    async fn see_to_request(&mut self, place: &Place, turn: TurnId) {
        let pending = {
            let view = self.task.view();
            let unanswered = |request: &HitlRequest| !view.promises.answers.contains_key(&request.request_id);
            view.pending.clone().filter(unanswered)
        };
        let Some(request) = pending else {
            self.answer = None;
            return;
        };
        match &self.answer {
            Some((planned, due)) if planned.request_id == request.request_id => {
                if *due <= Instant::now() {
                    self.respond(place, turn, &request).await;
                }
            }
            _ => {
                let slow = self.dice.chance(self.world.mix.slow_person) && !self.world.settles();
                let wait = self.dice.millis(if slow { 800..=2_500 } else { 0..=60 });
                self.answer = Some((request, Instant::now() + wait));
            }
        }
    }

    async fn respond(&mut self, place: &Place, turn: TurnId, request: &HitlRequest) {
        let first_try = self.task.view().promises.tried.insert(request.request_id);
        let mut answers = vec![self.choose(request.kind)];
        if self.dice.chance(self.world.mix.two_answers) {
            answers.push(self.choose(request.kind));
        }
        let first = self.answer(place, request, answers.first());
        let (first, second) = tokio::join!(first, self.answer(place, request, answers.get(1)));
        let accepted =
            [&first, &second].into_iter().flatten().filter(|asked| matches!(asked, Asked::Answered(200, _)));
        let accepted = accepted.count();
        let refused =
            [&first, &second].into_iter().flatten().all(|asked| matches!(asked, Asked::Answered(404, _)));
        let name = &self.task.name;
        if accepted > 1 {
            self.world.tally.violation(format!("{name}: {} took two answers", request.request_id));
        }
        let waits = {
            let view = self.task.view();
            view.open == Some(turn)
                && view.pending.as_ref() == Some(request)
                && !view.promises.cancelling.contains(&turn)
        };
        if refused && first_try && waits && self.world.engine() == Some(place.engine) {
            self.world
                .tally
                .violation(format!("{name}: {} waits, and an answer to it is refused", request.request_id));
        }
        self.answer = Some((request.clone(), Instant::now() + AGAIN));
    }

    fn choose(&mut self, kind: HitlKind) -> Value {
        self.said += 1;
        match kind {
            HitlKind::Question => json!({"answer": format!("Answer {} to that.", self.said)}),
            HitlKind::Permission => match self.dice.between(0..=9) {
                0..=1 => json!({"answer": "no", "feedback": "Not now."}),
                2..=3 => json!({"answer": "always", "scope": "task"}),
                _ => json!({"answer": "yes"}),
            },
        }
    }

    async fn answer(&self, place: &Place, request: &HitlRequest, answer: Option<&Value>) -> Option<Asked> {
        let mut body = answer?.clone();
        let answer = body.get("answer")?.as_str()?.to_owned();
        let fields = body.as_object_mut()?;
        fields.insert("task_id".into(), self.task.name.as_str().into());
        fields.insert("request_id".into(), request.request_id.to_string().into());
        let asked = self.world.api.post(&format!("{}/hitl/respond", place.base), &body).await;
        match &asked {
            Asked::Answered(200, _) => {
                self.world.trap.occurred("answer accepted");
                self.task.view().promises.answers.insert(request.request_id, answer);
                self.world.tally.count("answers of a person");
            }
            Asked::Answered(404, body) if code(body) == "HITL_NOT_PENDING" => {
                self.world.tally.count("answers refused as too late");
            }
            Asked::Answered(503, body) if code(body) == "SHUTTING_DOWN" => {}
            Asked::Answered(status, told) => {
                self.world
                    .tally
                    .violation(format!("{}: {body} was refused: {status} {told}", self.task.name));
            }
            Asked::Unsent | Asked::Unknown => {}
        }
        Some(asked)
    }

    async fn steer(&mut self, place: &Place, turn: TurnId) {
        self.said += 1;
        let number = hash((&self.task.name, "steer", self.said)) >> 16;
        let body = json!({"task_id": self.task.name, "message": format!("{} And mind this.", mark(number))});
        match self.world.api.post(&format!("{}/execute/steer", place.base), &body).await {
            Asked::Answered(200, _) => {
                self.world.trap.occurred("steer accepted");
                self.task.view().promises.steers.push((number, turn));
                self.world.tally.count("steers");
            }
            asked => self.refused("steer", &asked, turn, place).await,
        }
    }

    async fn cancel(&mut self, place: &Place, turn: TurnId) {
        self.task.view().promises.cancelling.insert(turn);
        let body = json!({"task_id": self.task.name});
        match self.world.api.post(&format!("{}/execute/cancel", place.base), &body).await {
            Asked::Answered(200, body) => {
                self.world.trap.occurred("cancel accepted");
                let cancelled = body.get("turn_id").and_then(Value::as_str).and_then(|id| id.parse().ok());
                self.task.view().promises.cancelled.insert(cancelled.unwrap_or(turn));
                self.world.tally.count("cancels");
            }
            asked => self.refused("cancel", &asked, turn, place).await,
        }
    }

    /// A turn that has just ended can be neither steered nor cancelled; one that runs can.
    async fn refused(&self, what: &str, asked: &Asked, turn: TurnId, place: &Place) {
        match asked {
            Asked::Answered(404, body) if code(body) == "TASK_NOT_RUNNING" => {
                let mut changes = self.task.changes();
                let ended = changes.wait_for(|_| self.task.view().open != Some(turn));
                let ended = tokio::time::timeout(Duration::from_secs(2), ended).await.is_ok();
                if !ended && self.world.engine() == Some(place.engine) {
                    self.world.tally.violation(format!(
                        "{}: {turn} runs, and {what} says that it does not",
                        self.task.name
                    ));
                }
            }
            Asked::Answered(503, body) if code(body) == "SHUTTING_DOWN" => {}
            Asked::Answered(status, body) => {
                self.world
                    .tally
                    .violation(format!("{}: {what} was refused: {status} {body}", self.task.name));
            }
            Asked::Unsent | Asked::Unknown => {}
        }
    }
}
