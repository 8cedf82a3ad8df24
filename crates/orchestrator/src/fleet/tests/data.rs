//! The engines' data is not there: a disk that is not mounted, another folder, another deployment's. Nothing is made,
//! nothing is taken for dead, nobody is shown an empty engine; and when it is back, all is as it was.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::backend::remove_marker;
use crate::testing::{BackendCall, ProductClient, TestApp, summarize};

const SECOND: Duration = Duration::from_secs(1);

/// Three users: `runs`, `sleeps` and `stopped`, each with an engine as the name says.
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

/// What may be in the place of the root.
const WRONG_ROOTS: [&str; 4] = ["missing", "empty", "another's", "a file"];

fn create_wrong_root(place: &str, root: &Path) {
    match place {
        "missing" => {}
        "a file" => fs::write(root, "").unwrap(),
        _ => {
            fs::create_dir(root).unwrap();
            if place == "another's" {
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

/// What every call that needs the data is answered.
fn assert_refused((status, answer): (u16, Value), place: &str) {
    assert_eq!((status, &answer["error"]["code"]), (502, &json!("BACKEND_ERROR")), "{place}: {answer}");
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("data is not there"), "{place}: {message}");
}

#[tokio::test]
async fn lesson_o20_a_root_that_goes_away_under_a_running_orchestrator_and_comes_back() {
    let app = TestApp::new().await;
    let key = with_engines(&app).await;
    let product = ProductClient { app: &app, key };
    let root = app.data_root();
    let aside = root.with_extension("aside");
    for place in WRONG_ROOTS {
        fs::rename(&root, &aside).unwrap();
        create_wrong_root(place, &root);
        let (launches, rows) = (app.backend.count(BackendCall::Launch), app.audit_lines().await);
        let (running, folders) = (app.backend.running(), app.backend.folders());
        assert_refused(product.start("stopped").await, place);
        assert_refused(product.admit("sleeps", json!({"auto_wake": true})).await, place);
        assert_refused(product.provision("new").await, place);
        assert_refused(product.stop("runs").await, place);
        assert_refused(product.delete("stopped").await, place);
        assert_eq!(summarize(product.admit("runs", json!({})).await), "200 running", "{place}");
        let (_, explained) = product.get_path("/engines/stopped/explain").await;
        let why = explained["awake_because"][0].as_str().unwrap().to_owned();
        assert!(why.contains("cannot be launched") && why.contains("ORCH_DATA_ROOT_PATH"), "{place}: {why}");
        let made: Vec<_> = fs::read_dir(&root).map(|entries| entries.flatten().collect()).unwrap_or_default();
        assert!(made.iter().all(|entry| entry.file_name() == ".roundhouse-deployment"), "{place}: {made:?}");
        // Nobody concludes anything from it either.
        app.while_time_passes(SECOND, app.sleep(SECOND * 100)).await;
        assert_eq!(states(&product).await, UNCHANGED_STATES, "{place}");
        assert_eq!(
            (app.backend.count(BackendCall::Launch), app.audit_lines().await),
            (launches, rows),
            "{place}"
        );
        assert_eq!((app.backend.running(), app.backend.folders()), (running, folders), "{place}");
        remove_root(&root);
        fs::rename(&aside, &root).unwrap();
    }
    assert_eq!(summarize(product.start("stopped").await), "200 running");
    assert_eq!(summarize(product.admit("sleeps", json!({"auto_wake": true})).await), "200 running");
    assert_eq!(summarize(product.provision("new").await), "200 running");
    app.assert_consistent().await;
}

/// A reboot: nothing runs any more, and the disk is not mounted yet.
#[tokio::test]
async fn lesson_o20_a_root_that_is_away_at_boot_lets_nobody_be_taken_for_dead() {
    for place in WRONG_ROOTS {
        let app = TestApp::new().await;
        let key = with_engines(&app).await;
        let root = app.data_root();
        let aside = root.with_extension("aside");
        fs::rename(&root, &aside).unwrap();
        create_wrong_root(place, &root);
        let launches = app.backend.count(BackendCall::Launch);
        for engine_id in app.backend.running() {
            app.backend.crash_silently(engine_id);
        }
        let app = app.kill_and_replace().await;
        app.start().await;
        let product = ProductClient { app: &app, key };
        app.while_time_passes(SECOND, app.sleep(SECOND * 100)).await;
        assert_eq!(states(&product).await, UNCHANGED_STATES, "{place}");
        assert_eq!(app.backend.count(BackendCall::Launch), launches, "{place}");
        // It is mounted: the one that ran comes back by itself, with its data.
        remove_root(&root);
        fs::rename(&aside, &root).unwrap();
        let is_back = async || {
            app.backend.count(BackendCall::Launch) > launches
                && summarize(product.get("runs").await) == "200 running"
        };
        app.advance_until(SECOND, is_back).await;
        assert!(app.backend.launches().iter().skip(launches).all(|launch| !launch.is_first), "{place}");
        app.assert_consistent().await;
    }
}

/// A version without markers made the root.
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
    // It has a marker from now on.
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
    // Its data is given up.
    assert_eq!(summarize(product.delete("stopped").await), "200 destroyed");
}
