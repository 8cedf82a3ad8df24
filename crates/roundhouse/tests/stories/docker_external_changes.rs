//! Story 31 (lessons o01, o05, o10): changes that a person makes directly at the daemon are noticed, and
//! containers that do not belong to the orchestrator are left alone.

use std::fs;
use std::time::{Duration, Instant};

use futures::future::join;
use rustix::process::Pid;
use serde_json::{Value, json};

use crate::support::{
    Deployment, Docker, Engine, Orchestrator, Product, assert_within, eventually, image, processes,
};

/// A deployment that restarts failed engines quickly.
async fn fast_restart_deployment() -> Option<(Deployment, Orchestrator, Product)> {
    let deployment = Deployment::docker()?
        .with_env("ORCH_RESTART_BACKOFF_BASE_S", "0.5")
        .with_env("ORCH_RESTART_BACKOFF_MAX_S", "2")
        .with_env("ORCH_HEALTH_CHECK_INTERVAL_S", "0.5")
        .with_env("ORCH_HEALTH_CHECK_TIMEOUT_S", "1");
    let (orchestrator, product) = deployment.start_with_product().await;
    Some((deployment, orchestrator, product))
}

/// Waits until an engine runs in another container than `before`, which must be gone; returns the new one.
async fn wait_until_back(
    deployment: &Deployment,
    product: &Product,
    engine: &Engine,
    before: &str,
) -> String {
    let now = eventually("it runs in another container", async || {
        let status = product.status("ada").await;
        deployment.container_of(engine).await.filter(|now| now != before && status == "running")
    })
    .await;
    assert_eq!(deployment.docker_daemon().state(before).await, None, "the old container is gone");
    now
}

/// Roundhouse's labels of a container.
async fn labels(docker: &Docker, container: &str) -> Vec<String> {
    let labels = docker.inspect(container).await["Config"]["Labels"].take();
    let own_labels = labels.as_object().unwrap().iter().filter(|(name, _)| name.starts_with("roundhouse."));
    let own_labels: Vec<String> = own_labels
        .filter(|(name, _)| *name != "roundhouse.test.binary")
        .map(|(name, value)| format!("{name}={}", value.as_str().unwrap()))
        .collect();
    assert!(own_labels.len() >= 4, "deployment, product, engine, generation: {own_labels:?}");
    own_labels
}

/// Creates a container with these labels in the deployment's network, without starting it.
async fn create(deployment: &Deployment, name: &str, labels: &[String]) -> String {
    let mut arguments = vec!["create", "--name", name, "--network", deployment.network()];
    arguments.extend(labels.iter().flat_map(|label| ["--label", label]));
    let image = image::reference(env!("CARGO_PKG_VERSION"));
    arguments.extend(["--entrypoint", "sleep", &image, "1000"]);
    deployment.docker_daemon().run(&arguments).await
}

/// The name of an engine's container.
async fn name_of(deployment: &Deployment, engine: &Engine) -> String {
    let container = deployment.container_of(engine).await.unwrap();
    let inspected = deployment.docker_daemon().inspect(&container).await;
    inspected["Name"].as_str().unwrap().trim_start_matches('/').to_owned()
}

#[tokio::test]
async fn regression_o05_what_ends_a_container_is_noticed_at_once_and_the_engine_is_back() {
    let Some((deployment, _orchestrator, product)) = fast_restart_deployment().await else { return };
    let engine = product.engine("ada").await;
    engine.run_turn("task", "Hello!").await;
    let messages = engine.messages("task").await;
    let actions: [&[&str]; 3] = [&["kill"], &["rm", "--force"], &["stop", "--time", "5"]];
    for (number, action) in actions.into_iter().enumerate() {
        let container = deployment.container_of(&engine).await.unwrap();
        let start = Instant::now();
        deployment.docker_daemon().run(&[action, &[container.as_str()]].concat()).await;
        eventually("it is noticed", async || {
            (product.audit_rows("crash").await.len() > number).then_some(())
        })
        .await;
        assert_within("it is noticed", start.elapsed(), 0.0..15.0);
        wait_until_back(&deployment, &product, &engine, &container).await;
        let again = product.engine("ada").await;
        assert_eq!((&again.id, &again.key), (&engine.id, &engine.key));
        assert_eq!(again.messages("task").await, messages, "after {action:?}");
    }
    let causes: Vec<Value> =
        product.audit_rows("crash").await.into_iter().map(|(_, detail)| detail["cause"].clone()).collect();
    assert_eq!(causes, vec![json!("exit"); 3]);
    assert_eq!(product.audit_rows("restart").await.len(), 3);
}

#[tokio::test]
async fn a_container_that_was_halted_is_ended_and_the_engine_is_back() {
    let Some((deployment, _orchestrator, product)) = fast_restart_deployment().await else { return };
    let engine = product.engine("ada").await;
    let container = deployment.container_of(&engine).await.unwrap();
    deployment.docker_daemon().run(&["pause", &container]).await;
    wait_until_back(&deployment, &product, &engine, &container).await;
    let crash = product.audit_rows("crash").await;
    assert_eq!(crash[0].1["cause"], "health", "{crash:?}");
}

#[tokio::test]
async fn a_halted_container_can_be_deleted() {
    let Some(deployment) = Deployment::docker() else { return };
    let (_orchestrator, product) = deployment.start_with_product().await;
    let engine = product.engine("ada").await;
    let container = deployment.container_of(&engine).await.unwrap();
    deployment.docker_daemon().run(&["pause", &container]).await;
    product.delete("ada").await.assert_ok("status:text engine_id:engine");
    assert_eq!(deployment.docker_daemon().state(&container).await, None);
    assert!(!deployment.fleet.engine_folder(&engine.id).exists());
}

#[tokio::test]
async fn a_halted_container_can_be_stopped() {
    let Some(deployment) = Deployment::docker() else { return };
    let (_orchestrator, product) = deployment.start_with_product().await;
    let engine = product.engine("ada").await;
    let container = deployment.container_of(&engine).await.unwrap();
    deployment.docker_daemon().run(&["pause", &container]).await;
    product.stop("ada").await.assert_ok("status:text");
    assert_eq!(deployment.docker_daemon().state(&container).await, None);
    product.start("ada").await.assert_ok("status:text url:url");
    product.engine("ada").await.health().await;
}

#[tokio::test]
async fn regression_o01_what_bears_our_label_and_belongs_to_no_engine_is_removed() {
    let Some((deployment, orchestrator, product)) = fast_restart_deployment().await else { return };
    let engine = product.engine("ada").await;
    let other = product.engine("bob").await;
    let container = deployment.container_of(&engine).await.unwrap();
    let own_labels = labels(deployment.docker_daemon(), &container).await;
    // Orphans: a created and a running container of an unknown engine, and one of a stopped engine.
    let nobody = product.engine("carol").await;
    product.delete("carol").await.assert_ok("status:text engine_id:engine");
    let orphan_labels: Vec<String> =
        own_labels.iter().map(|label| label.replace(&engine.id, &nobody.id)).collect();
    assert_ne!(orphan_labels, own_labels);
    let created = create(&deployment, &format!("{}-nobody", deployment.network()), &orphan_labels).await;
    let running = create(&deployment, &format!("{}-runs", deployment.network()), &orphan_labels).await;
    deployment.docker_daemon().run(&["start", &running]).await;
    let name = name_of(&deployment, &other).await;
    let stopped_labels =
        labels(deployment.docker_daemon(), &deployment.container_of(&other).await.unwrap()).await;
    product.stop("bob").await.assert_ok("status:text");
    let leftover = create(&deployment, &name, &stopped_labels).await;

    let _orchestrator = deployment.kill_and_start(orchestrator).await;
    for orphan in [&created, &running, &leftover] {
        eventually("it is removed", async || {
            deployment.docker_daemon().state(orphan).await.is_none().then_some(())
        })
        .await;
    }
    assert_eq!(deployment.containers().await, [container], "the running engine was not touched");
    assert_eq!(product.status("bob").await, "stopped");
    product.start("bob").await.assert_ok("status:text url:url");
    product.engine("bob").await.health().await;
}

#[tokio::test]
async fn a_container_left_over_from_a_launch_does_not_hinder_the_next_one() {
    let Some((deployment, _orchestrator, product)) = fast_restart_deployment().await else { return };
    let engine = product.engine("ada").await;
    let (name, container) =
        (name_of(&deployment, &engine).await, deployment.container_of(&engine).await.unwrap());
    let own_labels = labels(deployment.docker_daemon(), &container).await;
    product.stop("ada").await.assert_ok("status:text");
    let leftover = create(&deployment, &name, &own_labels).await;
    product.start("ada").await.assert_ok("status:text url:url");
    assert_eq!(deployment.docker_daemon().state(&leftover).await, None);
    assert_eq!(deployment.containers().await.len(), 1);
    product.engine("ada").await.health().await;
}

#[tokio::test]
async fn regression_o01_a_strangers_container_is_never_touched_and_named_where_it_is_in_the_way() {
    let Some((deployment, orchestrator, product)) = fast_restart_deployment().await else { return };
    let engine = product.engine("ada").await;
    let (name, container) =
        (name_of(&deployment, &engine).await, deployment.container_of(&engine).await.unwrap());
    let own_labels = labels(deployment.docker_daemon(), &container).await;
    product.stop("ada").await.assert_ok("status:text");
    let foreign_labels = own_labels.iter().map(|label| match label.split_once('=') {
        Some(("roundhouse.deployment", _)) => "roundhouse.deployment=another".to_owned(),
        _ => label.clone(),
    });
    // A container without labels, and one of another deployment.
    for labels in [Vec::new(), foreign_labels.collect()] {
        let foreign = create(&deployment, &name, &labels).await;
        let answer = product.start("ada").await;
        let message = answer.assert_error(502, "BACKEND_ERROR");
        assert!(message.contains(&name), "{message}");
        assert_eq!(
            deployment.docker_daemon().state(&foreign).await.as_deref(),
            Some("created"),
            "{labels:?}"
        );
        deployment.docker_daemon().run(&["rm", &foreign]).await;
        product.start("ada").await.assert_ok("status:text url:url");
        product.stop("ada").await.assert_ok("status:text");
    }
    // Nor does a start of the orchestrator, a delete or a reconciliation touch it.
    let foreign = create(&deployment, &name, &[]).await;
    deployment.docker_daemon().run(&["start", &foreign]).await;
    let _orchestrator = deployment.kill_and_start(orchestrator).await;
    product.engine("bob").await;
    product.delete("ada").await;
    assert_eq!(deployment.docker_daemon().state(&foreign).await.as_deref(), Some("running"));
}

#[tokio::test]
async fn two_deployments_on_one_daemon_leave_each_others_engines_alone() {
    let Some((one, first, of_one)) = fast_restart_deployment().await else { return };
    let Some((two, second, of_two)) = fast_restart_deployment().await else { return };
    let (ada, bob) = join(of_one.engine("ada"), of_two.engine("ada")).await;
    let (of_ada, of_bob) = (one.container_of(&ada).await.unwrap(), two.container_of(&bob).await.unwrap());
    let deployment = async |container: &str| {
        let inspected = one.docker_daemon().inspect(container).await;
        inspected["Config"]["Labels"]["roundhouse.deployment"].as_str().unwrap().to_owned()
    };
    assert_ne!(deployment(&of_ada).await, deployment(&of_bob).await);
    // Each one finds its own containers at its start.
    let (first, second) = join(one.kill_and_start(first), two.kill_and_start(second)).await;
    assert_eq!(
        (one.containers().await, two.containers().await),
        (vec![of_ada.clone()], vec![of_bob.clone()])
    );
    // A deployment without engines does not remove the other's containers.
    of_one.delete("ada").await.assert_ok("status:text engine_id:engine");
    drop(second);
    let first = one.kill_and_start(first).await;
    assert_eq!(two.docker_daemon().state(&of_bob).await.as_deref(), Some("running"));
    bob.health().await;
    let _second = two.start().await;
    let again = of_two.engine("ada").await;
    assert_eq!((again.key, two.container_of(&bob).await), (bob.key, Some(of_bob)));
    for event in ["crash", "restart", "start"] {
        assert!(of_two.audit_rows(event).await.is_empty(), "{event}: nothing happened to the engine");
    }
    drop(first);
}

#[tokio::test]
async fn regression_o10_an_engine_that_is_slow_is_left_alone_and_a_dead_port_counts() {
    let Some(deployment) = Deployment::docker() else { return };
    let deployment = deployment
        .with_env("ORCH_RESTART_BACKOFF_BASE_S", "0.5")
        .with_env("ORCH_RESTART_BACKOFF_MAX_S", "2")
        .with_env("ORCH_HEALTH_CHECK_INTERVAL_S", "0.5")
        .with_env("ORCH_HEALTH_CHECK_TIMEOUT_S", "10");
    let (_orchestrator, product) = deployment.start_with_product().await;
    let engine = product.engine("ada").await;
    let container = deployment.container_of(&engine).await.unwrap();
    let last_health_at =
        async || product.get("ada").await.body["last_health_at"].as_str().unwrap().to_owned();
    // It answers late but within the timeout, more often than checks may fail.
    for _ in 0..4 {
        deployment.docker_daemon().run(&["pause", &container]).await;
        let before = last_health_at().await;
        tokio::time::sleep(Duration::from_secs(4)).await;
        deployment.docker_daemon().run(&["unpause", &container]).await;
        eventually("it has answered", async || (last_health_at().await > before).then_some(())).await;
    }
    assert_eq!(deployment.container_of(&engine).await.as_ref(), Some(&container));
    assert!(product.audit_rows("crash").await.is_empty() && product.audit_rows("restart").await.is_empty());

    // The proxy of its port is gone: the engine lives, but cannot be reached.
    let port = engine.url.rsplit(':').next().unwrap();
    let argument = format!("\0{port}\0");
    let is_proxy = |pid: &Pid| {
        let name = fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero())).unwrap_or_default();
        name.trim() == "docker-proxy"
    };
    let proxies: Vec<Pid> =
        processes::with_command_line_text(argument.as_ref()).into_iter().filter(is_proxy).collect();
    let [proxy] = proxies[..] else { panic!("one process forwards port {port}: {proxies:?}") };
    processes::kill(proxy);
    wait_until_back(&deployment, &product, &engine, &container).await;
    let crashes = product.audit_rows("crash").await;
    let [(_, crash)] = &crashes[..] else { panic!("{crashes:?}") };
    assert_eq!(crash["cause"], "health", "{crash}");
}
