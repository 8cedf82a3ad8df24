//! Drift: what the operator sees of it, and what a repair does, while reconciliation has not come yet.

use std::time::Duration;

use api::EngineId;
use backend::{BackendError, LaunchSpec};
use pretty_assertions::assert_eq;
use serde_json::{Value, json};

use crate::testing::{ADMIN_KEY, BackendCall, Fault, ProductClient, TestApp, summarize};

const SECOND: Duration = Duration::from_secs(1);
/// Shorter than the time until the next reconciliation.
const STEP: Duration = Duration::from_millis(100);

async fn call(app: &TestApp, method: &str, path: &str, body: Value) -> (u16, Value) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let headers = [("X-Admin-Key", ADMIN_KEY)];
    let (status, _, answer) = app.while_time_passes(STEP, app.send(method, path, &headers, &body)).await;
    (status, answer)
}

async fn drift(app: &TestApp) -> Vec<Value> {
    let (status, answer) = call(app, "GET", "/fleet/drift", Value::Null).await;
    assert_eq!((status, &answer["truncated"]), (200, &json!(false)), "{answer}");
    let differences = answer["differences"].as_array().unwrap().clone();
    assert_eq!(answer["total"], differences.len());
    differences
}

/// The differences, each as its kind, its user and its repair.
fn lines(differences: &[Value]) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let line =
        |one: &Value| format!("{} {} {}", text(&one["kind"]), text(&one["user_id"]), text(&one["repair"]));
    differences.iter().map(line).collect()
}

/// Repairs, and returns each result as its kind and its outcome.
async fn repair(app: &TestApp, body: Value) -> Vec<String> {
    let (status, answer) = call(app, "POST", "/fleet/drift/repair", body).await;
    assert_eq!(status, 200, "{answer}");
    let line =
        |one: &Value| format!("{} {}", one["kind"].as_str().unwrap(), one["outcome"].as_str().unwrap());
    answer["results"].as_array().unwrap().iter().map(line).collect()
}

fn all() -> Value {
    json!({"dry_run": false})
}

fn id_of((status, answer): (u16, Value)) -> EngineId {
    assert_eq!(status, 200, "{answer}");
    answer["engine_id"].as_str().unwrap().parse().unwrap()
}

/// The orders of repairs in the audit log, each with the user and the kind.
async fn repairs(product: &ProductClient<'_>) -> Vec<String> {
    let (_, audit) = product.get_path("/audit?event=repair&limit=100").await;
    let line = |row: &Value| {
        assert_eq!(row["detail"]["actor"], "admin", "{row}");
        let of = |value: &Value| value.as_str().unwrap().to_owned();
        format!("{} {} {}", of(&row["user_id"]), of(&row["detail"]["kind"]), of(&row["detail"]["repair"]))
    };
    audit["rows"].as_array().unwrap().iter().map(line).collect()
}

/// Users whose engines are in the state of that name, and the launch of one.
async fn with_engines(app: &TestApp) -> (ProductClient<'_>, LaunchSpec) {
    let product = app.register_product("demo", json!({})).await;
    for user in ["runs", "stopped"] {
        product.provision(user).await;
    }
    product.stop("stopped").await;
    (product, app.backend.launches().pop().unwrap())
}

#[tokio::test]
async fn each_difference_is_seen_before_and_repaired_as_reconciliation_repairs_it() {
    let app = TestApp::new().await;
    let (product, launch) = with_engines(&app).await;
    assert_eq!(drift(&app).await, Vec::<Value>::new());
    let (runs, stopped) = (id_of(product.get("runs").await), id_of(product.get("stopped").await));
    let stranger = EngineId::new();
    app.backend.run_orphan(stranger, 9_050, launch);
    app.backend.run_stray(runs);
    app.backend.leave_remains(stopped);
    let differences = drift(&app).await;
    let expected = [
        "orphan_instance - remove_instance",
        "superseded_instance runs remove_instance",
        "unexpected_instance stopped remove_instance",
    ];
    assert_eq!(lines(&differences), expected);
    assert_eq!(
        (&differences[0]["product_id"], &differences[0]["instance"]),
        (&Value::Null, &json!("orphan"))
    );
    assert_eq!(differences[2]["product_id"], product.product_id().await);
    assert_eq!(differences[2]["seen"], "the engine is stopped, and an instance of it is left");

    // A dry run, which is the default, changes nothing.
    let before = (app.backend.running(), app.backend.remains(), app.audit_lines().await);
    let would = ["orphan_instance", "superseded_instance", "unexpected_instance"]
        .map(|kind| format!("{kind} would_repair"));
    assert_eq!(repair(&app, json!({})).await, would);
    assert_eq!(repair(&app, json!({"dry_run": true})).await, would);
    assert_eq!((app.backend.running(), app.backend.remains(), app.audit_lines().await), before);

    let one = json!({"dry_run": false, "engine_id": stopped});
    assert_eq!(repair(&app, one).await, ["unexpected_instance repaired"]);
    assert!(app.backend.remains().is_empty() && app.backend.strays() == 1);
    assert_eq!(repair(&app, json!({"dry_run": false, "kinds": ["missing_instance"]})).await, [""; 0]);
    assert_eq!(repair(&app, all()).await, ["orphan_instance repaired", "superseded_instance repaired"]);
    assert_eq!((app.backend.running(), app.backend.strays()), ([runs].into(), 0));
    assert_eq!(repair(&app, all()).await, [""; 0]);
    assert_eq!(drift(&app).await, Vec::<Value>::new());
    // The orphan belongs to no product, and the registry has no log of it.
    let audited = ["runs superseded_instance remove_instance", "stopped unexpected_instance remove_instance"];
    assert_eq!(repairs(&product).await, audited);
    app.assert_hash_chain().await;
    assert_eq!(summarize(product.get("runs").await), "200 running");
    app.assert_consistent().await;
}

#[tokio::test]
async fn an_engine_that_does_not_run_any_more_fails_and_is_restarted() {
    let app = TestApp::new().await;
    let (product, _) = with_engines(&app).await;
    let runs = id_of(product.get("runs").await);
    app.backend.crash_silently(runs);
    assert_eq!(lines(&drift(&app).await), ["missing_instance runs mark_failed"]);
    assert_eq!(summarize(product.get("runs").await), "200 running");
    assert_eq!(repair(&app, all()).await, ["missing_instance repaired"]);
    app.advance_until(STEP, async || {
        app.backend.running().contains(&runs) && summarize(product.get("runs").await) == "200 running"
    })
    .await;
    assert_eq!(drift(&app).await, Vec::<Value>::new());
    let lines = app.audit_lines().await;
    let crashes = lines.iter().filter(|line| line.starts_with("crash running→failed")).count();
    assert_eq!(crashes, 1, "{lines:?}");
    assert_eq!(repairs(&product).await, ["runs missing_instance mark_failed"]);
}

#[tokio::test]
async fn an_exit_that_is_being_recorded_is_no_difference() {
    let app = TestApp::new().await;
    let (product, _) = with_engines(&app).await;
    app.backend.crash(id_of(product.get("runs").await));
    assert_eq!(drift(&app).await, Vec::<Value>::new());
}

#[tokio::test]
async fn a_registry_behind_its_engines_is_brought_up_to_date() {
    let app = TestApp::new().await;
    let (product, _) = with_engines(&app).await;
    let runs = id_of(product.get("runs").await);
    app.backend.set_generation(runs, 900);
    assert_eq!(lines(&drift(&app).await), ["registry_behind runs adopt_generation"]);
    assert_eq!(repair(&app, all()).await, ["registry_behind repaired"]);
    assert_eq!(drift(&app).await, Vec::<Value>::new());
    // The backend would refuse a stop for an earlier change.
    assert_eq!(summarize(product.stop("runs").await), "200 stopped");
}

#[tokio::test]
async fn an_operation_that_nobody_is_at_is_ended() {
    let app = TestApp::new().await;
    let (product, _) = with_engines(&app).await;
    app.execute(
        "UPDATE engines SET claim_kind = 'stop', claim_owner = 'x', generation = generation + 1 \
                 WHERE user_id = 'runs'",
    )
    .await;
    assert_eq!(lines(&drift(&app).await), ["abandoned_operation runs end_operation"]);
    assert_eq!(repair(&app, all()).await, ["abandoned_operation repaired"]);
    assert_eq!(summarize(product.get("runs").await), "200 stopped");
    app.assert_consistent().await;
}

#[tokio::test]
async fn what_an_operation_is_at_is_no_difference_and_is_not_repaired() {
    let app = TestApp::new().await;
    let (product, _) = with_engines(&app).await;
    let stopped = id_of(product.get("stopped").await);
    app.backend.leave_remains(stopped);
    // It waits inside the launch, with its claim; what is left of the last instance is its own business.
    app.backend.inject(BackendCall::Launch, Fault::Delay(SECOND * 10));
    let started = product.start("stopped");
    tokio::pin!(started);
    let launches = app.backend.count(BackendCall::Launch);
    tokio::select! {
        biased;
        answer = &mut started => panic!("{answer:?}"),
        () = app.wait_until(|| app.backend.count(BackendCall::Launch) > launches) => {}
    }
    assert_eq!(drift(&app).await, Vec::<Value>::new());
    assert_eq!(repair(&app, all()).await, [""; 0]);
    assert_eq!(summarize(app.while_time_passes(STEP, started).await), "200 running");
    assert_eq!(repairs(&product).await, [""; 0]);
}

#[tokio::test]
async fn data_is_removed_only_if_it_is_named_and_nobody_s() {
    let app = TestApp::new().await;
    let (product, launch) = with_engines(&app).await;
    let gone = id_of(product.provision("gone").await);
    product.delete("gone").await;
    let unknown = EngineId::new();
    for engine_id in [gone, unknown] {
        app.backend.restore_folder(engine_id);
    }
    let seen = drift(&app).await;
    assert_eq!(lines(&seen), ["data_without_engine gone -", "data_without_engine - -"]);
    let advice = |at: usize| seen[at]["advice"].as_str().unwrap().to_owned();
    assert!(advice(0).contains("less than 24 hours ago"), "{}", advice(0));
    assert!(advice(1).contains("restored from a backup"), "{}", advice(1));
    let kinds = ["data_without_engine"];
    let named = || json!({"dry_run": false, "kinds": kinds});
    assert_eq!(repair(&app, named()).await, ["data_without_engine no_repair"; 2]);

    app.backend.age_folder(gone);
    app.backend.age_folder(unknown);
    let seen = lines(&drift(&app).await);
    assert_eq!(seen, ["data_without_engine gone remove_data", "data_without_engine - -"]);
    // An instance that uses it comes first.
    app.backend.run_orphan(gone, 9_050, launch);
    assert_eq!(lines(&drift(&app).await)[1], "data_without_engine gone -");
    assert_eq!(
        repair(&app, all()).await,
        ["orphan_instance repaired", "data_without_engine no_repair", "data_without_engine no_repair"]
    );
    assert_eq!(
        repair(&app, all()).await,
        ["data_without_engine needs_kind", "data_without_engine no_repair"]
    );
    let dry = json!({"kinds": kinds});
    assert_eq!(
        repair(&app, dry).await,
        ["data_without_engine would_repair", "data_without_engine no_repair"]
    );
    assert!(app.backend.folders().contains(&gone));
    let done = repair(&app, named()).await;
    assert_eq!(done, ["data_without_engine repaired", "data_without_engine no_repair"]);
    let folders = app.backend.folders();
    assert!(!folders.contains(&gone) && folders.contains(&unknown) && folders.len() == 3);
    let audited = ["gone data_without_engine remove_data", "gone orphan_instance remove_instance"];
    assert_eq!(repairs(&product).await, audited);
    app.assert_hash_chain().await;
}

#[tokio::test]
async fn an_engine_without_data_is_left_to_a_person() {
    let app = TestApp::new().await;
    let (product, _) = with_engines(&app).await;
    let stopped = id_of(product.get("stopped").await);
    app.backend.remove_folder(stopped);
    let seen = drift(&app).await;
    assert_eq!(lines(&seen), ["engine_without_data stopped -"]);
    assert!(seen[0]["advice"].as_str().unwrap().contains("delete the engine"), "{seen:?}");
    let named = json!({"dry_run": false, "kinds": ["engine_without_data"]});
    assert_eq!(repair(&app, named).await, ["engine_without_data no_repair"]);
    assert_eq!(summarize(product.get("stopped").await), "200 stopped");
    app.backend.restore_folder(stopped);
    assert_eq!(drift(&app).await, Vec::<Value>::new());
}

#[tokio::test]
async fn rows_that_this_version_cannot_read_and_warm_engines_are_left_alone() {
    let app = TestApp::new().await;
    with_engines(&app).await;
    app.execute("UPDATE engines SET status = 'hibernating' WHERE user_id = 'runs'").await;
    app.execute("UPDATE engines SET user_id = '' WHERE user_id = 'stopped'").await;
    assert_eq!(drift(&app).await, Vec::<Value>::new());
    assert_eq!(repair(&app, all()).await, [""; 0]);
    assert_eq!((app.backend.running().len(), app.backend.folders().len()), (1, 2));
}

#[tokio::test]
async fn differences_are_selected_by_kind_and_product() {
    let app = TestApp::new().await;
    let (product, launch) = with_engines(&app).await;
    app.backend.leave_remains(id_of(product.get("stopped").await));
    app.backend.run_orphan(EngineId::new(), 9_050, launch);
    let product_id = product.product_id().await;
    let count = async |query: String| {
        let (status, answer) = call(&app, "GET", &format!("/fleet/drift?{query}"), Value::Null).await;
        assert_eq!(status, 200, "{answer}");
        answer["total"].as_u64().unwrap()
    };
    assert_eq!(count(String::new()).await, 2);
    assert_eq!(count("kind=orphan_instance".to_owned()).await, 1);
    assert_eq!(count(format!("product_id={product_id}")).await, 1);
    assert_eq!(count(format!("product_id={product_id}&kind=orphan_instance")).await, 0);
    for query in ["kind=orphans", "kind=", "product_id=x"] {
        assert_eq!(call(&app, "GET", &format!("/fleet/drift?{query}"), Value::Null).await.0, 400, "{query}");
    }
    for body in [json!({"kinds": ["orphans"]}), json!({"dry_run": "no"}), json!({"all": true}), json!([])] {
        assert_eq!(call(&app, "POST", "/fleet/drift/repair", body.clone()).await.0, 400, "{body}");
    }
}

#[tokio::test]
async fn a_repair_that_fails_says_why_and_a_backend_that_fails_lists_nothing() {
    let app = TestApp::new().await;
    let (product, launch) = with_engines(&app).await;
    let stranger = EngineId::new();
    app.backend.run_orphan(stranger, 9_050, launch);
    app.backend.inject(BackendCall::Kill, Fault::Error(BackendError::Failed("it is stuck".to_owned())));
    let (status, answer) = call(&app, "POST", "/fleet/drift/repair", all()).await;
    let result = &answer["results"][0];
    assert_eq!(
        (status, &result["outcome"], &result["error"]["code"]),
        (200, &json!("failed"), &json!("BACKEND_ERROR"))
    );
    assert!(result["error"]["message"].as_str().unwrap().contains("it is stuck"), "{answer}");
    assert!(app.backend.running().contains(&stranger));
    for fault in [BackendCall::List, BackendCall::ListData] {
        app.backend.inject(fault, Fault::Hang);
        let (status, answer) = call(&app, "GET", "/fleet/drift", Value::Null).await;
        assert_eq!((status, &answer["error"]["code"]), (502, &json!("BACKEND_ERROR")), "{answer}");
    }
    // Without its disk, no engine is without its data.
    std::fs::rename(app.data_root(), app.data_root().with_extension("aside")).unwrap();
    assert_eq!(call(&app, "GET", "/fleet/drift", Value::Null).await.0, 502);
    assert_eq!(summarize(product.get("runs").await), "200 running");
}
