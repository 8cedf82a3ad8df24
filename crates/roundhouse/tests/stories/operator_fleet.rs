//! `roundhouse fleet`: the operator sees all engines, drains the deployment, starts what has failed.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::command_line::{FixedService, cells, command, command_with, document, start_command};
use crate::support::test_env::BINARY;
use crate::support::{Fleet, Terminal, TestEnv, eventually, processes};

const DRAIN_STATUS: [&str; 3] = ["fleet", "drain", "status"];

/// The commands, each with an answer that it understands.
fn commands() -> Vec<(&'static [&'static str], Value)> {
    let (product, engine) = (format!("prod_{:032x}", 7), format!("eng_{:032x}", 8));
    let time = "2026-01-01T00:00:00.000Z";
    let engines = json!({"next": engine, "engines": [{
        "product_id": product, "engine_id": engine, "user_id": "ada\u{202e}", "status": "failed", "url": null,
        "engine_version": "svc-engine:0.1.0", "created_at": time, "last_health_at": null, "pinned": true,
        "port": 9001, "since": time, "failed_checks": 2, "restarts": 8, "restart_at": null,
    }]});
    let status = json!({
        "active_since": time, "drained_since": time, "total": 1, "by_status": {"sleeping": 1}, "health": "ok",
        "unhealthy_count": 0, "changes_under_way": 0,
        "capacity": {"ports": 999, "leased_ports": 1, "concurrent_boots": 8},
        "products": [{
            "product_id": product, "slug": "demo", "total": 1, "by_status": {"sleeping": 1}, "max_engines": 5,
            "suspended": true,
        }],
    });
    let drain = json!({"drained_since": time, "left": 2, "asleep": 40, "failing": 150, "failures": [{
        "product_id": product, "engine_id": engine, "user_id": "ada\u{202e}", "since": time, "attempts": 3,
        "error": {"code": "BACKEND_ERROR", "message": "the backend did not answer in time"},
    }]});
    let started = json!({"next": null, "engines": [
        {"product_id": product, "engine_id": engine, "user_id": "ada", "error": null},
        {"product_id": product, "engine_id": engine, "user_id": "bob",
            "error": {"code": "BOOT_TIMEOUT", "message": "it did not come up"}},
    ]});
    let rows = json!({"next": null, "rows": [{
        "id": 3, "at": time, "product_id": product, "engine_id": engine, "user_id": "ada", "event": "sleep",
        "duration_ms": 31, "detail": {"reason": "drain"}, "hash": "00",
    }]});
    let difference = json!({
        "kind": "missing_instance", "engine_id": engine, "product_id": product, "user_id": "ada\u{202e}",
        "instance": "1", "seen": "it does not run", "repair": "mark_failed", "advice": null,
    });
    let mut result = difference.clone();
    (result["outcome"], result["error"]) = ("would_repair".into(), Value::Null);
    let drift = json!({
        "differences": [difference], "total": 2000, "truncated": true, "data_compared": false,
    });
    let repairs = json!({"dry_run": false, "results": [result], "total": 1, "truncated": false});
    vec![
        (&["fleet", "status"][..], status),
        (&["fleet", "engines"], engines),
        (&["fleet", "drain", "status"], drain.clone()),
        (&["fleet", "drain", "start"], drain),
        (&["fleet", "drain", "end"], json!({"drained_since": null, "left": 0})),
        (&["fleet", "drift"], drift),
        (&["fleet", "drift", "repair", "--all", "--yes"], repairs),
        (&["fleet", "start-failed"], started),
        (&["fleet", "events"], rows),
    ]
}

#[tokio::test]
async fn the_deployment_is_looked_at_drained_and_opened_again() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let product = up.product();
    let engine = product.engine("ada").await;
    let status = command(&fleet, &["fleet", "status"]).await.assert_success();
    let status = cells(&status);
    for expected in ["Engines | 1", "Drained | no", "running | 1", "demo | PRODUCT | 1 | - | 1 running"] {
        assert!(status.contains(expected), "no {expected:?} in {status}");
    }
    assert_eq!(
        status,
        cells(&command(&fleet, &["status", "--all-products"]).await.assert_success()),
        "they are the same"
    );
    let engines = command(&fleet, &["fleet", "engines", "--status", "running,failed", "--user", "ad"]).await;
    let engines = cells(&engines.assert_success());
    assert_eq!(
        engines,
        "PRODUCT | USER | STATUS | SINCE | VERSION | NOTES\nPRODUCT | ada | running | AGO | IMAGE | -"
    );
    let json = document(&command(&fleet, &["fleet", "engines", "--json"]).await.assert_success());
    assert_eq!(json["engines"][0]["engine_id"], engine.id, "{json}");
    for none in [&["--status", "failed"], &["--user", "b"], &["--version", "svc-engine:99.0.0"]] {
        let words = [&["fleet", "engines"], &none[..]].concat();
        assert_eq!(command(&fleet, &words).await.assert_success(), "There is no such engine.\n");
    }
    command(&fleet, &["fleet", "engines", "--status", "running,asleep"])
        .await
        .assert_failure(2, &["provisioning, running"]);

    // Nothing happens before a person has agreed.
    command(&fleet, &["fleet", "drain", "start"])
        .await
        .assert_failure(2, &["1 run or are being changed", "no terminal", "--yes"]);
    let idle = command(&fleet, &DRAIN_STATUS).await.assert_success();
    assert_eq!(cells(&idle), "Drain | none\nLeft | 1\nAsleep | 0\nFailing | 0");
    let begun = command(&fleet, &["fleet", "drain", "start", "--yes", "--json"]).await.assert_success();
    let since = document(&begun)["drained_since"].clone();
    assert!(since.is_string(), "{begun}");
    eventually("all engines sleep", async || {
        let json =
            document(&command(&fleet, &[&DRAIN_STATUS[..], &["--json"]].concat()).await.assert_success());
        let done = json!({
            "drained_since": since, "left": 0, "asleep": 1, "failing": 0, "failures": [],
        });
        (json == done).then_some(())
    })
    .await;
    let complete = command(&fleet, &DRAIN_STATUS).await.assert_success();
    assert!(complete.contains("complete, began") && complete.contains(since.as_str().unwrap()), "{complete}");
    command(&fleet, &["engine", "start", "ada"]).await.assert_failure(5, &["drained", "CAPACITY_EXHAUSTED"]);
    // What is drained already needs no agreement, and stays so.
    let again = command(&fleet, &["fleet", "drain", "start"]).await.assert_success();
    assert!(again.contains(since.as_str().unwrap()) && again.contains("engines left: 0"), "{again}");
    let ended = command(&fleet, &["fleet", "drain", "end"]).await.assert_success();
    assert!(ended.contains("start again when somebody needs them"), "{ended}");
    command(&fleet, &["fleet", "drain", "end"]).await.assert_success();
    command(&fleet, &["engine", "start", "ada"]).await.assert_success();
}

#[tokio::test]
async fn what_has_failed_is_started_and_each_engine_is_named() {
    let fleet = Fleet::new().with_env("ORCH_RESTART_MAX_ATTEMPTS", "0");
    let up = fleet.start_up().await;
    let product = up.product();
    for user in ["ada", "bob", "eve"] {
        product.engine(user).await;
    }
    let nothing = command(&fleet, &["fleet", "start-failed"]).await.assert_success();
    assert_eq!(nothing, "0 started, 0 not started.\n");
    for process in fleet.engine_processes() {
        processes::kill(process);
    }
    for user in ["ada", "bob", "eve"] {
        product.wait_for_status(user, "failed").await;
    }
    let failed = command(&fleet, &["fleet", "engines", "--status", "failed", "--limit", "2"]).await;
    let failed = failed.assert_success();
    assert!(cells(&failed).contains("PRODUCT | bob | failed") && failed.contains("--after eng_"), "{failed}");
    let first = command(&fleet, &["fleet", "start-failed", "--at-most", "1"]).await.assert_success();
    assert!(first.starts_with("ada of prod_") && first.contains("1 started, 0 not started"), "{first}");
    let rest = document(&command(&fleet, &["fleet", "start-failed", "--json"]).await.assert_success());
    let users: Vec<_> =
        rest["engines"].as_array().unwrap().iter().map(|one| one["user_id"].as_str().unwrap()).collect();
    assert_eq!((users, &rest["next"]), (vec!["bob", "eve"], &Value::Null), "{rest}");
    for user in ["ada", "bob", "eve"] {
        assert_eq!(product.status(user).await, "running");
    }
}

#[tokio::test]
async fn the_events_of_all_products_are_followed() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let other = up.register("other", json!({})).await;
    up.product().engine("ada").await;
    let mut follower = start_command(&fleet, &["fleet", "events", "-f", "--after", "0", "--json"]);
    follower.wait_for_output("\"ada\"").await.unwrap();
    other.engine("bob").await;
    follower.wait_for_output("\"bob\"").await.unwrap();
    let output = follower.output();
    let rows: Vec<Value> = output.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let count = |event: &str| rows.iter().filter(|row| row["event"] == event).count();
    assert_eq!((rows.len(), count("register"), count("provision")), (4, 2, 2), "{output}");
    processes::signal(follower.pid(), Signal::INT);
    follower.wait().await.assert_failure(130, &[]);
    let shown = command(&fleet, &["fleet", "events", "--tail", "1"]).await.assert_success();
    assert!(shown.contains("  #2  provision  bob  ") && shown.lines().count() == 1, "{shown}");
}

#[tokio::test]
async fn answers_are_shown_in_pipes_with_one_line_for_each_row() {
    let home = TestEnv::new();
    for ((words, answer), (code, expected)) in commands().into_iter().zip([
        (0, "Health | ok\nEngines | 1\nFailed | 0\nChanging | 0\n"),
        (0, "PRODUCT | ada\\u{202e} | failed | AGO | IMAGE | failed checks 2, restarts 8, pinned\n--after eng_"),
        (0, "PRODUCT | ada\\u{202e} | AGO | 3 | the backend did not answer in time (BACKEND_ERROR)\n1 of 150 are"),
        (0, "engines left: 2."),
        (0, "engines start again when somebody needs them"),
        (0, "missing_instance | eng_00000000000000000000000000000008 | PRODUCT | ada\\u{202e} | it does not run | mark_failed\n1 of 2000 are shown\nThe backend cannot"),
        (0, "it does not run | would be repaired: mark_failed"),
        (1, "bob of prod_00000000000000000000000000000007: not started: it did not come up (BOOT_TIMEOUT)\n1 started"),
        (0, "PRODUCT | #3 | sleep | ada | TIME | {\"reason\":\"drain\"}"),
    ]) {
        let service = FixedService::start(200, &answer.to_string()).await;
        let variables = [("ROUNDHOUSE_URL", service.base.as_str()), ("ROUNDHOUSE_ADMIN_KEY", "sesame")];
        let exit = command_with(&home, words, &variables).await;
        let output = if code == 0 { exit.assert_success() } else { exit.assert_failure(code, &[]) };
        assert!(cells(&output).contains(expected), "no {expected:?} in {}", cells(&output));
        let requests = service.requests();
        assert!(requests.iter().all(|request| request.ends_with(" x-admin-key=sesame")), "{requests:?}");
    }
}

#[tokio::test]
async fn answers_fit_the_terminal() {
    let home = TestEnv::new();
    for (columns, words, expected) in [
        (
            80,
            &["fleet", "drain", "status"][..],
            "\
Drain    under way, began AGO (2026-01-01T00:00:00.000Z)
Left     2
Asleep   40
Failing  150

PRODUCT   prod_00000000000000000000000000000007
USER      ada\\u{202e}
FAILING   AGO
ATTEMPTS  3
WHY       the backend did not answer in time (BACKEND_ERROR)
1 of 150 are shown",
        ),
        (
            40,
            &["fleet", "engines"],
            "\
PRODUCT  prod_00000000000000000000000000
         000007
USER     ada\\u{202e}
STATUS   failed
SINCE    AGO
VERSION  svc-engine:0.1.0
NOTES    failed checks 2, restarts 8,
         pinned
--after eng_00000000000000000000000000000008 shows more",
        ),
        (
            40,
            &["fleet", "status"],
            "\
Health    ok
Engines   1
Failed    0
Changing  0
Drained   AGO
          (2026-01-01T00:00:00.000Z)
Active    AGO
          (2026-01-01T00:00:00.000Z)
Ports     1 of 999 leased
Boots     8 at the same time

STATUS    ENGINES
sleeping        1

PRODUCT  demo
ID       prod_00000000000000000000000000
         000007
ENGINES  1
MAX      5
STATES   suspended, 1 sleeping",
        ),
    ] {
        let (_, answer) = commands().into_iter().find(|(command, _)| *command == words).unwrap();
        let service = FixedService::start(200, &answer.to_string()).await;
        let variables = [
            ("ROUNDHOUSE_URL", service.base.as_str()),
            ("ROUNDHOUSE_ADMIN_KEY", "sesame"),
            ("NO_COLOR", "1"),
        ];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let mut terminal = Terminal::start(&home, &[&[BINARY], words].concat(), &variables, columns);
        assert!(terminal.wait_for_exit().await.success(), "{words:?}");
        let shown = terminal.raw().replace("\r\n", "\n");
        let days = shown.split(" d ago").next().unwrap().rsplit(' ').next().unwrap();
        assert_eq!(
            shown.trim_end().replace(&format!("{days} d ago"), "AGO"),
            expected,
            "{words:?} in {columns}"
        );
    }
}

#[tokio::test]
async fn draining_asks_and_shows_how_far_it_is() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let product = up.product();
    product.engine("ada").await;
    let folder = fleet.folder().to_str().unwrap();
    let open = |words: &[&str]| {
        let line = [&[BINARY, "fleet", "drain"], words, &["--dir", folder]].concat();
        Terminal::start(&fleet.test_env, &line, &[].into(), 80)
    };
    let mut terminal = open(&["start"]);
    terminal.wait_for("Go on? [y/N]").await;
    terminal.enter("n");
    assert_eq!(terminal.wait_for_exit().await.code(), Some(4));
    assert_eq!(product.status("ada").await, "running");
    let mut watching = open(&["status", "--watch", "0.1"]);
    watching.wait_for("none").await;
    let mut terminal = open(&["start"]);
    terminal.wait_for("Go on? [y/N]").await;
    terminal.enter("y");
    assert!(terminal.wait_for_exit().await.success());
    watching.wait_for("complete, began").await;
    watching.send("\x03");
    assert_eq!(watching.wait_for_exit().await.code(), Some(130));
    assert_eq!(product.status("ada").await, "sleeping");
}

#[tokio::test]
async fn an_orchestrator_that_is_away_or_refuses_is_named_by_the_exit_code() {
    let home = TestEnv::new();
    let nowhere = format!("http://127.0.0.1:{}", home.ports.first());
    let error = |code: &str| json!({"error": {"code": code, "message": "because of this"}}).to_string();
    let wrong_key = FixedService::start(401, &error("INVALID_ADMIN_KEY")).await;
    let standby = FixedService::start(503, &error("STARTING_UP")).await;
    let admin = ("ROUNDHOUSE_ADMIN_KEY", "sesame");
    for (words, _) in commands() {
        command_with(&home, words, &[("ROUNDHOUSE_URL", &nowhere), admin])
            .await
            .assert_failure(5, &[&nowhere, "does not answer"]);
        let refused = command_with(&home, words, &[("ROUNDHOUSE_URL", &wrong_key.base), admin]).await;
        let refused = refused.assert_failure(4, &["ROUNDHOUSE_ADMIN_KEY", "INVALID_ADMIN_KEY"]);
        assert!(!refused.contains("sesame"), "{refused}");
        command_with(&home, words, &[("ROUNDHOUSE_URL", &standby.base), admin])
            .await
            .assert_failure(5, &["standby", "because of this"]);
        // A product's key is no operator's.
        let product = ("ROUNDHOUSE_PLATFORM_KEY", "pk-svc-x");
        command_with(&home, words, &[("ROUNDHOUSE_URL", &nowhere), product])
            .await
            .assert_failure(2, &["ROUNDHOUSE_ADMIN_KEY"]);
    }
}
