//! Story 36 (lesson o18): the disk of the engines' folders or of the registry is full. Operations that need space
//! are refused with a reason, no data is lost, nothing restarts forever, and everything works again once there is
//! space.

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
async fn regression_o18_engines_without_room_refuse_with_a_reason_and_are_well_again() {
    let Some(deployment) = Deployment::docker() else { return };
    let root = deployment.fleet.test_env.path().join("small");
    let Some(disk) = Disk::new(root.clone(), 24) else { return };
    let deployment = deployment
        .with_env("ORCH_DATA_ROOT_PATH", path(&root))
        .with_env("ORCH_HEALTH_CHECK_INTERVAL_S", "0.5")
        .with_env("ORCH_RESTART_BACKOFF_BASE_S", "2")
        .with_env("ORCH_BOOT_TIMEOUT_S", "8");
    let (_orchestrator, product) = deployment.start_with_product().await;
    let engine = product.engine("ada").await;
    engine.run_turn("task", "Hello!").await;
    let messages = engine.messages("task").await;
    disk.fill();

    // A turn that cannot be stored is refused or ends with an error; it is never reported as completed.
    let answer = engine.request(reqwest::Method::POST, "/execute").json(&direct_message("task", "And this?"));
    let answer = answer.send().await.unwrap();
    let status = answer.status();
    let body = answer.text().await.unwrap();
    assert!(status != 200 || body.contains("event: error"), "{status}: {body}");
    assert!(!body.contains(r#""phase":"completed""#), "{body}");
    // The engine's health gives the reason, and so does the audit log once the engine has failed.
    let reason = eventually("the engine reports the reason", async || {
        let health = client().get(format!("{}/health", engine.url)).send().await.ok()?;
        let health: Value = health.json().await.ok()?;
        Some(health["subsystems"]["database"].as_str()?.to_owned()).filter(|reason| reason != "ok")
    })
    .await;
    assert!(reason.contains("full"), "{reason}");
    // A new engine is refused completely.
    let refused = product.provision("bob").await;
    assert!([502, 503, 504].contains(&refused.status), "{refused:?}");
    product.get("bob").await.assert_error(404, "ENGINE_NOT_FOUND");
    assert_eq!(product.audit_rows("provision_failed").await.len(), 1);
    eventually("nothing of it is left", async || (deployment.containers().await.len() <= 1).then_some(()))
        .await;
    // No restart storm: attempts keep the back-off.
    tokio::time::sleep(Duration::from_secs(6)).await;
    let restarts = product.audit_rows("restart").await.len();
    assert!(restarts <= 3, "{restarts} restarts");

    disk.free_space();
    eventually("it is healthy", async || (product.admit("ada").await.body["admitted"] == true).then_some(()))
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
async fn regression_o18_a_registry_without_room_refuses_and_loses_nothing() {
    let Some(deployment) =
        Deployment::with_combination(crate::support::Backend::Docker, crate::support::Database::Sqlite)
    else {
        return;
    };
    let folder = deployment.fleet.test_env.path().join("small");
    let Some(disk) = Disk::new(folder.clone(), 8) else { return };
    let url = format!("sqlite:{}", folder.join("registry.sqlite").display());
    let deployment = deployment.with_env("ORCH_DATABASE_URL", url);
    let (orchestrator, product) = deployment.start_with_product().await;
    let engine = product.engine("ada").await;
    let container = deployment.container_of(&engine).await;
    disk.fill();
    // The file may have free pages; in the end there are none.
    let mut count = 1;
    let answer = loop {
        let user = format!("user-{count}");
        let answer = product.provision(&user).await;
        if answer.status != 200 {
            break answer;
        }
        product.delete(&user).await;
        count += 1;
        assert!(count < 60, "the disk is not full");
    };
    assert!([500, 503].contains(&answer.status), "{answer:?}");
    let record = product.get("ada").await.assert_ok(ENGINE_RECORD);
    assert_eq!((&record["status"], &record["api_key"]), (&json!("running"), &json!(engine.key)));
    engine.run_turn("task", "Hello!").await;
    assert_eq!(deployment.container_of(&engine).await, container);
    assert!(product.audit_rows("crash").await.is_empty() && product.audit_rows("restart").await.is_empty());

    disk.free_space();
    eventually("it writes again", async || (product.provision("bob").await.status == 200).then_some(()))
        .await;
    product.stop("ada").await.assert_ok("status:text");
    product.start("ada").await.assert_ok("status:text url:url");
    // The audit log is intact, and after the next start rows and containers are one to one.
    let _orchestrator = deployment.kill_and_start(orchestrator).await;
    eventually("rows and containers are one to one", async || {
        let running = product.list("?status=running").await.1;
        (deployment.containers().await.len() as u64 == running && product.list("").await.1 == running)
            .then_some(())
    })
    .await;
    let variables = std::collections::BTreeMap::from([(
        "ORCH_DATABASE_URL".to_owned(),
        deployment.fleet.variables["ORCH_DATABASE_URL"].clone(),
    )]);
    deployment.fleet.test_env.run(&["audit", "verify"], &variables).wait().await.assert_success();
}
