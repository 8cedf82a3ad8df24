//! The webhook: the product learns that a turn has ended or waits for a person, at least once, also over kills.

use std::fs;
use std::path::Path;

use mock_llm::{Gate, Reply};
use serde_json::{Value, json};

use crate::support::engine_calls::{direct_message, with_fields};
use crate::support::engine_fixture::{ask_user_reply, wait_gate_reached};
use crate::support::tool_programs::done_reply;
use crate::support::webhook_receiver::{SECRETS, WebhookReceiver};
use crate::support::{EngineFixture, assert_fields, eventually};

const STATUS: &str = "receiver:text|null events:array pending:int failed:int";
pub(crate) const DELIVERY: &str = "id:text type:text state:text task_id:text turn_id:turn created_at:time attempts:int \
                                   next_attempt_at:time|null last_attempt_at:time|null error:text|null";

/// An engine that reports to `receiver`.
pub(crate) async fn fixture(
    receiver: &WebhookReceiver,
    replies: impl IntoIterator<Item = Reply>,
) -> EngineFixture {
    EngineFixture::with_setup("anthropic", replies, |setup| receiver.configure(setup)).await
}

/// The deliveries, the newest first.
pub(crate) async fn deliveries(fixture: &EngineFixture) -> Vec<Value> {
    let list = fixture.engine.get("/webhook/deliveries").await.assert_ok("deliveries:array");
    let list = list["deliveries"].as_array().unwrap().clone();
    for delivery in &list {
        assert_fields(delivery, DELIVERY);
    }
    list
}

/// Waits until the newest delivery is in this state.
pub(crate) async fn wait_state(fixture: &EngineFixture, state: &str) -> Value {
    eventually("the delivery is in its state", async || {
        deliveries(fixture).await.into_iter().next().filter(|delivery| delivery["state"] == state)
    })
    .await
}

/// Begins a turn that nobody watches; returns its id.
pub(crate) async fn begin(fixture: &EngineFixture, message: &str) -> String {
    let begun = fixture.engine.execute_in_background(direct_message("task", message)).await;
    begun["turn_id"].as_str().unwrap().to_owned()
}

fn replace_file(fixture: &EngineFixture, text: &str) {
    fs::write(Path::new(&fixture.setup.variables["CATALOG_DIR"]).join("webhook.json"), text).unwrap();
}

async fn reload(fixture: &EngineFixture) {
    let answer = fixture.engine.post("/admin/reload-catalog", &json!({})).await;
    answer.assert_ok("status:text counts:object warnings:array");
}

#[tokio::test]
async fn the_end_of_a_turn_is_reported_with_its_answer() {
    let receiver = WebhookReceiver::start().await;
    let fixture = fixture(&receiver, [Reply::from_text("東京は晴れです。")]).await;
    let turn = begin(&fixture, "Wie ist das Wetter in 東京?").await;
    let [body] = &receiver.wait_accepted(1).await[..] else { panic!("one event") };
    assert_fields(body, "type:text timestamp:time data:object");
    assert_fields(&body["data"], "task_id:text turn:object");
    let expected = fixture.engine.get(&format!("/tasks/task/turns/{turn}")).await.body;
    assert_eq!((&body["type"], &body["data"]["turn"]), (&json!("turn.ended"), &expected));
    assert_eq!((&expected["state"], &expected["text"]), (&json!("completed"), &json!("東京は晴れです。")));
    let delivered = wait_state(&fixture, "delivered").await;
    assert_eq!(receiver.state().ids, [delivered["id"].as_str().unwrap()]);
    assert_eq!((&delivered["attempts"], &delivered["turn_id"]), (&json!(1), &json!(turn)));
    let status = fixture.engine.get("/webhook").await.assert_ok(STATUS);
    assert_eq!((&status["pending"], &status["events"]), (&json!(0), &json!(["turn.ended", "turn.waiting"])));
    let shown = status["receiver"].as_str().unwrap();
    assert!(shown.starts_with("http://127.0.0.1:") && !shown.contains("hooks"), "{shown}");
    // What keeps no one waiting keeps no engine awake.
    assert!(fixture.engine.quiesce().await);
    assert!(!fixture.program.output().contains("whsec_"));
}

#[tokio::test]
async fn a_turn_that_waits_for_a_person_is_reported_as_long_as_it_waits() {
    let receiver = WebhookReceiver::start().await;
    let replies = [ask_user_reply("¿Qué ciudad?"), done_reply(), ask_user_reply("Why?"), done_reply()];
    let fixture = fixture(&receiver, replies).await;
    let turn = begin(&fixture, "Weather?").await;
    let waiting = receiver.wait_accepted(1).await.remove(0);
    assert_fields(&waiting["data"], "task_id:text turn_id:turn request:object");
    let pending = fixture.engine.get("/hitl/pending").await.body;
    assert_eq!((&waiting["type"], &waiting["data"]["turn_id"]), (&json!("turn.waiting"), &json!(turn)));
    assert_eq!(waiting["data"]["request"], pending["pending"][0]);
    assert_eq!(waiting["data"]["request"]["question"], "¿Qué ciudad?");
    fixture.engine.respond("task", "Roma").await.assert_ok("status:text request_id:text");
    let ended = receiver.wait_accepted(2).await.remove(1);
    assert_eq!((&ended["type"], &ended["data"]["turn"]["turn_id"]), (&json!("turn.ended"), &json!(turn)));

    // One that was answered in the meantime is not reported any more.
    receiver.state().failures.push_back((422, None));
    begin(&fixture, "And now?").await;
    wait_state(&fixture, "pending").await;
    receiver.wait_requests(3).await;
    fixture.engine.respond("task", "Because.").await.assert_ok("status:text request_id:text");
    assert_eq!(receiver.wait_accepted(3).await[2]["type"], "turn.ended");
    eventually("it is obsolete", async || {
        let list = deliveries(&fixture).await;
        (list[1]["state"] == "obsolete" && list[1]["type"] == "turn.waiting").then_some(())
    })
    .await;
    assert_eq!(receiver.state().ids.len(), 4);
}

#[tokio::test]
async fn what_is_not_accepted_is_sent_again_with_the_same_id() {
    let receiver = WebhookReceiver::start().await;
    let fixture = fixture(&receiver, [done_reply(), done_reply(), done_reply()]).await;
    receiver.state().failures.push_back((500, None));
    begin(&fixture, "Go.").await;
    receiver.wait_requests(1).await;
    let failed = eventually("the attempt is recorded", async || {
        deliveries(&fixture).await.into_iter().find(|delivery| delivery["attempts"] == 1)
    })
    .await;
    assert_eq!(
        (&failed["state"], &failed["error"]),
        (&json!("pending"), &json!("the receiver answered 500"))
    );
    assert!(!fixture.engine.quiesce().await, "it stays awake for so short a time");
    receiver.wait_accepted(1).await;
    {
        let state = receiver.state();
        assert_eq!((state.ids.len(), &state.ids[0]), (2, &state.ids[1]));
    }
    assert_eq!(wait_state(&fixture, "delivered").await["attempts"], 2);

    // One that the receiver never wants again is given up, until someone asks for it.
    receiver.state().failures.push_back((410, None));
    begin(&fixture, "Again.").await;
    let failed = wait_state(&fixture, "failed").await;
    assert_eq!(failed["error"], "the receiver answered 410");
    let only = fixture.engine.get("/webhook/deliveries?state=failed").await.body;
    assert_eq!(only["deliveries"].as_array().unwrap().len(), 1);
    let retry = format!("/webhook/deliveries/{}/retry", failed["id"].as_str().unwrap());
    assert_eq!(fixture.engine.post(&retry, &json!({})).await.status, 202);
    receiver.wait_accepted(2).await;
    assert_eq!(wait_state(&fixture, "delivered").await["attempts"], 2);
}

#[tokio::test]
async fn what_is_deleted_is_not_reported() {
    let receiver = WebhookReceiver::start().await;
    let fixture = fixture(&receiver, [done_reply(), done_reply()]).await;
    receiver.state().failures.push_back((422, None));
    begin(&fixture, "Go.").await;
    receiver.wait_requests(1).await;
    assert_eq!(fixture.engine.delete("/tasks/task").await.status, 200);
    assert_eq!(deliveries(&fixture).await, [Value::Null; 0]);
    begin(&fixture, "Again.").await;
    receiver.wait_accepted(1).await;
    assert_eq!(receiver.state().ids.len(), 2);
}

#[tokio::test]
async fn a_receiver_learns_a_new_secret_while_both_are_in_use() {
    let receiver = WebhookReceiver::start().await;
    let fixture = fixture(&receiver, [done_reply(), done_reply()]).await;
    replace_file(&fixture, &receiver.file(&SECRETS));
    reload(&fixture).await;
    for secret in 0..SECRETS.len() {
        receiver.state().secret = secret;
        begin(&fixture, "Go.").await;
        receiver.wait_accepted(secret + 1).await;
    }
}

#[tokio::test]
async fn a_test_says_what_is_wrong_and_is_no_delivery() {
    let receiver = WebhookReceiver::start().await;
    let fixture = fixture(&receiver, []).await;
    let test = async || {
        fixture.engine.post("/webhook/test", &json!({})).await.assert_ok("delivered:bool error:text|null")
    };
    assert_eq!(test().await, json!({"delivered": true, "error": null}));
    let body = receiver.wait_accepted(1).await.remove(0);
    assert_eq!((&body["type"], &body["data"]), (&json!("test"), &json!({})));
    receiver.state().failures.push_back((301, None));
    let moved = "the receiver answered 301; redirects are not followed";
    assert_eq!(test().await, json!({"delivered": false, "error": moved}));
    assert_eq!(deliveries(&fixture).await, [Value::Null; 0]);

    let unknown = fixture.engine.post("/webhook/deliveries/turn_1_ended/retry", &json!({})).await;
    unknown.assert_error(404, "DELIVERY_NOT_FOUND");
    fixture.engine.get("/webhook/deliveries?state=lost").await.assert_error(400, "INVALID_REQUEST");

    // Without a file there is no webhook.
    fs::remove_file(Path::new(&fixture.setup.variables["CATALOG_DIR"]).join("webhook.json")).unwrap();
    reload(&fixture).await;
    fixture.engine.post("/webhook/test", &json!({})).await.assert_error(409, "WEBHOOK_NOT_CONFIGURED");
    let status = fixture.engine.get("/webhook").await.assert_ok(STATUS);
    assert_eq!(status, json!({"receiver": null, "events": [], "pending": 0, "failed": 0}));
}

#[tokio::test]
async fn what_happens_while_the_file_is_faulty_is_reported_afterwards() {
    let receiver = WebhookReceiver::start().await;
    let fixture = fixture(&receiver, [done_reply()]).await;
    replace_file(&fixture, r#"{"url": 7, "secrets": ["whsec_secret"]}"#);
    let fixture = fixture.stop_and_start().await;
    let output = fixture.program.output();
    assert!(output.contains("nothing is reported until this is fixed"), "{output}");
    assert!(!output.contains("whsec_secret"));
    let turn = begin(&fixture, "Go.").await;
    wait_state(&fixture, "pending").await;
    assert!(fixture.engine.quiesce().await, "what cannot be reported keeps no engine awake");
    fixture.engine.lift_quiesce().await;
    replace_file(&fixture, &receiver.file(&SECRETS));
    reload(&fixture).await;
    let body = receiver.wait_accepted(1).await.remove(0);
    assert_eq!(body["data"]["turn"]["turn_id"], turn.as_str());
}

#[tokio::test]
async fn a_message_that_leaves_the_queue_is_reported() {
    let receiver = WebhookReceiver::start().await;
    let gate = Gate::new();
    let fixture = fixture(&receiver, [Reply::from_text("First.").hold(1, &gate)]).await;
    begin(&fixture, "First.").await;
    wait_gate_reached(&gate).await;
    let second = with_fields(direct_message("task", "Second."), json!({"on_busy": "queue"}));
    let second = fixture.engine.execute_in_background(second).await;
    let second = second["turn_id"].as_str().unwrap();
    let path = format!("/tasks/task/queue/{second}");
    assert_eq!(fixture.engine.delete(&path).await.status, 200);
    let body = receiver.wait_accepted(1).await.remove(0);
    let turn = &body["data"]["turn"];
    assert_eq!((&turn["turn_id"], &turn["state"]), (&json!(second), &json!("cancelled")));
    gate.release();
    assert_eq!(receiver.wait_accepted(2).await[1]["data"]["turn"]["state"], "completed");
}
