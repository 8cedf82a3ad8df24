//! Story 30: the lifecycle of an engine in a container, as seen by its product and at the daemon.

use std::time::{Duration, Instant};

use mock_llm::{MockProvider, Reply};
use reqwest::Method;
use rustix::process::Signal;
use serde_json::json;

use crate::support::schema::{ENGINE_RECORD, PROVISIONED};
use crate::support::turn::assert_completed;
use crate::support::{Deployment, assert_fields, assert_within, eventually, image, processes};

#[tokio::test]
async fn an_engine_in_a_container_answers_and_keeps_its_thread_through_stop_and_start() {
    let Some(deployment) = Deployment::docker() else { return };
    let provider = MockProvider::start().await.unwrap();
    provider.set_default_reply(Reply::from_text("So it is."));
    let deployment = deployment.with_provider(&provider);
    let (_orchestrator, product) = deployment.start_with_product().await;
    let record = product.provision("ada").await.assert_ok(PROVISIONED);
    assert_eq!(record["status"], "running");
    let engine = product.engine("ada").await;
    let first = deployment.container_of(&engine).await.expect("it has a container");
    assert_eq!(
        deployment.containers().await,
        std::slice::from_ref(&first),
        "it is the only one in the deployment's network"
    );
    let container_info = deployment.docker_daemon().inspect(&first).await;
    assert_eq!(
        container_info["Config"]["Image"],
        product.get("ada").await.assert_ok(ENGINE_RECORD)["engine_version"]
    );
    assert!(container_info["Name"].as_str().unwrap().contains(&engine.id), "{}", container_info["Name"]);
    assert_eq!(engine.health().await["status"], "ok");
    let events = engine.execute("task", "Is it?").await.collect().await;
    assert_eq!(assert_completed(&events), "So it is.");
    let messages = engine.messages("task").await;

    product.stop("ada").await.assert_ok("status:text");
    assert_eq!(deployment.containers().await, Vec::<String>::new(), "a stopped engine leaves no container");
    assert!(deployment.fleet.engine_folder(&engine.id).join("brain.sqlite").exists());
    product.start("ada").await.assert_ok("status:text url:url");
    let engine = product.engine("ada").await;
    let second = deployment.container_of(&engine).await.expect("it has a container");
    assert_ne!(first, second, "containers are created anew, never restarted");
    assert_eq!(engine.messages("task").await, messages);
    assert_eq!(engine.replay("task", 0).await.collect().await, events);
    engine.run_turn("task", "And again?").await;
    assert_eq!(provider.requests().len(), 2);
}

#[tokio::test]
async fn an_engine_in_a_container_sleeps_and_wakes_where_it_was() {
    let Some(deployment) = Deployment::docker() else { return };
    let deployment = deployment.with_env("ORCH_IDLE_SLEEP_THRESHOLD_S", "2");
    let (_orchestrator, product) = deployment.start_with_product().await;
    let engine = product.engine("ada").await;
    engine.run_turn("task", "Hello!").await;
    let messages = engine.messages("task").await;
    product.wait_for_status("ada", "sleeping").await;
    eventually("its container is gone", async || deployment.containers().await.is_empty().then_some(()))
        .await;
    assert_eq!(product.denial_reason("ada").await, "engine_sleeping");
    assert_eq!(deployment.containers().await, Vec::<String>::new(), "reading wakes nothing");
    let engine = product.engine("ada").await;
    assert_eq!(engine.messages("task").await, messages);
    assert_eq!(product.audit_rows("sleep").await.len(), 1);
    assert_eq!(product.audit_rows("wake").await.len(), 1);
}

#[tokio::test]
async fn a_deleted_engine_leaves_nothing_and_its_user_begins_anew() {
    let Some(deployment) = Deployment::docker() else { return };
    let (_orchestrator, product) = deployment.start_with_product().await;
    let engine = product.engine("ada").await;
    engine.run_turn("task", "Hello!").await;
    product.engine("bob").await;
    let folder = deployment.fleet.engine_folder(&engine.id);
    assert!(folder.join("brain.sqlite").exists());
    let gone = product.delete("ada").await.assert_ok("status:text engine_id:engine");
    assert_eq!((&gone["status"], &gone["engine_id"]), (&json!("destroyed"), &json!(engine.id)));
    assert!(!folder.exists(), "its folder is gone");
    assert_eq!(deployment.container_of(&engine).await, None);
    assert_eq!(deployment.containers().await.len(), 1, "another user's engine remains");
    product.get("ada").await.assert_error(404, "ENGINE_NOT_FOUND");
    let new_engine = product.engine("ada").await;
    assert_ne!(new_engine.id, engine.id);
    assert_eq!(new_engine.tasks("").await, (vec![], 0));
}

#[tokio::test]
async fn regression_o07_an_engine_in_a_container_that_does_not_obey_is_gone_after_its_grace() {
    let Some(deployment) = Deployment::docker() else { return };
    let (_orchestrator, product) = deployment.start_with_product().await;
    let (hung, other) = (product.engine("ada").await, product.engine("bob").await);
    for engine in [&hung, &other] {
        // A stopped process does not handle SIGTERM.
        processes::signal(deployment.process_of(engine).unwrap(), Signal::STOP);
    }
    let start = Instant::now();
    // A delete does not wait for it.
    product.delete("bob").await.assert_ok("status:text engine_id:engine");
    assert_within("it is killed at once", start.elapsed(), 0.0..20.0);
    product.stop("ada").await.assert_ok("status:text");
    assert_within("it was given its grace period", start.elapsed(), 30.0..58.0);
    eventually("no container is left", async || deployment.containers().await.is_empty().then_some(())).await;
    product.start("ada").await.assert_ok("status:text url:url");
    product.engine("ada").await.health().await;
}

#[tokio::test]
async fn regression_o16_a_key_that_was_rotated_away_stays_dead_in_containers_too() {
    let Some(deployment) = Deployment::docker() else { return };
    let deployment = deployment.with_env("ORCH_RESTART_BACKOFF_BASE_S", "0.2");
    let (orchestrator, product) = deployment.start_with_product().await;
    let old = product.engine("ada").await;
    let container = deployment.container_of(&old).await;
    let key = product.rotate_key("ada").await.assert_ok("new_api_key:engine-key")["new_api_key"].take();
    assert_eq!(deployment.container_of(&old).await, container, "the rotation restarts nothing");
    let assert_only_new_key_works = async || {
        let engine = product.engine("ada").await;
        assert_eq!(json!(engine.key), key);
        engine.get("/tasks").await.assert_ok("tasks:array total:int");
        let former = engine.with_key(&old.key);
        former.get("/tasks").await.assert_error(401, "INVALID_ENGINE_KEY");
    };
    assert_only_new_key_works().await;
    product.stop("ada").await.assert_ok("status:text");
    product.start("ada").await.assert_ok("status:text url:url");
    assert_only_new_key_works().await;
    let container = deployment.container_of(&old).await.unwrap();
    deployment.docker_daemon().run(&["kill", &container]).await;
    product.wait_for_status("ada", "failed").await;
    product.wait_for_status("ada", "running").await;
    assert_only_new_key_works().await;
    let _orchestrator = deployment.kill_and_start(orchestrator).await;
    assert_only_new_key_works().await;
}

#[tokio::test]
async fn an_image_that_is_not_there_is_said_before_anything_is_made() {
    let Some(deployment) = Deployment::docker() else { return };
    let (_orchestrator, product) = deployment.start_with_product().await;
    let missing_image = image::reference("0.99.0");
    let body = json!({"user_id": "ada", "engine_version": missing_image});
    let answer = product.call(Method::POST, "/engines/provision", Some(body)).await;
    let message = answer.assert_error(502, "BACKEND_ERROR");
    assert!(message.contains(&missing_image), "{message}");
    product.get("ada").await.assert_error(404, "ENGINE_NOT_FOUND");
    assert_eq!(deployment.containers().await, Vec::<String>::new());
}

#[tokio::test]
async fn what_an_engine_in_a_container_says_can_be_read() {
    let Some(deployment) = Deployment::docker() else { return };
    let deployment =
        deployment.with_env("ENGINE_LOG_LEVEL", "info").with_env("ORCH_RESTART_BACKOFF_BASE_S", "300");
    let (_orchestrator, product) = deployment.start_with_product().await;
    let engine = product.engine("ada").await;
    let lines = async |query: &str| {
        let path = format!("/engines/ada/logs{query}");
        let logs = product.call(Method::GET, &path, None).await.assert_ok("lines:array");
        logs["lines"]
            .as_array()
            .unwrap()
            .iter()
            .map(|line| line.as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let all = lines("").await;
    assert!(!all.is_empty() && all.iter().all(|line| !line.contains('\n')), "{all:?}");
    let last = lines("?tail=1").await;
    assert_eq!(last, all[all.len() - 1..], "the last of {all:?}");
    // The log of a failed engine can be read too, when it is needed most.
    deployment.kill_engine(&engine);
    product.wait_for_status("ada", "failed").await;
    let after = lines("?tail=10000").await;
    assert!(after.starts_with(&all), "{after:?} continues {all:?}");
}

#[tokio::test]
async fn what_an_engine_may_take_is_capped_and_told() {
    let Some(deployment) = Deployment::docker() else { return };
    let orchestrator = deployment.start().await;
    let policy = json!({"engine_memory_mb": 384, "engine_cpus": 0.5, "engine_pids": 100});
    let product = orchestrator.register("capped", policy).await;
    let engine = product.engine("ada").await;
    let explanation = product.explain("ada").await;
    assert_fields(&explanation["caps"], "memory_mb:int cpus:number pids:int applied:bool");
    assert_eq!(explanation["caps"], json!({"memory_mb": 384, "cpus": 0.5, "pids": 100, "applied": true}));
    let container = deployment.container_of(&engine).await.unwrap();
    let limit = async |names: &str| {
        let line = format!("cd /sys/fs/cgroup && cat {names} 2>/dev/null | head -n 1");
        deployment.docker_daemon().exec_shell(&container, &line).await
    };
    assert_eq!(limit("memory.max memory/memory.limit_in_bytes").await, (384 << 20).to_string());
    assert_eq!(limit("pids.max pids/pids.max").await, "100");
    // Half of each period of 0.1 s.
    let time = limit("cpu.max cpu/cpu.cfs_quota_us").await;
    assert_eq!(time.split(' ').next(), Some("50000"), "{time}");

    // Without caps in the policy, defaults apply.
    let other = orchestrator.register("other", json!({})).await;
    other.engine("ada").await;
    let explanation = other.explain("ada").await;
    assert_fields(&explanation["caps"], "memory_mb:int|null cpus:number|null pids:int applied:bool");
    assert_eq!(explanation["caps"]["applied"], true, "{explanation}");
}

#[tokio::test]
async fn an_engine_that_cannot_boot_is_rolled_back_with_its_last_words() {
    let Some(deployment) = Deployment::docker() else { return };
    // A value that the engine refuses.
    let names = "LLM_PROVIDER,LLM_SCRIPT_PATH,CHANNEL_STATE_TTL_HITL";
    let deployment = deployment
        .with_env("ORCH_ENGINE_ENV_PASSTHROUGH", names)
        .with_env("CHANNEL_STATE_TTL_HITL", "a fortnight")
        .with_env("ORCH_BOOT_TIMEOUT_S", "20");
    let (_orchestrator, product) = deployment.start_with_product().await;
    let start = Instant::now();
    let answer = product.provision("ada").await;
    assert!([502, 504].contains(&answer.status), "{answer:?}");
    assert!(start.elapsed() < Duration::from_secs(19), "its exit is noticed before the timeout");
    product.get("ada").await.assert_error(404, "ENGINE_NOT_FOUND");
    assert_eq!(deployment.containers().await, Vec::<String>::new(), "the container is rolled back");
    let folders = std::fs::read_dir(deployment.fleet.folder().join("engines")).unwrap().count();
    assert_eq!(folders, 0, "so is the folder");
    let failed = product.audit_rows("provision_failed").await;
    assert!(failed[0].1.to_string().contains("CHANNEL_STATE_TTL_HITL"), "{failed:?}");
}
