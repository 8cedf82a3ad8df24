//! What is remembered, over HTTP and `/rpc`.

use pretty_assertions::assert_eq;
use serde_json::{Value, json};

use super::app::{App, KEY, refusal};
use super::rpc_tests::{call_with, flat, result};
use crate::testing::within;

async fn post(app: &App, path: &str, body: Value) -> reqwest::Response {
    within(app.request("POST", path).body(body.to_string()).send()).await.unwrap()
}

async fn get(app: &App, path: &str) -> Value {
    let response = within(app.request("GET", path).send()).await.unwrap();
    assert_eq!(response.status(), 200, "{path}");
    within(response.json()).await.unwrap()
}

async fn save(app: &App, body: Value) -> Value {
    let response = post(app, "/memory/knowledge", body).await;
    assert_eq!(response.status(), 200);
    within(response.json()).await.unwrap()
}

async fn search(app: &App, body: Value) -> Vec<Value> {
    let response = post(app, "/memory/knowledge/search", body).await;
    assert_eq!(response.status(), 200);
    let mut answer: Value = within(response.json()).await.unwrap();
    serde_json::from_value(answer["results"].take()).unwrap()
}

#[tokio::test]
async fn knowledge_is_saved_found_replaced_listed_and_deleted() {
    let app = App::start().await;
    assert_eq!(get(&app, "/memory/knowledge").await, json!({"knowledge": [], "total": 0}));
    let first =
        save(&app, json!({"content": "The café opens at nine.", "tags": ["Hours"], "source": "learned"}))
            .await;
    assert_eq!((&first["source"], &first["tags"]), (&json!("user"), &json!(["Hours"])));
    for query in ["cafe", "OPENING?", "hours \" OR ) NEAR( *", "when does the café open"] {
        let found = search(&app, json!({"query": query})).await;
        assert_eq!(found.len(), 1, "{query}");
        let score = found[0]["score"].as_f64().unwrap();
        assert!(score > 0.0);
        let wanted = json!({
            "id": first["id"], "content": first["content"], "source": "user", "tags": ["Hours"], "score": score,
            "created_at": first["created_at"],
        });
        assert_eq!(found[0], wanted);
    }
    let second = save(&app, json!({"content": "The café opens at ten.", "supersedes": first["id"]})).await;
    let found = search(&app, json!({"query": "café", "limit": 100})).await;
    assert_eq!(found.iter().map(|found| &found["id"]).collect::<Vec<_>>(), [&second["id"]]);
    let listed = get(&app, "/memory/knowledge").await;
    assert_eq!((&listed["total"], &listed["knowledge"][0]), (&json!(2), &second));
    assert_eq!(listed["knowledge"][1]["valid_until"], second["created_at"]);
    assert_eq!(get(&app, "/memory/knowledge?limit=1&offset=1").await["knowledge"][0]["id"], first["id"]);

    let path = format!("/memory/knowledge/{}", second["id"].as_str().unwrap());
    let deleted = within(app.request("DELETE", &path).send()).await.unwrap();
    assert_eq!(within(deleted.json::<Value>()).await.unwrap(), json!({"status": "deleted"}));
    refusal(within(app.request("DELETE", &path).send()).await.unwrap(), 404, "NOT_FOUND").await;
    // What it had replaced is as untrue as it was.
    assert_eq!(search(&app, json!({"query": "café"})).await, Vec::<Value>::new());
    app.stop().await;
}

#[tokio::test]
async fn what_cannot_be_is_refused_with_a_reason() {
    let app = App::start().await;
    let first = save(&app, json!({"content": "One."})).await["id"].clone();
    save(&app, json!({"content": "Two.", "supersedes": first})).await;
    let unknown = contract::MemoryId::new().to_string();
    let long = "x".repeat(16_385);
    for (body, status, code, named) in [
        (json!({}), 400, "INVALID_REQUEST", "content"),
        (json!({"content": " \n"}), 400, "INVALID_REQUEST", "`content`"),
        (json!({"content": long}), 400, "INVALID_REQUEST", "`content`"),
        (json!({"content": "x", "tags": [""]}), 400, "INVALID_REQUEST", "`tags`"),
        (json!({"content": "x", "tags": vec!["t"; 33]}), 400, "INVALID_REQUEST", "`tags`"),
        (json!({"content": "x", "supersedes": "mem_7"}), 400, "INVALID_REQUEST", "`supersedes`"),
        (json!({"content": "x", "supersedes": unknown}), 404, "NOT_FOUND", "`supersedes`"),
        (json!({"content": "x", "supersedes": first}), 400, "INVALID_REQUEST", "`supersedes`"),
    ] {
        let message = refusal(post(&app, "/memory/knowledge", body.clone()).await, status, code).await;
        assert!(message.contains(named), "{body}: {message}");
        let call = json!({"method": "memory.save", "params": body});
        let message = flat(call_with(&app, KEY, call.to_string()).await, 400, "INVALID_REQUEST").await;
        assert!(message.contains(named), "{body}: {message}");
    }
    for body in [
        json!({}),
        json!({"query": 7}),
        json!({"query": "x", "limit": 0}),
        json!({"query": "x", "limit": 101}),
    ] {
        refusal(post(&app, "/memory/knowledge/search", body).await, 400, "INVALID_REQUEST").await;
    }
    refusal(post(&app, "/memory/knowledge/search", json!({"query": long})).await, 400, "INVALID_REQUEST")
        .await;
    for path in ["/memory/knowledge", "/memory/episodes"] {
        let keyless = within(app.keyless("GET", path).send()).await.unwrap();
        refusal(keyless, 401, "INVALID_ENGINE_KEY").await;
    }
    let delete = json!({"method": "memory.delete", "params": {"id": unknown}});
    flat(call_with(&app, KEY, delete.to_string()).await, 400, "INVALID_REQUEST").await;
    assert_eq!(get(&app, "/memory/knowledge").await["total"], 2);
    app.stop().await;
}

#[tokio::test]
async fn all_that_is_remembered_is_found_by_rpc() {
    let mut app = App::start().await;
    let call = |method: &str, params: Value| json!({"method": method, "params": params});
    let saved =
        result(&app, KEY, call("memory.save", json!({"content": "Otters eat crabs.", "tags": null}))).await;
    app.say("t", "Tell me of otters, please.").await;
    app.say("t", "And of seals.").await;
    app.restart().await;
    let found = result(&app, KEY, call("memory.search", json!({"query": "otters"}))).await;
    let of = |kind: &str| {
        let results = found["results"].as_array().unwrap();
        results
            .iter()
            .find(|found| found["kind"] == kind)
            .unwrap_or_else(|| panic!("{kind}: {found}"))
            .clone()
    };
    assert_eq!(of("knowledge")["id"], saved["id"]);
    assert!(of("episode")["content"].as_str().unwrap().contains("Tell me of otters"));
    let window = of("message");
    assert_eq!((&window["task_id"], window["message_ids"].as_array().unwrap().len()), (&json!("t"), 4));
    assert!(window["content"].as_str().unwrap().contains("And of seals."));

    let episodes = get(&app, "/memory/episodes").await;
    assert_eq!((&episodes["total"], &episodes["episodes"][0]["task_id"]), (&json!(2), &json!("t")));
    assert_eq!(result(&app, KEY, call("memory.list", json!({}))).await["total"], 1);
    let deleted = result(&app, KEY, call("memory.delete", json!({"id": saved["id"]}))).await;
    assert_eq!(deleted, json!({"status": "deleted"}));
    // What was said in a task goes with it.
    within(app.request("DELETE", "/tasks/t").send()).await.unwrap();
    let found = result(&app, KEY, call("memory.search", json!({"query": "otters"}))).await;
    assert_eq!(found, json!({"results": []}));
    app.stop().await;
}
