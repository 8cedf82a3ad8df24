//! A storm of random calls: whatever came of it, the ledger tells one legal history.

use std::collections::HashMap;
use std::time::Duration;

use futures::future::join_all;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::testing::{Call, Fault, TestApp, short};

#[derive(Clone, Debug)]
struct Step {
    user: &'static str,
    call: usize,
    pause_ms: u64,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = (prop::sample::select(vec!["ann", "bob"]), 0_usize..6, 0_u64..40);
    prop::collection::vec(step.prop_map(|(user, call, pause_ms)| Step { user, call, pause_ms }), 1..40)
}

async fn weather(steps: Vec<Step>) {
    let app = TestApp::new().await;
    let product = app.product("demo", json!({"max_engines": 1})).await;
    for (at, step) in steps.iter().enumerate() {
        let call = [Call::Launch, Call::Stop, Call::Remove, Call::Ping][at % 4];
        app.backend.script(call, Fault::Late(Duration::from_millis(step.pause_ms)));
    }
    let calls = steps.iter().map(|step| async {
        app.sleep(Duration::from_millis(step.pause_ms)).await;
        let all = json!({"auto_provision": true, "auto_wake": true});
        short(match step.call {
            0 => product.provision(step.user).await,
            1 => product.admit(step.user, json!({})).await,
            2 => product.admit(step.user, all).await,
            3 => product.start(step.user).await,
            4 => product.stop(step.user).await,
            _ => product.delete(step.user).await,
        })
    });
    let answers = app.while_time_passes(Duration::from_millis(5), join_all(calls)).await;
    for answer in &answers {
        let expected = ["200", "404 ENGINE_NOT_FOUND", "409", "429 QUOTA_EXCEEDED"];
        assert!(expected.iter().any(|expected| answer.starts_with(expected)), "{answers:?}");
    }
    // Each engine's rows lead from one into the next, never are there two engines, and the end is what is.
    let mut states: HashMap<String, String> = HashMap::new();
    let rows = "SELECT engine_id, detail FROM audit_log WHERE engine_id IS NOT NULL ORDER BY id";
    for row in app.rows(rows).await {
        let detail: Value = serde_json::from_str(&row[1]).unwrap();
        let state = |name: &str| detail[name].as_str().map(str::to_owned);
        assert_eq!(states.remove(&row[0]), state("from"), "{detail}");
        if let Some(to) = state("to") {
            states.insert(row[0].clone(), to);
        }
        assert!(states.len() <= 1, "{states:?}");
    }
    let engines = app.rows("SELECT engine_id, status FROM engines").await;
    let engines: HashMap<_, _> = engines.into_iter().map(|mut row| (row.remove(0), row.remove(0))).collect();
    assert_eq!(engines, states);
    app.assert_in_order().await;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn the_ledger_of_a_storm_is_a_legal_history(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(weather(steps));
    }
}
