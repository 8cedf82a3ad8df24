//! Rollouts: that engines get to the other version, that a bad one is taken back, and that nothing is lost on the way,
//! though orchestrators are killed at random.

use std::collections::HashSet;
use std::time::Duration;

use api::EngineId;
use serde_json::{Value, json};

use super::measured::scraped;
use crate::testing::{ADMIN_KEY, BackendCall, Fault, ProductClient, TestApp, summarize};

const STEP: Duration = Duration::from_millis(500);
/// A version whose brains have the same format.
const NEXT: &str = "svc-engine:0.9.0";
/// A version that migrates brains to another format.
const MIGRATING: &str = "svc-engine:1.0.0";

async fn call(app: &TestApp, method: &str, path: &str, body: Value) -> (u16, Value) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let (status, _, answer) =
        app.send(method, &format!("/fleet/rollouts{path}"), &[("X-Admin-Key", ADMIN_KEY)], &body).await;
    (status, answer)
}

async fn start(app: &TestApp, image: &str, params: Value) -> Value {
    let mut body = json!({"engine_version": image, "bake_s": 60, "window_s": 0});
    body.as_object_mut().unwrap().extend(params.as_object().unwrap().clone());
    let (status, answer) = call(app, "POST", "", body).await;
    assert_eq!(status, 200, "{answer}");
    answer
}

async fn current(app: &TestApp) -> Value {
    let (status, list) = call(app, "GET", "", Value::Null).await;
    assert_eq!(status, 200, "{list}");
    list["rollouts"][0].clone()
}

async fn advance_to(app: &TestApp, phase: &str) -> Value {
    app.advance_until(STEP, async || current(app).await["phase"] == phase).await;
    current(app).await
}

/// A product with engines that run, sleep, and are stopped.
async fn fleet(app: &TestApp, count: usize) -> ProductClient<'_> {
    app.backend.add_image(MIGRATING.parse().unwrap());
    let product = app.register_product("demo", json!({})).await;
    for index in 0..count {
        assert_eq!(summarize(product.provision(&format!("user{index}")).await), "200 running");
    }
    app.orchestrator.fleet().sleep_all("test").await.unwrap();
    for index in 0..count {
        let user = format!("user{index}");
        match index % 3 {
            0 => assert_eq!(summarize(product.start(&user).await), "200 running"),
            1 => {
                product.start(&user).await;
                product.stop(&user).await;
            }
            _ => {}
        }
    }
    product
}

/// Provisions an engine, and returns its version.
async fn version_of_new(product: &ProductClient<'_>, user: &str) -> String {
    assert_eq!(summarize(product.provision(user).await), "200 running");
    product.get(user).await.1["engine_version"].as_str().unwrap().to_owned()
}

/// The versions of all engines with their states and pins, sorted.
async fn engines(app: &TestApp) -> Vec<String> {
    let rows = app
        .rows(
            "SELECT engine_version, CAST(status AS TEXT), CAST(pinned AS TEXT) FROM engines ORDER BY 1, 2, 3",
        )
        .await;
    rows.iter().map(|row| row.join(" ")).collect()
}

async fn all_on(app: &TestApp, image: &str) -> bool {
    engines(app).await.iter().all(|engine| engine.starts_with(image) && engine.ends_with('0'))
}

#[tokio::test]
async fn all_engines_are_moved_some_of_them_first() {
    for image in [NEXT, MIGRATING] {
        let app = TestApp::new().await;
        let product = fleet(&app, 9).await;
        let before = app.backend.launches().len();
        let begun = start(&app, image, json!({"canary_percent": 20})).await;
        assert_eq!((&begun["plan"]["canaries"], &begun["engines"]["waiting"]), (&json!(2), &json!(9)));
        let baking = advance_to(&app, "baking").await;
        assert_eq!((&baking["engines"]["moved"], &baking["engines"]["waiting"]), (&json!(2), &json!(7)));
        let moved = app.backend.launches().split_off(before);
        assert!(moved.len() == 2 && moved.iter().all(|launch| launch.image.as_str() == image));
        // Nobody follows meanwhile, neither to the one version nor to the other.
        app.orchestrator.fleet().sleep_all("test").await.unwrap();
        for index in 0..9 {
            let user = format!("user{index}");
            if summarize(product.admit(&user, json!({})).await) == "200 running" {
                product.stop(&user).await;
                product.start(&user).await;
            }
        }
        assert_eq!(engines(&app).await.iter().filter(|engine| engine.starts_with(image)).count(), 2);
        let done = advance_to(&app, "completed").await;
        assert_eq!((&done["engines"]["moved"], &done["paused"]), (&json!(9), &json!(false)), "{done}");
        assert!(all_on(&app, image).await, "{:?}", engines(&app).await);
        // New engines begin on it, also those of the next orchestrator.
        assert_eq!(version_of_new(&product, "newcomer").await, image);
        let key = product.key.clone();
        let app = app.kill_and_replace().await;
        app.start().await;
        let product = ProductClient { app: &app, key };
        assert_eq!(version_of_new(&product, "next").await, image);
        assert!(all_on(&app, image).await);
        app.wait_unclaimed().await;
        app.assert_consistent().await;
        app.assert_hash_chain().await;
    }
}

#[tokio::test]
async fn a_version_that_the_configuration_names_later_overrides_what_rollouts_have_led_to() {
    let app = TestApp::new().await;
    let key = fleet(&app, 3).await.key;
    start(&app, NEXT, json!({})).await;
    advance_to(&app, "completed").await;
    let app = app.kill_and_upgrade("svc-engine:0.10.0").await;
    app.start().await;
    let product = ProductClient { app: &app, key };
    assert_eq!(version_of_new(&product, "newcomer").await, "svc-engine:0.10.0");
}

#[tokio::test]
async fn a_version_that_does_not_come_up_is_taken_back_at_its_first_engine() {
    let app = TestApp::new().await;
    let product = fleet(&app, 9).await;
    app.backend.set_crashing(MIGRATING.parse().unwrap(), true);
    let before = engines(&app).await;
    start(&app, MIGRATING, json!({"canary_percent": 50, "concurrency": 1})).await;
    let over = advance_to(&app, "rolled_back").await;
    assert_eq!(over["reason"], "1 engine has failed on the new version, and at most 0 may");
    assert_eq!((&over["engines"]["failed"], &over["engines"]["moved"]), (&json!(1), &json!(0)), "{over}");
    assert_eq!(engines(&app).await, before);
    assert_eq!(version_of_new(&product, "newcomer").await, app.config_image());
    let id = over["rollout_id"].as_str().unwrap();
    let (_, failed) = call(&app, "GET", &format!("/{id}/engines?state=failed"), Value::Null).await;
    let error = &failed["engines"][0]["error"];
    assert_eq!(error["code"], "BACKEND_ERROR", "{failed}");
    assert!(error["message"].as_str().unwrap().contains("with its brain as it was"), "{failed}");
    app.assert_consistent().await;
    // It is over, and may not be rolled back twice.
    for act in ["pause", "resume", "rollback"] {
        let body = if act == "rollback" { json!({}) } else { Value::Null };
        let answer = call(&app, "POST", &format!("/{id}/{act}"), body).await;
        assert_eq!(summarize(answer), "409 ROLLOUT_OVER", "{act}");
    }
}

#[tokio::test]
async fn engines_that_fail_within_what_is_permitted_keep_their_version() {
    let app = TestApp::new().await;
    let product = fleet(&app, 6).await;
    // Two that are moved at first do not come up.
    app.backend.inject(BackendCall::Launch, Fault::Exit);
    app.backend.inject(BackendCall::Launch, Fault::Exit);
    start(&app, NEXT, json!({"max_failures": 2, "concurrency": 1})).await;
    let done = advance_to(&app, "completed").await;
    assert_eq!((&done["engines"]["failed"], &done["engines"]["moved"]), (&json!(2), &json!(4)), "{done}");
    let pinned = engines(&app).await.into_iter().filter(|engine| engine.ends_with('1'));
    let pinned: Vec<_> = pinned.collect();
    assert!(
        pinned.len() == 2 && pinned.iter().all(|engine| engine.starts_with(&app.config_image())),
        "{pinned:?}"
    );
    assert_eq!(version_of_new(&product, "newcomer").await, NEXT);
}

#[tokio::test]
async fn regression_o30_an_engine_that_fails_later_takes_all_back_and_none_that_was_used_loses_anything() {
    let app = TestApp::new().await;
    let product = fleet(&app, 9).await;
    start(&app, MIGRATING, json!({"canary_percent": 100, "bake_s": 3_600})).await;
    let baking = advance_to(&app, "baking").await;
    assert_eq!(baking["engines"]["moved"], 9);
    // Those that run are used. One of them crashes, and comes up again.
    let crashed = app.backend.running().into_iter().next().unwrap();
    app.backend.crash(crashed);
    let over = advance_to(&app, "rolled_back").await;
    assert_eq!(over["reason"], "1 engine has failed on the new version, and at most 0 may");
    let counts = |of: &str| over["engines"][of].as_u64().unwrap();
    assert_eq!((counts("rolled_back"), counts("stuck")), (6, 3), "{over}");
    let (back, stuck): (Vec<_>, Vec<_>) =
        engines(&app).await.into_iter().partition(|engine| engine.starts_with(&app.config_image()));
    assert!(back.len() == 6 && back.iter().all(|engine| engine.ends_with('0')), "{back:?}");
    assert!(stuck.iter().all(|engine| engine.starts_with(MIGRATING) && engine.ends_with('1')), "{stuck:?}");
    for index in 0..9 {
        let user = format!("user{index}");
        product.stop(&user).await;
        assert_eq!(summarize(product.start(&user).await), "200 running", "{user}");
    }
    // An operator may decide that what was said since is to be lost.
    let id = over["rollout_id"].as_str().unwrap();
    let (status, _) =
        call(&app, "POST", &format!("/{id}/rollback"), json!({"discard_new_turns": true})).await;
    assert_eq!(status, 200);
    let over = advance_to(&app, "rolled_back").await;
    assert_eq!(
        (&over["engines"]["rolled_back"], &over["engines"]["stuck"]),
        (&json!(9), &json!(0)),
        "{over}"
    );
    assert!(all_on(&app, &app.config_image()).await);
    let ids = app.rows("SELECT engine_id FROM engines").await;
    let ids: Vec<EngineId> = ids.iter().map(|row| row[0].parse().unwrap()).collect();
    assert!(ids.iter().all(|id| app.backend.brain_format(*id) == 0));
    app.wait_unclaimed().await;
    app.assert_consistent().await;
}

#[tokio::test]
async fn a_completed_rollout_is_rolled_back_but_for_what_began_on_it() {
    let app = TestApp::new().await;
    let product = fleet(&app, 3).await;
    let id = start(&app, NEXT, json!({})).await["rollout_id"].as_str().unwrap().to_owned();
    advance_to(&app, "completed").await;
    product.provision("newcomer").await;
    let (_, begun) = call(&app, "POST", &format!("/{id}/rollback"), json!({})).await;
    assert_eq!((&begun["phase"], &begun["ended_at"]), (&json!("rolling_back"), &Value::Null));
    let (_, other) = call(&app, "POST", "", json!({"engine_version": MIGRATING})).await;
    assert_eq!(other["error"]["code"], "ROLLOUT_UNDER_WAY");
    assert_eq!(version_of_new(&product, "later").await, app.config_image());
    let over = advance_to(&app, "rolled_back").await;
    assert_eq!(
        (&over["engines"]["rolled_back"], &over["engines"]["stuck"]),
        (&json!(3), &json!(1)),
        "{over}"
    );
    let newcomer = product.get("newcomer").await.1;
    assert_eq!(newcomer["engine_version"], NEXT);
    assert_eq!(engines(&app).await.iter().filter(|engine| engine.starts_with(NEXT)).count(), 1);
    // It is the last one no more once another has begun.
    start(&app, MIGRATING, json!({})).await;
    let answer = call(&app, "POST", &format!("/{id}/rollback"), json!({})).await;
    assert_eq!(summarize(answer), "409 ROLLOUT_OVER");
}

/// What is exposed: whether the phase is the first, whether the rollout is paused and has failed, how often one has
/// failed, and the engines that wait.
fn figures(app: &TestApp) -> [u64; 5] {
    let names =
        ["phase{phase=\"canary\"}", "paused", "failed", "failures_total", "engines{state=\"waiting\"}"];
    names.map(|name| scraped(app, &format!("roundhouse_rollout_{name}")))
}

#[tokio::test]
async fn a_rollout_pauses_when_asked_and_when_it_fails_if_it_shall() {
    let app = TestApp::new().await;
    fleet(&app, 9).await;
    app.backend.inject(BackendCall::Launch, Fault::Exit);
    let begun = start(&app, NEXT, json!({"on_failure": "pause", "concurrency": 1})).await;
    let id = begun["rollout_id"].as_str().unwrap();
    app.advance_until(STEP, async || current(&app).await["paused"] == true).await;
    let paused = current(&app).await;
    assert_eq!(paused["reason"], "1 engine has failed on the new version, and at most 0 may");
    let launches = app.backend.launches().len();
    app.while_time_passes(STEP, app.sleep(Duration::from_mins(5))).await;
    assert_eq!((app.backend.launches().len(), current(&app).await), (launches, paused), "nothing moves");
    assert_eq!(figures(&app), [1, 1, 1, 1, 8]);
    let (_, resumed) = call(&app, "POST", &format!("/{id}/resume"), Value::Null).await;
    assert_eq!((&resumed["paused"], &resumed["plan"]["max_failures"]), (&json!(false), &json!(1)));
    advance_to(&app, "baking").await;
    let (_, paused) = call(&app, "POST", &format!("/{id}/pause"), Value::Null).await;
    assert_eq!(paused["reason"], "an operator has paused it");
    app.while_time_passes(STEP, app.sleep(Duration::from_mins(5))).await;
    assert_eq!(current(&app).await["phase"], "baking");
    // An operator's pause is no failure, and what has failed is counted once.
    assert_eq!(figures(&app)[1..4], [1, 0, 1]);
    call(&app, "POST", &format!("/{id}/resume"), Value::Null).await;
    assert_eq!(advance_to(&app, "completed").await["engines"]["failed"], 1);
    app.advance_until(STEP, async || figures(&app) == [0, 0, 0, 1, 0]).await;
}

#[tokio::test]
async fn engines_that_run_are_moved_when_they_sleep_or_when_the_window_ends() {
    let app = TestApp::new().await;
    let product = fleet(&app, 9).await;
    start(&app, NEXT, json!({"canary_percent": 0, "window_s": 120})).await;
    app.advance_until(STEP, async || current(&app).await["engines"]["moved"] == 6).await;
    let running = app.backend.running();
    app.while_time_passes(STEP, app.sleep(Duration::from_secs(30))).await;
    assert_eq!((app.backend.running(), &current(&app).await["engines"]["waiting"]), (running, &json!(3)));
    product.stop("user0").await;
    app.advance_until(STEP, async || current(&app).await["engines"]["moved"] == 7).await;
    assert_eq!(summarize(product.get("user0").await), "200 stopped");
    advance_to(&app, "completed").await;
    assert!(all_on(&app, NEXT).await);
    assert_eq!(app.backend.running().len(), 2, "those that ran run again");
}

#[tokio::test]
async fn products_that_may_not_use_a_version_are_skipped() {
    let app = TestApp::new().await;
    let product = fleet(&app, 3).await;
    product.set_policy(json!({"allowed_engine_versions": ["~0.1"]})).await;
    start(&app, NEXT, json!({})).await;
    let done = advance_to(&app, "completed").await;
    assert_eq!((&done["engines"]["skipped"], &done["engines"]["moved"]), (&json!(3), &json!(0)), "{done}");
    assert!(all_on(&app, &app.config_image()).await);
}

#[tokio::test]
async fn what_cannot_be_rolled_out_is_refused() {
    let app = TestApp::new().await;
    fleet(&app, 1).await;
    for (body, expected) in [
        (json!({"engine_version": "svc-engine:7.0.0"}), "502 BACKEND_ERROR"),
        (json!({"engine_version": "svc-engine:latest"}), "400 INVALID_REQUEST"),
        (json!({"engine_version": NEXT, "canary_percent": 101}), "400 INVALID_REQUEST"),
        (json!({}), "400 INVALID_REQUEST"),
    ] {
        assert_eq!(summarize(call(&app, "POST", "", body.clone()).await), expected, "{body}");
    }
    for path in ["/roll_0199a9f0000070008000000000000001", "/none"] {
        assert_eq!(summarize(call(&app, "GET", path, Value::Null).await), "404 ROLLOUT_NOT_FOUND");
    }
    app.backend.use_single_image();
    let (status, answer) = call(&app, "POST", "", json!({"engine_version": NEXT})).await;
    assert_eq!(status, 400, "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("update its binary instead"), "{answer}");
}

/// Kills orchestrators while rollouts run to both ends. `ROUNDHOUSE_TEST_ROLLOUT_KILLS` is their number.
#[tokio::test]
#[expect(clippy::print_stdout, reason = "the counts are printed for runs with --nocapture")]
async fn rollouts_end_though_orchestrators_are_killed_all_the_time() {
    let kills: usize =
        std::env::var("ROUNDHOUSE_TEST_ROLLOUT_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(12);
    let count = if kills > 50 { 200 } else { 24 };
    let mut app = TestApp::with_ports(9_001, 9_400).await;
    let key = fleet(&app, count).await.key;
    let (mut done, mut amid_moves, mut rounds) = (0, 0, 0);
    while done < kills || current(&app).await["ended_at"].is_null() {
        let last = current(&app).await;
        if last["ended_at"].is_string() || rounds == 0 {
            rounds += 1;
            if last["phase"] == "completed" {
                let settled =
                    ["moved", "failed", "unhealthy"].map(|state| last["engines"][state].as_u64().unwrap());
                assert_eq!(settled.iter().sum::<u64>(), count as u64, "no engine is left out: {last}");
            }
            // Every other one fails once it has come some way.
            let image = format!("svc-engine:0.{}.0", 10 + rounds);
            start(&app, &image, json!({"canary_percent": 30, "bake_s": 5})).await;
            if rounds % 2 == 0 {
                app.backend.inject(BackendCall::Launch, Fault::Delay(Duration::from_secs(1)));
            }
        }
        // Until some launches later.
        let launches = app.backend.launches().len() + 1 + done % 7;
        let fails = rounds % 2 == 0 && done % 11 == 5;
        app.advance_until(Duration::from_millis(200), async || {
            app.backend.launches().len() >= launches || current(&app).await["ended_at"].is_string()
        })
        .await;
        if fails && let Some(engine) = app.backend.running().into_iter().next() {
            app.backend.crash(engine);
        }
        if done < kills && current(&app).await["ended_at"].is_null() {
            let claimed = app.rows("SELECT engine_id FROM engines WHERE claim_kind IS NOT NULL").await;
            amid_moves += usize::from(!claimed.is_empty());
            app = app.kill_and_replace().await;
            app.start().await;
            done += 1;
        }
    }
    assert!(amid_moves * 4 >= kills, "only {amid_moves} of {kills} kills were amid a move");
    app.advance_until(STEP, async || {
        app.rows("SELECT engine_id FROM engines WHERE claim_kind IS NOT NULL OR status = 'failed'")
            .await
            .is_empty()
    })
    .await;
    app.assert_consistent().await;
    app.assert_hash_chain().await;
    // Nobody was lost, and each engine runs the deployment's version, or is named as one that does not.
    let product = ProductClient { app: &app, key };
    let ids = app.rows("SELECT engine_id FROM engines").await;
    assert_eq!(ids.iter().map(|row| &row[0]).collect::<HashSet<_>>().len(), count);
    for index in 0..count {
        let user = format!("user{index}");
        let answer = summarize(product.admit(&user, json!({})).await);
        assert!(
            ["200 running", "200 engine_stopped", "200 engine_sleeping"].contains(&&*answer),
            "{user}: {answer}"
        );
    }
    println!("{done} kills, {amid_moves} amid a move, in {rounds} rollouts");
}
