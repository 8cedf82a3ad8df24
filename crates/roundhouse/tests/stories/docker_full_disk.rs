//! Story 36 (lesson o18): the disk of the engines' folders, or that of the registry, is full. What needs room is refused
//! with a reason, nothing is lost, nothing is restarted for ever, and all is well when there is room again.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::engine_calls::direct_message;
use crate::support::http::client;
use crate::support::schema::{ENGINE_RECORD, PROVISIONED};
use crate::support::turn::assert_completed;
use crate::support::{Deployment, Disk, eventually};

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[tokio::test]
async fn lesson_o18_engines_without_room_refuse_with_a_reason_and_are_well_again() {
    let Some(place) = Deployment::docker() else { return };
    let root = place.fleet.test_env.path().join("small");
    let Some(disk) = Disk::new(root.clone(), 24) else { return };
    let place = place
        .with_env("ORCH_DATA_ROOT_PATH", path(&root))
        .with_env("ORCH_HEALTH_CHECK_INTERVAL_S", "0.5")
        .with_env("ORCH_RESTART_BACKOFF_BASE_S", "2")
        .with_env("ORCH_BOOT_TIMEOUT_S", "8");
    let (_orchestrator, product) = place.start_with_product().await;
    let engine = product.engine("ada").await;
    engine.run_turn("task", "Hello!").await;
    let messages = engine.messages("task").await;
    disk.fill();

    // A turn that cannot be kept is refused, or ends with an error; it is never said to have gone well.
    let answer = engine.request(reqwest::Method::POST, "/execute").json(&direct_message("task", "And this?"));
    let answer = answer.send().await.unwrap();
    let status = answer.status();
    let told = answer.text().await.unwrap();
    assert!(status != 200 || told.contains("event: error"), "{status}: {told}");
    assert!(!told.contains(r#""phase":"completed""#), "{told}");
    // Why is told by the engine's health, and by the ledger once it has failed for it.
    let reason = eventually("the engine says why", async || {
        let health = client().get(format!("{}/health", engine.url)).send().await.ok()?;
        let health: Value = health.json().await.ok()?;
        Some(health["subsystems"]["database"].as_str()?.to_owned()).filter(|reason| reason != "ok")
    })
    .await;
    assert!(reason.contains("full"), "{reason}");
    // A new engine is refused whole.
    let refused = product.provision("bob").await;
    assert!([502, 503, 504].contains(&refused.status), "{refused:?}");
    product.get("bob").await.assert_error(404, "ENGINE_NOT_FOUND");
    assert_eq!(product.audit_rows("provision_failed").await.len(), 1);
    eventually("nothing of it is left", async || (place.containers().await.len() <= 1).then_some(())).await;
    // No storm: attempts are as far apart as they are to be.
    tokio::time::sleep(Duration::from_secs(6)).await;
    let restarts = product.audit_rows("restart").await.len();
    assert!(restarts <= 3, "{restarts} restarts");

    disk.free_space();
    eventually("it is well", async || (product.admit("ada").await.body["admitted"] == true).then_some(()))
        .await;
    let engine = product.engine("ada").await;
    let kept = engine.messages("task").await;
    assert_eq!(kept[..messages.len()], messages, "nothing was lost");
    assert_eq!(
        assert_completed(&engine.execute_with(&direct_message("other", "Now?")).await.collect().await),
        "So it is."
    );
    product.provision("bob").await.assert_ok(PROVISIONED);
}

#[tokio::test]
async fn lesson_o18_a_registry_without_room_refuses_and_loses_nothing() {
    let Some(place) =
        Deployment::with_combination(crate::support::Backend::Docker, crate::support::Database::Sqlite)
    else {
        return;
    };
    let folder = place.fleet.test_env.path().join("small");
    let Some(disk) = Disk::new(folder.clone(), 8) else { return };
    let url = format!("sqlite:{}", folder.join("registry.sqlite").display());
    let place = place.with_env("ORCH_DATABASE_URL", url);
    let (orchestrator, product) = place.start_with_product().await;
    let engine = product.engine("ada").await;
    let container = place.container_of(&engine).await;
    disk.fill();
    // The file may have room within; in the end there is none.
    let mut made = 1;
    let answer = loop {
        let user = format!("user-{made}");
        let answer = product.provision(&user).await;
        if answer.status != 200 {
            break answer;
        }
        product.delete(&user).await;
        made += 1;
        assert!(made < 60, "the disk is not full");
    };
    assert!([500, 503].contains(&answer.status), "{answer:?}");
    let record = product.get("ada").await.assert_ok(ENGINE_RECORD);
    assert_eq!((&record["status"], &record["api_key"]), (&json!("running"), &json!(engine.key)));
    engine.run_turn("task", "Hello!").await;
    assert_eq!(place.container_of(&engine).await, container);
    assert!(product.audit_rows("crash").await.is_empty() && product.audit_rows("restart").await.is_empty());

    disk.free_space();
    eventually("it writes again", async || (product.provision("bob").await.status == 200).then_some(()))
        .await;
    product.stop("ada").await.assert_ok("status:text");
    product.start("ada").await.assert_ok("status:text url:url");
    // What the ledger says is whole, and rows and containers are one to one after the next start.
    let _orchestrator = place.kill_and_start(orchestrator).await;
    eventually("rows and containers are one to one", async || {
        let running = product.list("?status=running").await.1;
        (place.containers().await.len() as u64 == running && product.list("").await.1 == running)
            .then_some(())
    })
    .await;
    let variables = std::collections::BTreeMap::from([(
        "ORCH_DATABASE_URL".to_owned(),
        place.fleet.variables["ORCH_DATABASE_URL"].clone(),
    )]);
    place.fleet.test_env.run(&["audit", "verify"], &variables).wait().await.assert_success();
}
