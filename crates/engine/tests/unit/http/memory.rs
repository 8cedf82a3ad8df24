//! Tests of the memory over HTTP and `/rpc`.

use pretty_assertions::assert_eq;
use serde_json::{Value, json};
use testkit::with_deadline;

use super::app::{ENGINE_KEY, TestApp, expect_error};
use super::rpc_tests::{expect_rpc_error, expect_rpc_result, post_rpc};

async fn post(app: &TestApp, path: &str, body: Value) -> reqwest::Response {
    with_deadline(app.request("POST", path).body(body.to_string()).send()).await.unwrap()
}

async fn get(app: &TestApp, path: &str) -> Value {
    let response = with_deadline(app.request("GET", path).send()).await.unwrap();
    assert_eq!(response.status(), 200, "{path}");
    with_deadline(response.json()).await.unwrap()
}

async fn save(app: &TestApp, body: Value) -> Value {
    let response = post(app, "/memory/knowledge", body).await;
    assert_eq!(response.status(), 200);
    with_deadline(response.json()).await.unwrap()
}

async fn search(app: &TestApp, body: Value) -> Vec<Value> {
    let response = post(app, "/memory/knowledge/search", body).await;
    assert_eq!(response.status(), 200);
    let mut answer: Value = with_deadline(response.json()).await.unwrap();
    serde_json::from_value(answer["results"].take()).unwrap()
}

#[tokio::test]
async fn knowledge_is_saved_found_replaced_listed_and_deleted() {
    let app = TestApp::start().await;
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
        let expected = json!({
            "id": first["id"], "content": first["content"], "source": "user", "tags": ["Hours"], "score": score,
            "created_at": first["created_at"],
        });
        assert_eq!(found[0], expected);
    }
    let second = save(&app, json!({"content": "The café opens at ten.", "supersedes": first["id"]})).await;
    let found = search(&app, json!({"query": "café", "limit": 100})).await;
    assert_eq!(found.iter().map(|found| &found["id"]).collect::<Vec<_>>(), [&second["id"]]);
    let listed = get(&app, "/memory/knowledge").await;
    assert_eq!((&listed["total"], &listed["knowledge"][0]), (&json!(2), &second));
    assert_eq!(listed["knowledge"][1]["valid_until"], second["created_at"]);
    assert_eq!(get(&app, "/memory/knowledge?limit=1&offset=1").await["knowledge"][0]["id"], first["id"]);

    let path = format!("/memory/knowledge/{}", second["id"].as_str().unwrap());
    let deleted = with_deadline(app.request("DELETE", &path).send()).await.unwrap();
    assert_eq!(with_deadline(deleted.json::<Value>()).await.unwrap(), json!({"status": "deleted"}));
    expect_error(with_deadline(app.request("DELETE", &path).send()).await.unwrap(), 404, "NOT_FOUND").await;
    // The record that it replaced is no longer true either.
    assert_eq!(search(&app, json!({"query": "café"})).await, Vec::<Value>::new());
    app.stop().await;
}

#[tokio::test]
async fn what_cannot_be_is_refused_with_a_reason() {
    let app = TestApp::start().await;
    let first = save(&app, json!({"content": "One."})).await["id"].clone();
    save(&app, json!({"content": "Two.", "supersedes": first})).await;
    let unknown = api::MemoryId::new().to_string();
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
        let message = expect_error(post(&app, "/memory/knowledge", body.clone()).await, status, code).await;
        assert!(message.contains(named), "{body}: {message}");
        let call = json!({"method": "memory.save", "params": body});
        let message =
            expect_rpc_error(post_rpc(&app, ENGINE_KEY, call.to_string()).await, 400, "INVALID_REQUEST")
                .await;
        assert!(message.contains(named), "{body}: {message}");
    }
    for body in [
        json!({}),
        json!({"query": 7}),
        json!({"query": "x", "limit": 0}),
        json!({"query": "x", "limit": 101}),
    ] {
        expect_error(post(&app, "/memory/knowledge/search", body).await, 400, "INVALID_REQUEST").await;
    }
    expect_error(
        post(&app, "/memory/knowledge/search", json!({"query": long})).await,
        400,
        "INVALID_REQUEST",
    )
    .await;
    for path in ["/memory/knowledge", "/memory/episodes"] {
        let unauthorized = with_deadline(app.request_without_key("GET", path).send()).await.unwrap();
        expect_error(unauthorized, 401, "INVALID_ENGINE_KEY").await;
    }
    let delete = json!({"method": "memory.delete", "params": {"id": unknown}});
    expect_rpc_error(post_rpc(&app, ENGINE_KEY, delete.to_string()).await, 400, "INVALID_REQUEST").await;
    assert_eq!(get(&app, "/memory/knowledge").await["total"], 2);
    app.stop().await;
}

#[tokio::test]
async fn all_that_is_remembered_is_found_by_rpc() {
    let mut app = TestApp::start().await;
    let call = |method: &str, params: Value| json!({"method": method, "params": params});
    let saved = expect_rpc_result(
        &app,
        ENGINE_KEY,
        call("memory.save", json!({"content": "Otters eat crabs.", "tags": null})),
    )
    .await;
    app.run_turn("t", "Tell me of otters, please.").await;
    app.run_turn("t", "And of seals.").await;
    app.restart().await;
    let found = expect_rpc_result(&app, ENGINE_KEY, call("memory.search", json!({"query": "otters"}))).await;
    let of_kind = |kind: &str| {
        let results = found["results"].as_array().unwrap();
        results
            .iter()
            .find(|found| found["kind"] == kind)
            .unwrap_or_else(|| panic!("{kind}: {found}"))
            .clone()
    };
    assert_eq!(of_kind("knowledge")["id"], saved["id"]);
    // There is room for the episodes of the turns that were found.
    assert!(of_kind("episode")["content"].as_str().unwrap().contains("Tell me of otters"));
    let run = of_kind("message");
    assert_eq!((&run["task_id"], run["message_ids"].as_array().unwrap().len()), (&json!("t"), 4));
    assert!(run["content"].as_str().unwrap().contains("And of seals."));
    // Pages follow each other.
    for (offset, count) in [(0, 1), (1, 1), (9, 0)] {
        let page = call("memory.search", json!({"query": "otters", "limit": 1, "offset": offset}));
        let page = expect_rpc_result(&app, ENGINE_KEY, page).await;
        let (page, all) = (page["results"].as_array().unwrap(), found["results"].as_array().unwrap());
        assert_eq!((page.len(), page.first()), (count, all.get(offset)), "{offset}");
    }

    let episodes = get(&app, "/memory/episodes").await;
    assert_eq!((&episodes["total"], &episodes["episodes"][0]["task_id"]), (&json!(2), &json!("t")));
    assert_eq!(expect_rpc_result(&app, ENGINE_KEY, call("memory.list", json!({}))).await["total"], 1);
    let deleted =
        expect_rpc_result(&app, ENGINE_KEY, call("memory.delete", json!({"id": saved["id"]}))).await;
    assert_eq!(deleted, json!({"status": "deleted"}));
    // The messages of a task are deleted with it.
    with_deadline(app.request("DELETE", "/tasks/t").send()).await.unwrap();
    let found = expect_rpc_result(&app, ENGINE_KEY, call("memory.search", json!({"query": "otters"}))).await;
    assert_eq!(found, json!({"results": []}));
    app.stop().await;
}
