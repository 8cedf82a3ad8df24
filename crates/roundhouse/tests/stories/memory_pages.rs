//! Pages of search results: up to a hundred at once, one after the other without gap or repetition.

use std::collections::HashSet;

use futures::future::join_all;
use serde_json::{Value, json};

use crate::support::{Engine, EngineFixture};

/// The records and the conversations that have the word that is asked for.
const RECORDS: usize = 150;
const CONVERSATIONS: usize = 60;

async fn known(engine: &Engine, page: Value) -> Vec<Value> {
    let found = engine.post("/memory/knowledge/search", &page).await.assert_ok("results:array");
    found["results"].as_array().unwrap().clone()
}

async fn remembered(engine: &Engine, page: Value) -> Vec<Value> {
    engine.rpc_result("memory.search", page).await["results"].as_array().unwrap().clone()
}

async fn said(engine: &Engine, query: &str) -> Vec<Value> {
    let path = format!("/conversations/search?q=pears{query}");
    let found = engine.get(&path).await.assert_ok("results:array");
    found["results"].as_array().unwrap().clone()
}

/// All results of a search, in pages of this size.
async fn all_pages(search: impl AsyncFn(Value) -> Vec<Value>, limit: usize) -> Vec<Value> {
    let mut all = Vec::new();
    loop {
        let page = search(json!({"query": "pears", "limit": limit, "offset": all.len()})).await;
        let is_last = page.len() < limit;
        all.extend(page);
        if is_last {
            return all;
        }
    }
}

/// Asserts that no text is there twice: an id, and whatever a result has.
#[track_caller]
fn assert_unique<'a>(texts: impl Iterator<Item = &'a Value>) -> usize {
    let mut seen = HashSet::new();
    for text in texts {
        assert!(seen.insert(text.as_str().unwrap()), "{text} twice");
    }
    seen.len()
}

#[tokio::test]
async fn a_hundred_results_come_and_pages_follow_each_other() {
    let fixture = EngineFixture::new([]).await;
    let engine = &fixture.engine;
    join_all((0..RECORDS).map(async |number| {
        let record = json!({"content": format!("Pear number {number} is {} days old.", number * 7 % 50)});
        assert_eq!(engine.post("/memory/knowledge", &record).await.status, 200);
    }))
    .await;
    for number in 0..CONVERSATIONS {
        engine.run_turn(&format!("task {number}"), &format!("Tell {number} people of pears.")).await;
    }
    let of_kind = |results: &[Value], kind: &str| -> Vec<Value> {
        results.iter().filter(|found| found["kind"] == kind).cloned().collect()
    };

    // Of knowledge: exactly what was saved.
    let search = async |page: Value| known(engine, page).await;
    let pages = all_pages(search, 100).await;
    assert_eq!((pages.len(), assert_unique(pages.iter().map(|found| &found["id"]))), (RECORDS, RECORDS));
    for limit in [7, 30, 50] {
        assert_eq!(all_pages(search, limit).await, pages, "in pages of {limit}");
    }
    let scores: Vec<f64> = pages.iter().map(|found| found["score"].as_f64().unwrap()).collect();
    assert!(scores.is_sorted_by(|one, next| one >= next), "{scores:?}");
    assert!(search(json!({"query": "pears", "limit": 100, "offset": RECORDS})).await.is_empty());

    // Of all memory: the same records, and each message in one run.
    let search = async |page: Value| remembered(engine, page).await;
    let first = search(json!({"query": "pears", "limit": 100})).await;
    assert_eq!(first.len(), 100);
    let pages = all_pages(search, 100).await;
    assert_eq!(pages[..100], first);
    for limit in [7, 30, 50] {
        assert_eq!(all_pages(search, limit).await, pages, "in pages of {limit}");
    }
    let (records, runs) = (of_kind(&pages, "knowledge"), of_kind(&pages, "message"));
    // Episodes follow only where the first page has room for them.
    assert_eq!(records.len() + runs.len(), pages.len());
    assert_eq!((records.len(), assert_unique(records.iter().map(|found| &found["id"]))), (RECORDS, RECORDS));
    assert_unique(runs.iter().flat_map(|found| found["message_ids"].as_array().unwrap()));
    let tasks: HashSet<&str> = runs.iter().map(|found| found["task_id"].as_str().unwrap()).collect();
    assert_eq!(tasks.len(), CONVERSATIONS);

    // Of conversations there is one page, of at most fifty.
    let found = said(engine, "&limit=50").await;
    assert_eq!((found.len(), assert_unique(found.iter().map(|found| &found["message_id"]))), (50, 50));
    for (query, count) in [("", 20), ("&limit=1", 1), ("&limit=49", 49)] {
        assert_eq!(said(engine, query).await, found[..count], "{query}");
    }

    for (page, named) in [
        (json!({"limit": 0}), "limit"),
        (json!({"limit": 101}), "limit"),
        (json!({"limit": -1}), "limit"),
        (json!({"limit": "ten"}), "limit"),
        (json!({"limit": 2.5}), "limit"),
        (json!({"offset": -1}), "offset"),
        (json!({"offset": 1_001}), "offset"),
        (json!({"offset": u64::MAX}), "offset"),
    ] {
        let mut page = page;
        page["query"] = "pears".into();
        let refused = engine.post("/memory/knowledge/search", &page).await;
        assert!(refused.assert_error(400, "INVALID_REQUEST").contains(named), "{page}: {}", refused.body);
        let refused = engine.rpc("memory.search", page.clone()).await;
        assert!(
            refused.assert_flat_error(400, "INVALID_REQUEST").contains(named),
            "{page}: {}",
            refused.body
        );
    }
    for limit in ["0", "51", "-1", "ten", ""] {
        let refused = engine.get(&format!("/conversations/search?q=pears&limit={limit}")).await;
        assert!(refused.assert_error(400, "INVALID_REQUEST").contains("limit"), "{limit}: {}", refused.body);
    }
}
