//! What waits for a person at any of a product's engines is in its inbox, whatever sleeps or is killed.

use std::collections::BTreeSet;

use mock_llm::{MockProvider, Reply};
use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::engine_calls::direct_message;
use crate::support::engine_fixture::{ask_user_reply, write_file_reply};
use crate::support::{Deployment, Engine, Product, assert_fields, eventually, processes};

/// A question in the inbox.
const QUESTION: &str = "engine_id:engine user_id:text request_id:hitl task_id:text turn_id:turn kind:text \
                        tool:text|null title:text|null since:time expires_at:time";

impl Product {
    /// The questions in the inbox.
    async fn inbox(&self, query: &str) -> Vec<Value> {
        let path = format!("/inbox{query}");
        let page = self.call(Method::GET, &path, None).await.assert_ok("questions:array");
        let questions = page["questions"].as_array().unwrap().clone();
        for question in &questions {
            assert_fields(question, QUESTION);
        }
        questions
    }

    /// Waits until the inbox has the questions with these ids and no others.
    async fn wait_for_inbox(&self, expected: &[&Value]) {
        let expected: BTreeSet<_> = expected.iter().map(|id| id.as_str().unwrap().to_owned()).collect();
        eventually(&format!("the inbox has {expected:?}"), async || {
            let questions = self.inbox("").await;
            let found: BTreeSet<_> = questions
                .iter()
                .map(|question| question["request_id"].as_str().unwrap().to_owned())
                .collect();
            (found == expected).then_some(())
        })
        .await;
    }
}

/// A deployment that notices soon what waits.
fn deployment(provider: &MockProvider) -> Deployment {
    Deployment::new()
        .with_provider(provider)
        .with_env("ORCH_HEALTH_CHECK_INTERVAL_S", "0.3")
        .with_env("ORCH_RESTART_BACKOFF_BASE_S", "0.2")
}

/// Has a user's agent ask a person in `task`; returns the id of the request.
async fn ask(provider: &MockProvider, engine: &Engine, task: &str, reply: Reply) -> Value {
    provider.enqueue(reply);
    let (_, request) = engine.run_until_hitl_request(&direct_message(task, "Go on.")).await;
    request.data["request_id"].clone()
}

#[tokio::test]
async fn what_waits_is_listed_until_it_is_answered_or_cancelled() {
    let provider = MockProvider::start().await.unwrap();
    let deployment = deployment(&provider);
    let (orchestrator, product) = deployment.start_with_product().await;
    let rival = orchestrator.register("rival", json!({})).await;
    let (ada, bob) = (product.engine("ada").await, product.engine("bob").await);
    assert!(product.inbox("").await.is_empty());
    let first = ask(&provider, &ada, "one", write_file_reply("a.txt")).await;
    // With the user, the engine itself is asked.
    let of_ada = product.inbox("?user_id=ada").await;
    let expected = json!({
        "engine_id": ada.id, "user_id": "ada", "request_id": first, "task_id": "one", "kind": "permission",
        "tool": "write_file",
    });
    for (field, value) in expected.as_object().unwrap() {
        assert_eq!(&of_ada[0][field], value, "{of_ada:?}");
    }
    assert!(!of_ada[0].to_string().contains("a.txt"), "the inbox has no content");
    let second = ask(&provider, &bob, "two", ask_user_reply("Which one?")).await;
    product.wait_for_inbox(&[&first, &second]).await;

    let ids =
        |questions: &[Value]| questions.iter().map(|found| found["request_id"].clone()).collect::<Vec<_>>();
    assert_eq!(ids(&product.inbox("").await), [first.clone(), second.clone()], "the oldest comes first");
    assert_eq!(ids(&product.inbox("?limit=1").await), std::slice::from_ref(&first));
    let after = format!("?after={}", first.as_str().unwrap());
    let rest = product.inbox(&after).await;
    assert_eq!(
        (ids(&rest), &rest[0]["kind"], &rest[0]["tool"]),
        (vec![second.clone()], &json!("question"), &Value::Null)
    );
    assert_eq!(ids(&product.inbox("?user_id=bob").await), std::slice::from_ref(&second));
    assert!(product.inbox("?user_id=nobody").await.is_empty());
    assert!(rival.inbox("").await.is_empty() && rival.inbox("?user_id=ada").await.is_empty());
    for query in ["?limit=0", "?limit=x", "?after=x", "?user_id="] {
        product.call(Method::GET, &format!("/inbox{query}"), None).await.assert_error(400, "INVALID_REQUEST");
    }

    provider.enqueue(Reply::from_text("Done."));
    assert_eq!(ada.respond("one", "yes").await.status, 200);
    assert!(product.inbox("?user_id=ada").await.is_empty(), "an answered question is gone");
    assert_eq!(bob.cancel("two").await.status, 200);
    product.wait_for_inbox(&[]).await;

    // The audit log, and thereby `/events`, has the beginning and the end of each.
    for (event, user, id) in [
        ("question_asked", "ada", &first),
        ("question_asked", "bob", &second),
        ("question_settled", "ada", &first),
        ("question_settled", "bob", &second),
    ] {
        let rows = product.audit_rows(event).await;
        let found: Vec<_> = rows.iter().filter(|row| row.1["request_id"] == *id).collect();
        assert_eq!(found.len(), 1, "{event} of {id}: {rows:?}");
        assert_eq!(found[0].0, user);
        assert!(!found[0].1.to_string().contains("Which one?"), "the audit log has no content");
    }
}

#[tokio::test]
async fn what_waits_outlives_the_sleep_of_its_engine() {
    let provider = MockProvider::start().await.unwrap();
    // No check notices it before the engine sleeps: it is asked on the way.
    let deployment = Deployment::new()
        .with_provider(&provider)
        .with_env("ORCH_HEALTH_CHECK_INTERVAL_S", "600")
        .with_env("ORCH_IDLE_SLEEP_THRESHOLD_S", "1");
    let (_orchestrator, product) = deployment.start_with_product().await;
    let engine = product.engine("ada").await;
    let request = ask(&provider, &engine, "task", ask_user_reply("Which one?")).await;
    product.wait_for_status("ada", "sleeping").await;
    product.wait_for_inbox(&[&request]).await;
    provider.enqueue(Reply::from_text("That one."));
    let engine = product.engine("ada").await;
    assert_eq!(engine.respond("task", "The first.").await.status, 200);
    assert!(product.inbox("?user_id=ada").await.is_empty());
}

#[tokio::test]
async fn what_waits_is_right_after_kills_of_either() {
    let provider = MockProvider::start().await.unwrap();
    let deployment = deployment(&provider);
    let (orchestrator, product) = deployment.start_with_product().await;
    let (ada, bob) = (product.engine("ada").await, product.engine("bob").await);
    let first = ask(&provider, &ada, "one", write_file_reply("a.txt")).await;
    let second = ask(&provider, &bob, "two", ask_user_reply("Which one?")).await;
    product.wait_for_inbox(&[&first, &second]).await;

    // The engine is killed: what it asked still waits, and it asks it again under the same id.
    let process = deployment.kill_engine(&ada);
    product.wait_for_inbox(&[&first, &second]).await;
    eventually("the engine is back", async || deployment.process_of(&ada).filter(|pid| *pid != process))
        .await;
    let ada = product.engine("ada").await;
    eventually("the question is asked again", async || (ada.pending().await.len() == 1).then_some(())).await;
    assert_eq!(product.inbox("?user_id=ada").await[0]["request_id"], first);

    // The orchestrator is dead while one question is answered and another one is asked.
    assert_eq!(orchestrator.signal_and_wait(Signal::KILL).await.code, None);
    provider.enqueue(Reply::from_text("Done."));
    assert_eq!(ada.respond("one", "no").await.status, 200);
    eventually("the turn has ended", async || (ada.task_status("one").await == "idle").then_some(())).await;
    let third = ask(&provider, &ada, "three", ask_user_reply("And now?")).await;
    let orchestrator = deployment.start().await;
    let product = Product::new(&orchestrator.base, &product.key);
    product.wait_for_inbox(&[&second, &third]).await;

    // An engine that does not answer keeps what is known of it.
    let process = deployment.process_of(&bob).unwrap();
    processes::signal(process, Signal::STOP);
    let questions = product.inbox("?user_id=bob").await;
    processes::signal(process, Signal::CONT);
    assert_eq!(questions[0]["request_id"], second);

    // A deleted engine asks nothing any more.
    product.delete("bob").await.assert_ok("status:text engine_id:engine");
    product.wait_for_inbox(&[&third]).await;
    product.stop("ada").await.assert_ok("status:text");
    product.wait_for_inbox(&[&third]).await;
}

#[tokio::test]
async fn what_nobody_answers_expires_although_its_engine_is_stopped() {
    let provider = MockProvider::start().await.unwrap();
    let deployment = deployment(&provider)
        .with_env(
            "ORCH_ENGINE_ENV_PASSTHROUGH",
            "LLM_PROVIDER,LLM_BASE_URL,LLM_API_KEY,CHANNEL_STATE_TTL_HITL",
        )
        .with_env("CHANNEL_STATE_TTL_HITL", "6");
    let (_orchestrator, product) = deployment.start_with_product().await;
    let engine = product.engine("ada").await;
    let request = ask(&provider, &engine, "task", ask_user_reply("Which one?")).await;
    product.stop("ada").await.assert_ok("status:text");
    product.wait_for_inbox(&[&request]).await;
    product.wait_for_inbox(&[]).await;
    assert_eq!(product.status("ada").await, "stopped");
}
