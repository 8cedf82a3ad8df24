//! Memory: a user saves, searches, lists, deletes, exports and imports what the engine remembers.

use mock_llm::Reply;
use serde_json::{Value, json};

use crate::support::http::send_raw;
use crate::support::turn::of_kind;
use crate::support::{EngineFixture, StandaloneEngine, assert_fields, eventually};

/// A knowledge record, as it is saved and listed.
const KNOWLEDGE: &str =
    "id:text content:text source:text tags:array created_at:time valid_until?:time supersedes?:text";
/// A result of a search in the knowledge.
const SEARCH_RESULT: &str = "id:text content:text source:text tags:array score:number created_at:time";

#[tokio::test]
async fn what_is_remembered_is_saved_found_listed_exported_and_deleted_by_its_methods() {
    let fixture = EngineFixture::new([Reply::from_text("Otters it is.")]).await;
    let engine = &fixture.engine;
    let saved =
        engine.rpc_result("memory.save", json!({"content": "Otters eat crabs.", "tags": ["animals"]})).await;
    assert_fields(&saved, KNOWLEDGE);
    assert_eq!((&saved["source"], &saved["tags"]), (&json!("user"), &json!(["animals"])));
    let events = engine.run_turn("task", "Tell me of otters.").await;

    // A search covers all of memory: knowledge, the outcomes of turns, and messages.
    let found = engine.rpc_result("memory.search", json!({"query": "otters"})).await;
    assert_fields(&found, "results:array");
    let result_of = |kind: &str| {
        let mut results = found["results"].as_array().unwrap().iter();
        results.find(|found| found["kind"] == kind).unwrap_or_else(|| panic!("no {kind} in {found}"))
    };
    let known = result_of("knowledge");
    assert_fields(
        known,
        "kind:text id:text content:text source:text tags:array score:number created_at:time",
    );
    assert_eq!((&known["id"], &known["content"]), (&saved["id"], &saved["content"]));
    let episode = result_of("episode");
    assert_fields(
        episode,
        "kind:text id:text content:text source:text score:number created_at:time task_id:text",
    );
    assert_eq!(episode["task_id"], "task");
    let run = result_of("message");
    assert_fields(
        run,
        "kind:text id:text content:text score:number created_at:time task_id:text message_ids:array",
    );
    let ids = json!([events[0].data["message_id"], events.last().unwrap().data["answer_message_id"]]);
    assert_eq!((&run["task_id"], &run["message_ids"]), (&json!("task"), &ids));
    let one = engine.rpc_result("memory.search", json!({"query": "otters", "limit": 1})).await;
    assert_eq!(one["results"].as_array().unwrap().len(), 1);

    // A newer record supersedes an older one.
    let superseding = json!({"content": "Otters eat fish.", "supersedes": saved["id"]});
    let superseding = engine.rpc_result("memory.save", superseding).await;
    assert_eq!(superseding["supersedes"], saved["id"]);
    let listed = engine.rpc_result("memory.list", json!({})).await;
    assert_fields(&listed, "knowledge:array total:int");
    assert_eq!((&listed["knowledge"][0], &listed["total"]), (&superseding, &json!(2)));
    assert_eq!(listed["knowledge"][1]["valid_until"], superseding["created_at"]);
    let page = engine.rpc_result("memory.list", json!({"limit": 1, "offset": 1})).await;
    assert_eq!((&page["knowledge"][0]["id"], &page["total"]), (&saved["id"], &json!(2)));

    let document = engine.rpc_result("memory.export", json!({})).await;
    assert_eq!(document, engine.get("/memory/export").await.body);
    assert!(document["version"].is_u64(), "{document}");

    let deleted = engine.rpc_result("memory.delete", json!({"id": superseding["id"]})).await;
    assert_eq!(deleted, json!({"status": "deleted"}));
    engine
        .rpc("memory.delete", json!({"id": superseding["id"]}))
        .await
        .assert_flat_error(400, "INVALID_REQUEST");
    let bad = [
        ("memory.save", json!({"content": " "}), "content"),
        ("memory.save", json!({"content": "x", "tags": "animals"}), "tags"),
        ("memory.save", json!({"content": "x", "supersedes": "mem_7"}), "supersedes"),
        ("memory.search", json!({}), "query"),
        ("memory.search", json!({"query": "x", "limit": 101}), "limit"),
        ("memory.list", json!({"limit": 0}), "limit"),
        ("memory.delete", json!({}), "id"),
    ];
    for (method, params, named) in bad {
        let refused = engine.rpc(method, params).await;
        assert!(refused.assert_flat_error(400, "INVALID_REQUEST").contains(named), "{method}");
    }
}

#[tokio::test]
async fn knowledge_and_episodes_are_searched_listed_and_deleted() {
    let fixture = EngineFixture::new([]).await;
    let engine = &fixture.engine;
    assert_eq!(engine.get("/memory/knowledge").await.body, json!({"knowledge": [], "total": 0}));
    let mut saved = Vec::new();
    for number in 0..12 {
        let record = json!({"content": format!("Pear number {number} is green."), "tags": ["fruit"]});
        saved.push(engine.post("/memory/knowledge", &record).await.assert_ok(KNOWLEDGE));
    }
    let search = async |body: Value| {
        let found = engine.post("/memory/knowledge/search", &body).await.assert_ok("results:array");
        let results = found["results"].as_array().unwrap().clone();
        for result in &results {
            assert_fields(result, SEARCH_RESULT);
        }
        results
    };
    assert_eq!(search(json!({"query": "pear"})).await.len(), 10, "the default limit is ten");
    assert_eq!(search(json!({"query": "pear", "limit": 100})).await.len(), 12);
    assert_eq!(search(json!({"query": "pear", "limit": 1})).await.len(), 1);
    for body in [json!({}), json!({"query": "pear", "limit": 0}), json!({"query": "pear", "limit": 101})] {
        engine.post("/memory/knowledge/search", &body).await.assert_error(400, "INVALID_REQUEST");
    }
    let page = engine.get("/memory/knowledge?limit=2&offset=1").await.assert_ok("knowledge:array total:int");
    assert_eq!(page, json!({"knowledge": [saved[10], saved[9]], "total": 12}));

    let path = format!("/memory/knowledge/{}", saved[3]["id"].as_str().unwrap());
    assert_eq!(engine.delete(&path).await.assert_ok("status:text"), json!({"status": "deleted"}));
    engine.delete(&path).await.assert_error(404, "NOT_FOUND");
    let fixture = fixture.kill_and_start().await;
    assert_eq!(fixture.engine.get("/memory/knowledge").await.body["total"], 11);

    let events = fixture.engine.run_turn("task", "Are pears green?").await;
    let episodes = fixture.engine.get("/memory/episodes").await.body;
    let [episode] = episodes["episodes"].as_array().unwrap().as_slice() else { panic!("one of {episodes}") };
    assert_fields(episode, "id:text task_id:text turn_id:turn content:text created_at:time");
    assert_eq!((&episode["task_id"], &episode["turn_id"]), (&json!("task"), &events[0].data["turn_id"]));
    for (method, path) in [
        ("POST", "/memory/knowledge/search"),
        ("GET", "/memory/knowledge"),
        ("DELETE", "/memory/knowledge/x"),
        ("GET", "/memory/episodes"),
        ("GET", "/memory/lessons"),
        ("GET", "/memory/export"),
        ("POST", "/memory/import"),
    ] {
        let answer = send_raw(&fixture.engine.url, &format!("{method} {path}"), &[], b"{").await;
        answer.assert_error(401, "INVALID_ENGINE_KEY");
    }
}

#[tokio::test]
async fn what_was_exported_is_known_to_the_engine_that_imports_it() {
    let fixture = EngineFixture::new([Reply::from_text("Nice to meet you, Ada.")]).await;
    fixture.engine.run_turn("task", "I am Ada.").await;
    let knowledge = json!({"content": "The heron is the staging database."});
    fixture.engine.post("/memory/knowledge", &knowledge).await.assert_ok(KNOWLEDGE);
    let skill = json!({"name": "rhyme", "prompt": "Rhyme."});
    assert_eq!(fixture.engine.post("/skills/create", &skill).await.status, 200);
    let document = fixture.engine.get("/memory/export").await.body;
    assert!(document["version"].is_u64(), "{document}");

    let setup = StandaloneEngine::new();
    let (_program, other) = setup.start().await;
    other.run_turn("mine", "Hello!").await;
    let import = async |query: &str| other.post(&format!("/memory/import{query}"), &document).await;
    let merged = import("").await.assert_ok("status:text mode:text counts:object");
    assert_eq!((&merged["status"], &merged["mode"]), (&json!("imported"), &json!("merge")));
    assert_eq!(other.messages("task").await, fixture.engine.messages("task").await);
    assert_eq!((other.tasks("").await.1, other.messages("mine").await.len()), (2, 2));
    assert_eq!(other.get("/skills/rhyme").await.body["prompt"], "Rhyme.");

    let replaced = import("?mode=replace").await.assert_ok("status:text mode:text counts:object");
    assert_eq!(replaced["mode"], "replace");
    other.get("/tasks/mine").await.assert_error(404, "TASK_NOT_FOUND");
    assert_eq!(other.get("/memory/export").await.body, document);
    import("?mode=forget").await.assert_error(400, "INVALID_REQUEST");
    other.post("/memory/import", &json!({"version": 999})).await.assert_error(400, "INVALID_REQUEST");
    assert_eq!(other.get("/memory/export").await.body, document, "a refusal changes nothing");
}

#[tokio::test]
async fn what_is_recalled_is_within_its_budget() {
    let fixture = EngineFixture::new([]).await;
    // More than fits, and few enough for their words to say something.
    for number in 0..10 {
        let content =
            format!("Pear number {number} is green. {}", format!("So is pear {number}. ").repeat(100));
        let record = json!({"content": content});
        fixture.engine.post("/memory/knowledge", &record).await.assert_ok(KNOWLEDGE);
    }
    let mut number = 0;
    // On a busy machine the search may time out, and then nothing is recalled.
    let sent = eventually("something is recalled", async || {
        number += 1;
        let events = fixture.engine.run_turn(&format!("task-{number}"), "Which pear is green?").await;
        let recalled = of_kind(&events, "working_memory_update")
            .into_iter()
            .any(|event| event.data["key"] == "recalled");
        recalled.then(|| fixture.last_messages())
    })
    .await;
    sent.assert_contains(&["pear", "Which pear is green?"]);
    // The recalled text has at most 1,000 tokens of about four bytes each; the rest is the message.
    assert!(sent.0.len() < 6_000, "{} bytes", sent.0.len());
}
