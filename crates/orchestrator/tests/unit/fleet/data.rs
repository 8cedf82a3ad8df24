//! The engines' data is missing: the disk is not mounted, or the data root is another folder or another
//! deployment's. Nothing is created, no engine counts as failed, and no user gets an empty engine. When the data
//! is back, everything continues as before.

use std::fs;
use std::path::Path;
use std::time::Duration;

use backend::remove_marker;
use serde_json::{Value, json};

use crate::testing::{BackendCall, ProductClient, TestApp, summarize};

const SECOND: Duration = Duration::from_secs(1);

/// Creates three users, `runs`, `sleeps` and `stopped`, whose engines are in the state of that name.
async fn with_engines(app: &TestApp) -> String {
    let product = app.register_product("demo", json!({})).await;
    product.provision("sleeps").await;
    app.orchestrator.fleet().sleep_all("idle").await.unwrap();
    for user in ["runs", "stopped"] {
        product.provision(user).await;
    }
    product.stop("stopped").await;
    product.key
}

async fn states(product: &ProductClient<'_>) -> Vec<String> {
    let mut states = Vec::new();
    for user in ["runs", "sleeps", "stopped"] {
        states.push(summarize(product.get(user).await));
    }
    states
}

const UNCHANGED_STATES: [&str; 3] = ["200 running", "200 sleeping", "200 stopped"];

/// What may be found in place of the data root.
const WRONG_ROOTS: [&str; 4] = ["missing", "empty", "another's", "a file"];

fn create_wrong_root(variant: &str, root: &Path) {
    match variant {
        "missing" => {}
        "a file" => fs::write(root, "").unwrap(),
        _ => {
            fs::create_dir(root).unwrap();
            if variant == "another's" {
                fs::write(root.join(".roundhouse-deployment"), "another\n").unwrap();
            }
        }
    }
}

fn remove_root(root: &Path) {
    if root.is_dir() {
        fs::remove_dir_all(root).unwrap();
    } else {
        let _ = fs::remove_file(root);
    }
}

/// Checks the response to a call that needs the data.
fn assert_refused((status, answer): (u16, Value), variant: &str) {
    assert_eq!((status, &answer["error"]["code"]), (502, &json!("BACKEND_ERROR")), "{variant}: {answer}");
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("data is unavailable"), "{variant}: {message}");
}

#[tokio::test]
async fn regression_o20_a_root_that_goes_away_under_a_running_orchestrator_and_comes_back() {
    let app = TestApp::new().await;
    let key = with_engines(&app).await;
    let product = ProductClient { app: &app, key };
    let root = app.data_root();
    let moved_root = root.with_extension("aside");
    for variant in WRONG_ROOTS {
        fs::rename(&root, &moved_root).unwrap();
        create_wrong_root(variant, &root);
        let (launches, rows) = (app.backend.count(BackendCall::Launch), app.audit_lines().await);
        let (running, folders) = (app.backend.running(), app.backend.folders());
        assert_refused(product.start("stopped").await, variant);
        assert_refused(product.admit("sleeps", json!({"auto_wake": true})).await, variant);
        assert_refused(product.provision("new").await, variant);
        assert_refused(product.stop("runs").await, variant);
        assert_refused(product.delete("stopped").await, variant);
        assert_eq!(summarize(product.admit("runs", json!({})).await), "200 running", "{variant}");
        let (_, explained) = product.get_path("/engines/stopped/explain").await;
        let reason = explained["awake_because"][0].as_str().unwrap().to_owned();
        assert!(
            reason.contains("cannot be launched") && reason.contains("ORCH_DATA_ROOT_PATH"),
            "{variant}: {reason}"
        );
        let entries: Vec<_> =
            fs::read_dir(&root).map(|entries| entries.flatten().collect()).unwrap_or_default();
        assert!(
            entries.iter().all(|entry| entry.file_name() == ".roundhouse-deployment"),
            "{variant}: {entries:?}"
        );
        // The supervisor and reconciliation conclude nothing from it either.
        app.while_time_passes(SECOND, app.sleep(SECOND * 100)).await;
        assert_eq!(states(&product).await, UNCHANGED_STATES, "{variant}");
        assert_eq!(
            (app.backend.count(BackendCall::Launch), app.audit_lines().await),
            (launches, rows),
            "{variant}"
        );
        assert_eq!((app.backend.running(), app.backend.folders()), (running, folders), "{variant}");
        remove_root(&root);
        fs::rename(&moved_root, &root).unwrap();
    }
    assert_eq!(summarize(product.start("stopped").await), "200 running");
    assert_eq!(summarize(product.admit("sleeps", json!({"auto_wake": true})).await), "200 running");
    assert_eq!(summarize(product.provision("new").await), "200 running");
    app.assert_consistent().await;
}

/// The host was rebooted: no engine runs any more, and the disk is not mounted yet.
#[tokio::test]
async fn regression_o20_a_root_that_is_away_at_boot_lets_nobody_be_taken_for_dead() {
    for variant in WRONG_ROOTS {
        let app = TestApp::new().await;
        let key = with_engines(&app).await;
        let root = app.data_root();
        let moved_root = root.with_extension("aside");
        fs::rename(&root, &moved_root).unwrap();
        create_wrong_root(variant, &root);
        let launches = app.backend.count(BackendCall::Launch);
        for engine_id in app.backend.running() {
            app.backend.crash_silently(engine_id);
        }
        let app = app.kill_and_replace().await;
        app.start().await;
        let product = ProductClient { app: &app, key };
        app.while_time_passes(SECOND, app.sleep(SECOND * 100)).await;
        assert_eq!(states(&product).await, UNCHANGED_STATES, "{variant}");
        assert_eq!(app.backend.count(BackendCall::Launch), launches, "{variant}");
        // Once it is mounted, the engine that ran is restarted with its data.
        remove_root(&root);
        fs::rename(&moved_root, &root).unwrap();
        let is_back = async || {
            app.backend.count(BackendCall::Launch) > launches
                && summarize(product.get("runs").await) == "200 running"
        };
        app.advance_until(SECOND, is_back).await;
        assert!(app.backend.launches().iter().skip(launches).all(|launch| !launch.is_first), "{variant}");
        app.assert_consistent().await;
    }
}

/// The data root was created by a version without markers.
#[tokio::test]
async fn a_root_without_a_marker_is_known_by_an_engines_folder() {
    let app = TestApp::new().await;
    let key = with_engines(&app).await;
    let root = app.data_root();
    remove_marker(&root);
    let app = app.kill_and_replace().await;
    app.start().await;
    let product = ProductClient { app: &app, key: key.clone() };
    assert_refused(product.start("stopped").await, "without any engine's folder");
    fs::create_dir(root.join(product.get("stopped").await.1["engine_id"].as_str().unwrap())).unwrap();
    assert_eq!(summarize(product.start("stopped").await), "200 running");
    // From now on it has a marker.
    fs::remove_dir_all(&root).unwrap();
    fs::create_dir(&root).unwrap();
    assert_refused(product.provision("new").await, "unmarked again");
}

#[tokio::test]
async fn an_engine_whose_own_folder_is_missing_is_not_launched_and_keeps_its_attempts() {
    let app = TestApp::new().await;
    let key = with_engines(&app).await;
    let product = ProductClient { app: &app, key };
    let of = async |user: &str| product.get(user).await.1["engine_id"].as_str().unwrap().parse().unwrap();
    let (stopped, runs) = (of("stopped").await, of("runs").await);
    app.backend.remove_folder(stopped);
    app.backend.remove_folder(runs);
    assert_refused(product.start("stopped").await, "its own folder");
    assert_eq!(summarize(product.get("stopped").await), "200 stopped");
    let launches = app.backend.count(BackendCall::Launch);
    app.backend.crash(runs);
    app.while_time_passes(SECOND, app.sleep(SECOND * 3_600)).await;
    assert_eq!(app.backend.count(BackendCall::Launch), launches);
    assert_eq!(summarize(product.get("runs").await), "200 failed");
    app.backend.restore_folder(runs);
    app.advance_until(SECOND, async || summarize(product.get("runs").await) == "200 running").await;
    // A delete gives up the missing data.
    assert_eq!(summarize(product.delete("stopped").await), "200 destroyed");
}
