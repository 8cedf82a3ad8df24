//! How the commands find an orchestrator and the keys to it, and what they say if they cannot.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use serde_json::json;

use crate::support::command_line::{FixedService, cells, command_with, document};
use crate::support::{Fleet, TestEnv};

const STATUS: &str = r#"{"total":0,"by_status":{},"health":"ok","unhealthy_count":0,
    "active_since":"2026-01-01T00:00:00.000Z","drained_since":null,"changes_under_way":0,
    "capacity":{"ports":999,"leased_ports":0,"concurrent_boots":8},"products":[]}"#;

#[tokio::test]
async fn a_profile_or_the_environment_names_an_orchestrator_and_its_keys() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let (key, home) = (up.product().key, TestEnv::new());
    let (url, key_of) = (("ROUNDHOUSE_URL", up.base.as_str()), ("ROUNDHOUSE_PLATFORM_KEY", key.as_str()));
    let status = command_with(&home, &["status", "--json"], &[url, key_of]).await.assert_success();
    assert_eq!(document(&status)["total"], 0);
    // The key of one place is never sent to the address of another one.
    command_with(&home, &["status"], &[url]).await.assert_failure(2, &["ROUNDHOUSE_PLATFORM_KEY", "profile"]);
    command_with(&home, &["status"], &[]).await.assert_failure(2, &["roundhouse up", "--profile"]);

    let file = home.path().join(".config/roundhouse/profiles.toml");
    command_with(&home, &["status", "--profile", "here"], &[])
        .await
        .assert_failure(2, &[file.to_str().unwrap(), "does not exist"]);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    let admin = up.admin_key();
    let base = &up.base;
    let profiles = format!("[here]\nurl = {base:?}\nplatform_key = {key:?}\nadmin_key = {admin:?}\n");
    fs::write(&file, profiles).unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
    let refused = command_with(&home, &["status", "--profile", "here"], &[]).await;
    let refused = refused.assert_failure(2, &["chmod 600"]);
    assert!(!refused.contains(&key), "{refused}");
    fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    command_with(&home, &["status", "--profile", "here"], &[]).await.assert_success();
    command_with(&home, &["product", "list"], &[("ROUNDHOUSE_PROFILE", "here")]).await.assert_success();
    // A profile's keys are its own, whatever the environment has.
    let other = ("ROUNDHOUSE_PLATFORM_KEY", "pk-svc-of-another-place");
    command_with(&home, &["status", "--profile", "here"], &[other]).await.assert_success();
    command_with(&home, &["status", "--profile", "there"], &[]).await.assert_failure(2, &["`there`", "here"]);
    command_with(&home, &["connection", "list", "--json", "--user", "ada", "--profile", "here"], &[])
        .await
        .assert_success();
}

#[tokio::test]
async fn what_is_wrong_is_said_with_its_place_and_by_the_exit_code() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let home = TestEnv::new();
    let wrong = "pk-svc-wrong-wrong-wrong-wrong-wrong-wrong-wrong";
    let key = ("ROUNDHOUSE_PLATFORM_KEY", wrong);
    let refused = command_with(&home, &["status"], &[("ROUNDHOUSE_URL", &up.base), key]).await;
    let refused = refused.assert_failure(4, &[&up.base, "ROUNDHOUSE_PLATFORM_KEY", "INVALID_PLATFORM_KEY"]);
    assert!(!refused.contains(wrong), "{refused}");
    let admin = ("ROUNDHOUSE_ADMIN_KEY", "sesame");
    command_with(&home, &["product", "list"], &[("ROUNDHOUSE_URL", &up.base), admin])
        .await
        .assert_failure(4, &["the admin key in ROUNDHOUSE_ADMIN_KEY", "INVALID_ADMIN_KEY"]);

    let nowhere = format!("http://127.0.0.1:{}", home.ports.first());
    command_with(&home, &["status"], &[("ROUNDHOUSE_URL", &nowhere), key])
        .await
        .assert_failure(5, &[&nowhere, "does not answer", "Connection refused"]);
    let standby = r#"{"error":{"code":"STARTING_UP","message":"another orchestrator is active"}}"#;
    for (status, body, code, words) in [
        (503, standby, 5, &["another orchestrator is active", "standby"][..]),
        (502, "<html>no upstream</html>", 5, &["no Roundhouse orchestrator", "502"]),
        (404, "<html>not here</html>", 1, &["no Roundhouse orchestrator", "404"]),
        (200, "<html>hello</html>", 1, &["could not be parsed"]),
    ] {
        let service = FixedService::start(status, body).await;
        let url = ("ROUNDHOUSE_URL", service.base.as_str());
        command_with(&home, &["status"], &[url, key]).await.assert_failure(code, words);
    }
    command_with(&home, &["status", "--watch", "soon"], &[]).await.assert_failure(2, &["number of seconds"]);
    command_with(&home, &["status", "--profile", "a", "--url", "http://b"], &[])
        .await
        .assert_failure(2, &["--url"]);
}

#[tokio::test]
async fn the_operator_acts_for_a_product_or_reads_across_all() {
    let home = TestEnv::new();
    let service = FixedService::start(200, STATUS).await;
    let variables = [("ROUNDHOUSE_URL", service.base.as_str()), ("ORCH_ADMIN_KEY", "sesame")];
    let product = format!("prod_{:032x}", 7);
    command_with(&home, &["status", "--product", &product], &variables).await.assert_success();
    command_with(&home, &["status", "--all-products"], &variables).await.assert_success();
    command_with(&home, &["memory", "list", "--product", &product], &variables)
        .await
        .assert_failure(2, &["--product"]);
    assert_eq!(
        service.requests(),
        [
            format!("GET /status x-admin-key=sesame x-product-id={product}"),
            "GET /fleet/status x-admin-key=sesame".to_owned(),
        ]
    );
}

#[tokio::test]
async fn lists_across_products_name_the_product_and_go_on() {
    let home = TestEnv::new();
    let (product, engine) = (format!("prod_{:032x}", 7), format!("eng_{:032x}", 8));
    let engines = json!({"next": engine, "engines": [{
        "product_id": product, "engine_id": engine, "user_id": "ada", "status": "running",
        "url": "http://127.0.0.1:9001", "engine_version": "svc-engine:0.1.0",
        "created_at": "2026-01-01T00:00:00.000Z", "last_health_at": null, "pinned": false, "port": 9001,
        "since": null, "failed_checks": 0, "restarts": 0, "restart_at": null,
    }]});
    let rows = json!({"next": format!("5.{product}.3"), "rows": [{
        "id": 3, "at": "2026-01-01T00:00:00.000Z", "product_id": product, "engine_id": engine, "user_id": "ada",
        "event": "stop", "duration_ms": 31, "detail": {"actor": "admin"}, "hash": "00",
    }]});
    let status = json!({
        "active_since": "2026-01-01T00:00:00.000Z", "drained_since": null, "total": 1, "by_status": {"running": 1},
        "health": "ok", "unhealthy_count": 0, "changes_under_way": 0,
        "capacity": {"ports": null, "leased_ports": 0, "concurrent_boots": 8},
        "products": [{
            "product_id": product, "slug": "demo", "total": 1, "by_status": {"running": 1}, "max_engines": null,
            "suspended": false,
        }],
    });
    for (words, answer, expected) in [
        (
            &["engine", "list"][..],
            engines,
            ["PRODUCT | ada | running", &format!("--after {engine} shows more")],
        ),
        (
            &["audit", "list"],
            rows.clone(),
            ["PRODUCT | 3 | AGO | stop | ada", &format!("--before 5.{product}.3")],
        ),
        (&["status"], status, ["Engines | 1", "demo | PRODUCT | 1 | - | 1 running"]),
        (&["events"], rows, ["PRODUCT | #3 | stop | ada | TIME", ""]),
    ] {
        let service = FixedService::start(200, &answer.to_string()).await;
        let variables = [("ROUNDHOUSE_URL", service.base.as_str()), ("ROUNDHOUSE_ADMIN_KEY", "sesame")];
        let output =
            command_with(&home, &[words, &["--all-products"]].concat(), &variables).await.assert_success();
        let shown = cells(&output);
        for text in expected {
            assert!(shown.contains(text), "no {text:?} in {shown}");
        }
        assert!(service.requests()[0].starts_with("GET /fleet/"), "{:?}", service.requests());
    }
}
