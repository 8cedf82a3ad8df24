//! What is to be reported is queued once, by the commit in which it happens, and goes with its task.

use api::MessageId;
use futures::FutureExt as _;
use pretty_assertions::assert_eq;
use testkit::task_id;

use super::*;
use crate::{NewTurn, QueueEnd, TaskDeletion};

fn at(ms: i64) -> Timestamp {
    Timestamp::from_unix_ms(ms)
}

struct Outbox {
    _folder: tempfile::TempDir,
    brain: Brain,
    task: TaskRow,
}

impl Outbox {
    /// A brain with a task, of which these events are reported.
    async fn reporting(events: &[WebhookEvent]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let brain = Brain::open(&folder.path().join("brain.sqlite")).unwrap();
        let (task, events) = (brain.reserve_task(), events.iter().copied().collect());
        let written = brain.write(move |tx| {
            tx.insert_task(task, &task_id("t"), at(0))?;
            tx.set_webhook_events(&events)
        });
        written.await.unwrap();
        Self { _folder: folder, brain, task }
    }

    async fn report(&self, event: WebhookEvent, turn_id: TurnId, request_id: Option<HitlId>) {
        let task = self.task;
        let written = self
            .brain
            .write(move |tx| tx.report_event(event, task, &turn_id.to_string(), request_id, at(1_000)));
        written.await.unwrap();
    }

    async fn record(&self, due: &DueDelivery, outcome: AttemptOutcome) {
        let due = due.clone();
        self.brain.write(move |tx| tx.record_attempt(&due, &outcome, at(2_000))).await.unwrap();
    }

    fn states(&self) -> Vec<DeliveryState> {
        self.brain.deliveries(None).unwrap().into_iter().map(|delivery| delivery.state).collect()
    }
}

#[tokio::test]
async fn what_is_reported_is_queued_once() {
    let outbox = Outbox::reporting(&[WebhookEvent::TurnEnded]).await;
    assert_eq!(outbox.brain.next_delivery_at(at(5_000)).unwrap(), None);
    let (turn, request) = (TurnId::new(), HitlId::new());
    outbox.report(WebhookEvent::TurnEnded, turn, None).await;
    outbox.report(WebhookEvent::TurnEnded, turn, None).await;
    outbox.report(WebhookEvent::TurnWaiting, turn, Some(request)).await;
    let [delivery] = &outbox.brain.deliveries(None).unwrap()[..] else { panic!("one is queued") };
    assert_eq!((delivery.id.as_str(), delivery.turn_id), (format!("{turn}_ended").as_str(), turn));
    assert_eq!(delivery.next_attempt_at, Some(at(1_000)));
    assert_eq!(outbox.brain.next_delivery_at(at(5_000)).unwrap(), Some(at(0)));
    // Also if the clock is set back.
    let due = outbox.brain.due_delivery(at(1)).unwrap().unwrap();
    assert_eq!((due.task_id, due.created_at, due.failures), (task_id("t"), at(1_000), 0));

    // While nothing is reported, what is pending waits.
    outbox.brain.write(|tx| tx.set_webhook_events(&BTreeSet::new())).await.unwrap();
    assert_eq!(outbox.brain.next_delivery_at(at(5_000)).unwrap(), None);
    outbox.report(WebhookEvent::TurnEnded, TurnId::new(), None).await;
    assert_eq!(outbox.brain.delivery_counts().unwrap(), (1, 0));

    let task = outbox.task;
    outbox.brain.write(move |tx| tx.delete_task(task, &TaskDeletion::default())).await.unwrap();
    assert_eq!(outbox.brain.delivery_counts().unwrap(), (0, 0));
}

#[tokio::test]
async fn whoever_sends_is_woken_by_what_there_is_to_send_and_by_nothing_else() {
    let outbox = Outbox::reporting(&[WebhookEvent::TurnEnded]).await;
    let brain = &outbox.brain;
    let task = outbox.task;
    let woken = async || testkit::with_deadline(brain.webhook_changed()).await;
    // By the events that are set.
    woken().await;
    let begin = async |turn_id: TurnId| {
        let turn = NewTurn { turn_id, message_id: MessageId::new(), request: None };
        brain.write(move |tx| tx.insert_turn(task, &turn, 1, at(1))).await.unwrap();
    };
    // A sleeper that is woken is so before the next commit begins.
    let assert_asleep = async || {
        brain.write(|_| Ok(())).await.unwrap();
        assert!(brain.webhook_changed().now_or_never().is_none());
    };
    begin(TurnId::new()).await;
    assert_asleep().await;
    // By a turn that is given up.
    begin(TurnId::new()).await;
    woken().await;
    let open = brain.open_turns().unwrap();
    assert_eq!((open.len(), brain.delivery_counts().unwrap()), (1, (1, 0)));
    // Not by an event that is not reported, nor by one that is queued already, nor by a commit that fails.
    outbox.report(WebhookEvent::TurnWaiting, TurnId::new(), Some(HitlId::new())).await;
    let given_up = brain.due_delivery(at(5)).unwrap().unwrap();
    outbox.report(WebhookEvent::TurnEnded, given_up.turn_id, None).await;
    let failed = brain.write(move |tx| {
        tx.report_event(WebhookEvent::TurnEnded, task, "turn_x", None, at(1))?;
        tx.insert("INSERT INTO turns (turn_id) VALUES (NULL)", [])
    });
    failed.await.unwrap_err();
    assert_asleep().await;
    // By one that is to be sent again, if there is one.
    assert!(!brain.write(|tx| tx.retry_delivery("unknown", at(1))).await.unwrap());
    assert_asleep().await;
    assert!(brain.write(move |tx| tx.retry_delivery(&given_up.id, at(1))).await.unwrap());
    woken().await;
    assert_asleep().await;
}

#[tokio::test]
async fn attempts_are_counted_and_a_fault_of_the_receiver_delays_the_others() {
    let outbox = Outbox::reporting(&WebhookEvent::ALL).await;
    let (turn, request) = (TurnId::new(), HitlId::new());
    outbox.report(WebhookEvent::TurnWaiting, turn, Some(request)).await;
    outbox.report(WebhookEvent::TurnEnded, turn, None).await;
    let first = outbox.brain.due_delivery(at(5_000)).unwrap().unwrap();
    assert_eq!((first.event, first.request_id), (WebhookEvent::TurnWaiting, Some(request)));
    let retry = |ms, others_at| AttemptOutcome::Retry {
        at: at(ms),
        others_at,
        give_up_at: first.give_up_at,
        error: "500".to_owned(),
    };
    outbox.record(&first, retry(9_000, None)).await;
    let second = outbox.brain.due_delivery(at(5_000)).unwrap().unwrap();
    assert_eq!(second.event, WebhookEvent::TurnEnded);
    outbox.record(&second, retry(20_000, Some(at(10_000)))).await;
    assert_eq!(outbox.brain.due_delivery(at(9_999)).unwrap(), None);
    let again = outbox.brain.due_delivery(at(10_000)).unwrap().unwrap();
    assert_eq!((&again.id, again.failures), (&first.id, 1));
    // What was read before a change decides nothing.
    outbox.record(&first, AttemptOutcome::Delivered).await;
    assert_eq!(outbox.states(), [DeliveryState::Pending; 2]);
    outbox.record(&again, AttemptOutcome::Delivered).await;
    let late = outbox.brain.due_delivery(at(20_000)).unwrap().unwrap();
    outbox.record(&late, AttemptOutcome::Failed { error: "410".to_owned() }).await;
    assert_eq!(outbox.states(), [DeliveryState::Failed, DeliveryState::Delivered]);
    assert_eq!(outbox.brain.next_delivery_at(at(5_000)).unwrap(), None);

    let (id, missing) = (late.id.clone(), "turn_x".to_owned());
    let retried = outbox
        .brain
        .write(move |tx| Ok((tx.retry_delivery(&id, at(7))?, tx.retry_delivery(&missing, at(7))?)));
    assert_eq!(retried.await.unwrap(), (true, false));
    let again = outbox.brain.due_delivery(at(8)).unwrap().unwrap();
    assert_eq!((again.failures, again.give_up_at), (0, at(7 + DELIVERY_LIFETIME_MS)));
    outbox.record(&late, AttemptOutcome::Delivered).await;
    assert_eq!(outbox.states()[0], DeliveryState::Pending, "what came before it was to be sent again");
    outbox.record(&again, AttemptOutcome::Obsolete).await;
    let [newest, _] = &outbox.brain.deliveries(None).unwrap()[..] else { panic!("two are kept") };
    assert_eq!((newest.state, newest.attempts), (DeliveryState::Obsolete, 2));
}

#[tokio::test]
async fn a_receiver_at_fault_is_left_alone_but_no_longer_than_clocks_are_right() {
    let outbox = Outbox::reporting(&[WebhookEvent::TurnEnded]).await;
    let (first, second) = (TurnId::new(), TurnId::new());
    outbox.report(WebhookEvent::TurnEnded, first, None).await;
    let due = outbox.brain.due_delivery(at(5_000)).unwrap().unwrap();
    let pause = |others_at| AttemptOutcome::Retry {
        at: at(9_000),
        others_at: Some(at(others_at)),
        give_up_at: due.give_up_at,
        error: "503".to_owned(),
    };
    outbox.record(&due, pause(8_000)).await;
    outbox.report(WebhookEvent::TurnEnded, second, None).await;
    assert_eq!(outbox.brain.due_delivery(at(7_999)).unwrap(), None);
    assert_eq!(outbox.brain.next_delivery_at(at(5_000)).unwrap(), Some(at(8_000)));
    let later = outbox.brain.due_delivery(at(8_000)).unwrap().unwrap();
    assert_eq!(later.turn_id, second);
    // The clock was far ahead for a moment.
    outbox.record(&later, pause(10 * MAX_DELAY_MS)).await;
    assert_eq!(outbox.brain.next_delivery_at(at(8_500)).unwrap(), Some(at(0)));
    assert_eq!(outbox.brain.due_delivery(at(8_500)).unwrap().unwrap().turn_id, first);
}

#[tokio::test]
async fn what_comes_late_of_a_deleted_event_decides_nothing_about_another() {
    let outbox = Outbox::reporting(&[WebhookEvent::TurnEnded]).await;
    let (task, turn) = (outbox.task, TurnId::new());
    outbox.report(WebhookEvent::TurnEnded, turn, None).await;
    let due = outbox.brain.due_delivery(at(5_000)).unwrap().unwrap();
    let other = outbox.brain.reserve_task();
    let written = outbox.brain.write(move |tx| {
        tx.delete_task(task, &TaskDeletion::default())?;
        tx.insert_task(other, &task_id("other"), at(0))?;
        tx.report_event(WebhookEvent::TurnEnded, other, &TurnId::new().to_string(), None, at(1_000))
    });
    written.await.unwrap();
    outbox.record(&due, AttemptOutcome::Delivered).await;
    assert_eq!(outbox.states(), [DeliveryState::Pending]);
}

#[tokio::test]
async fn what_is_pending_and_what_is_kept_is_bounded() {
    let outbox = Outbox::reporting(&[WebhookEvent::TurnEnded]).await;
    let task = outbox.task;
    let written = outbox.brain.write(move |tx| {
        (0..MAX_PENDING + KEPT_DELIVERIES + 10).try_for_each(|_| {
            tx.report_event(WebhookEvent::TurnEnded, task, &TurnId::new().to_string(), None, at(1))
        })
    });
    written.await.unwrap();
    let counts = (u64::from(MAX_PENDING), u64::from(KEPT_DELIVERIES));
    assert_eq!(outbox.brain.delivery_counts().unwrap(), counts);
    let failed = outbox.brain.deliveries(Some(DeliveryState::Failed)).unwrap();
    assert_eq!(failed[0].error.as_deref(), Some("more than 1000 were pending"));
}

#[tokio::test]
async fn every_end_of_a_turn_is_reported() {
    let outbox = Outbox::reporting(&[WebhookEvent::TurnEnded]).await;
    let task = outbox.task;
    let (given_up, next, queued) = (TurnId::new(), TurnId::new(), TurnId::new());
    let written = outbox.brain.write(move |tx| {
        let turn = |turn_id| NewTurn { turn_id, message_id: MessageId::new(), request: None };
        tx.insert_turn(task, &turn(given_up), 1, at(1))?;
        // The first one could not be written to its end.
        tx.insert_turn(task, &turn(next), 2, at(2))?;
        let message = crate::NewQueuedTurn {
            entry: 1,
            turn_id: queued,
            body: "{}".to_owned(),
            request: None,
            interrupts: false,
        };
        tx.insert_queued_turn(task, &message, at(3))?;
        tx.end_queued_turn(queued, QueueEnd::Cancelled, at(4)).map(drop)
    });
    written.await.unwrap();
    let turns = outbox.brain.deliveries(None).unwrap().into_iter().map(|delivery| delivery.turn_id);
    assert_eq!(turns.collect::<Vec<_>>(), [queued, given_up]);
}
