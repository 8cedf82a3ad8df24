//! Story 31 (lessons o01, o05, o10): whatever a person does at the daemon behind the orchestrator's back is noticed, and what
//! is not the orchestrator's is left alone.

use std::fs;
use std::time::{Duration, Instant};

use futures::future::join;
use rustix::process::Pid;
use serde_json::{Value, json};

use crate::support::{
    Deployment, Docker, Engine, Orchestrator, Product, assert_within, eventually, image, processes,
};

/// A deployment in which a failed engine is back soon.
async fn fast_restart_deployment() -> Option<(Deployment, Orchestrator, Product)> {
    let place = Deployment::docker()?
        .with_env("ORCH_RESTART_BACKOFF_BASE_S", "0.5")
        .with_env("ORCH_RESTART_BACKOFF_MAX_S", "2")
        .with_env("ORCH_HEALTH_CHECK_INTERVAL_S", "0.5")
        .with_env("ORCH_HEALTH_CHECK_TIMEOUT_S", "1");
    let (orchestrator, product) = place.start_with_product().await;
    Some((place, orchestrator, product))
}

/// Waits until an engine runs in another container than `before`; that one is gone.
async fn wait_until_back(place: &Deployment, product: &Product, engine: &Engine, before: &str) -> String {
    let now = eventually("it runs in another container", async || {
        let status = product.status("ada").await;
        place.container_of(engine).await.filter(|now| now != before && status == "running")
    })
    .await;
    assert_eq!(place.docker_daemon().state(before).await, None, "the old container is gone");
    now
}

/// The labels of a container.
async fn labels(docker: &Docker, container: &str) -> Vec<String> {
    let labels = docker.inspect(container).await["Config"]["Labels"].take();
    let ours = labels.as_object().unwrap().iter().filter(|(name, _)| name.starts_with("roundhouse."));
    let ours: Vec<String> = ours
        .filter(|(name, _)| *name != "roundhouse.test.binary")
        .map(|(name, value)| format!("{name}={}", value.as_str().unwrap()))
        .collect();
    assert!(ours.len() >= 4, "deployment, product, engine, generation: {ours:?}");
    ours
}

/// A container that never runs, with these labels, in the deployment's network.
async fn create(place: &Deployment, name: &str, labels: &[String]) -> String {
    let mut arguments = vec!["create", "--name", name, "--network", place.network()];
    arguments.extend(labels.iter().flat_map(|label| ["--label", label]));
    let image = image::reference(env!("CARGO_PKG_VERSION"));
    arguments.extend(["--entrypoint", "sleep", &image, "1000"]);
    place.docker_daemon().run(&arguments).await
}

/// The name of an engine's container.
async fn name_of(place: &Deployment, engine: &Engine) -> String {
    let container = place.container_of(engine).await.unwrap();
    let told = place.docker_daemon().inspect(&container).await;
    told["Name"].as_str().unwrap().trim_start_matches('/').to_owned()
}

#[tokio::test]
async fn lesson_o05_what_ends_a_container_is_noticed_at_once_and_the_engine_is_back() {
    let Some((place, _orchestrator, product)) = fast_restart_deployment().await else { return };
    let engine = product.engine("ada").await;
    engine.run_turn("task", "Hello!").await;
    let messages = engine.messages("task").await;
    let actions: [&[&str]; 3] = [&["kill"], &["rm", "--force"], &["stop", "--time", "5"]];
    for (number, deed) in actions.into_iter().enumerate() {
        let container = place.container_of(&engine).await.unwrap();
        let start = Instant::now();
        place.docker_daemon().run(&[deed, &[container.as_str()]].concat()).await;
        eventually("it is noticed", async || {
            (product.audit_rows("crash").await.len() > number).then_some(())
        })
        .await;
        assert_within("it is noticed", start.elapsed(), 0.0..15.0);
        wait_until_back(&place, &product, &engine, &container).await;
        let again = product.engine("ada").await;
        assert_eq!((&again.id, &again.key), (&engine.id, &engine.key));
        assert_eq!(again.messages("task").await, messages, "after {deed:?}");
    }
    let causes: Vec<Value> =
        product.audit_rows("crash").await.into_iter().map(|(_, detail)| detail["cause"].clone()).collect();
    assert_eq!(causes, vec![json!("exit"); 3]);
    assert_eq!(product.audit_rows("restart").await.len(), 3);
}

#[tokio::test]
async fn a_container_that_was_halted_is_ended_and_the_engine_is_back() {
    let Some((place, _orchestrator, product)) = fast_restart_deployment().await else { return };
    let engine = product.engine("ada").await;
    let container = place.container_of(&engine).await.unwrap();
    place.docker_daemon().run(&["pause", &container]).await;
    wait_until_back(&place, &product, &engine, &container).await;
    let crash = product.audit_rows("crash").await;
    assert_eq!(crash[0].1["cause"], "health", "{crash:?}");
}

#[tokio::test]
async fn a_halted_container_can_be_deleted() {
    let Some(place) = Deployment::docker() else { return };
    let (_orchestrator, product) = place.start_with_product().await;
    let engine = product.engine("ada").await;
    let container = place.container_of(&engine).await.unwrap();
    place.docker_daemon().run(&["pause", &container]).await;
    product.delete("ada").await.assert_ok("status:text engine_id:engine");
    assert_eq!(place.docker_daemon().state(&container).await, None);
    assert!(!place.fleet.engine_folder(&engine.id).exists());
}

#[tokio::test]
async fn a_halted_container_can_be_stopped() {
    let Some(place) = Deployment::docker() else { return };
    let (_orchestrator, product) = place.start_with_product().await;
    let engine = product.engine("ada").await;
    let container = place.container_of(&engine).await.unwrap();
    place.docker_daemon().run(&["pause", &container]).await;
    product.stop("ada").await.assert_ok("status:text");
    assert_eq!(place.docker_daemon().state(&container).await, None);
    product.start("ada").await.assert_ok("status:text url:url");
    product.engine("ada").await.health().await;
}

#[tokio::test]
async fn lesson_o01_what_bears_our_label_and_belongs_to_no_engine_is_removed() {
    let Some((place, orchestrator, product)) = fast_restart_deployment().await else { return };
    let engine = product.engine("ada").await;
    let other = product.engine("bob").await;
    let container = place.container_of(&engine).await.unwrap();
    let ours = labels(place.docker_daemon(), &container).await;
    // One of an engine that nobody knows, which never ran; one that runs; one of an engine that is stopped.
    let nobody = product.engine("carol").await;
    product.delete("carol").await.assert_ok("status:text engine_id:engine");
    let of_nobody: Vec<String> = ours.iter().map(|label| label.replace(&engine.id, &nobody.id)).collect();
    assert_ne!(of_nobody, ours);
    let created = create(&place, &format!("{}-nobody", place.network()), &of_nobody).await;
    let running = create(&place, &format!("{}-runs", place.network()), &of_nobody).await;
    place.docker_daemon().run(&["start", &running]).await;
    let name = name_of(&place, &other).await;
    let of_other = labels(place.docker_daemon(), &place.container_of(&other).await.unwrap()).await;
    product.stop("bob").await.assert_ok("status:text");
    let left_over = create(&place, &name, &of_other).await;

    let _orchestrator = place.kill_and_start(orchestrator).await;
    for orphan in [&created, &running, &left_over] {
        eventually("it is removed", async || {
            place.docker_daemon().state(orphan).await.is_none().then_some(())
        })
        .await;
    }
    assert_eq!(place.containers().await, [container], "the engine that runs has not been touched");
    assert_eq!(product.status("bob").await, "stopped");
    product.start("bob").await.assert_ok("status:text url:url");
    product.engine("bob").await.health().await;
}

#[tokio::test]
async fn a_container_left_over_from_a_launch_does_not_hinder_the_next_one() {
    let Some((place, _orchestrator, product)) = fast_restart_deployment().await else { return };
    let engine = product.engine("ada").await;
    let (name, container) = (name_of(&place, &engine).await, place.container_of(&engine).await.unwrap());
    let ours = labels(place.docker_daemon(), &container).await;
    product.stop("ada").await.assert_ok("status:text");
    let left_over = create(&place, &name, &ours).await;
    product.start("ada").await.assert_ok("status:text url:url");
    assert_eq!(place.docker_daemon().state(&left_over).await, None);
    assert_eq!(place.containers().await.len(), 1);
    product.engine("ada").await.health().await;
}

#[tokio::test]
async fn lesson_o01_a_strangers_container_is_never_touched_and_named_where_it_is_in_the_way() {
    let Some((place, orchestrator, product)) = fast_restart_deployment().await else { return };
    let engine = product.engine("ada").await;
    let (name, container) = (name_of(&place, &engine).await, place.container_of(&engine).await.unwrap());
    let ours = labels(place.docker_daemon(), &container).await;
    product.stop("ada").await.assert_ok("status:text");
    let of_another = ours.iter().map(|label| match label.split_once('=') {
        Some(("roundhouse.deployment", _)) => "roundhouse.deployment=another".to_owned(),
        _ => label.clone(),
    });
    // One without a label, and one of another deployment.
    for labels in [Vec::new(), of_another.collect()] {
        let stranger = create(&place, &name, &labels).await;
        let answer = product.start("ada").await;
        let message = answer.assert_error(502, "BACKEND_ERROR");
        assert!(message.contains(&name), "{message}");
        assert_eq!(place.docker_daemon().state(&stranger).await.as_deref(), Some("created"), "{labels:?}");
        place.docker_daemon().run(&["rm", &stranger]).await;
        product.start("ada").await.assert_ok("status:text url:url");
        product.stop("ada").await.assert_ok("status:text");
    }
    // Nor does a start, a delete or a look around touch it.
    let stranger = create(&place, &name, &[]).await;
    place.docker_daemon().run(&["start", &stranger]).await;
    let _orchestrator = place.kill_and_start(orchestrator).await;
    product.engine("bob").await;
    product.delete("ada").await;
    assert_eq!(place.docker_daemon().state(&stranger).await.as_deref(), Some("running"));
}

#[tokio::test]
async fn two_deployments_on_one_daemon_leave_each_others_engines_alone() {
    let Some((one, first, of_one)) = fast_restart_deployment().await else { return };
    let Some((two, second, of_two)) = fast_restart_deployment().await else { return };
    let (ada, bob) = join(of_one.engine("ada"), of_two.engine("ada")).await;
    let (of_ada, of_bob) = (one.container_of(&ada).await.unwrap(), two.container_of(&bob).await.unwrap());
    let deployment = async |container: &str| {
        let told = one.docker_daemon().inspect(container).await;
        told["Config"]["Labels"]["roundhouse.deployment"].as_str().unwrap().to_owned()
    };
    assert_ne!(deployment(&of_ada).await, deployment(&of_bob).await);
    // Each looks around at its start, and finds what is its own.
    let (first, second) = join(one.kill_and_start(first), two.kill_and_start(second)).await;
    assert_eq!(
        (one.containers().await, two.containers().await),
        (vec![of_ada.clone()], vec![of_bob.clone()])
    );
    // One that has nothing left does not begin to tidy up the other's.
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
async fn lesson_o10_an_engine_that_is_slow_is_left_alone_and_a_dead_port_counts() {
    let Some(place) = Deployment::docker() else { return };
    let place = place
        .with_env("ORCH_RESTART_BACKOFF_BASE_S", "0.5")
        .with_env("ORCH_RESTART_BACKOFF_MAX_S", "2")
        .with_env("ORCH_HEALTH_CHECK_INTERVAL_S", "0.5")
        .with_env("ORCH_HEALTH_CHECK_TIMEOUT_S", "10");
    let (_orchestrator, product) = place.start_with_product().await;
    let engine = product.engine("ada").await;
    let container = place.container_of(&engine).await.unwrap();
    let seen_well = async || product.get("ada").await.body["last_health_at"].as_str().unwrap().to_owned();
    // It takes most of the time that it has to answer, more often than checks may fail.
    for _ in 0..4 {
        place.docker_daemon().run(&["pause", &container]).await;
        let before = seen_well().await;
        tokio::time::sleep(Duration::from_secs(4)).await;
        place.docker_daemon().run(&["unpause", &container]).await;
        eventually("it has answered", async || (seen_well().await > before).then_some(())).await;
    }
    assert_eq!(place.container_of(&engine).await.as_ref(), Some(&container));
    assert!(product.audit_rows("crash").await.is_empty() && product.audit_rows("restart").await.is_empty());

    // What carries its port is gone, and the engine lives: nobody reaches it.
    let port = engine.url.rsplit(':').next().unwrap();
    let argument = format!("\0{port}\0");
    let is_proxy = |pid: &Pid| {
        let name = fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero())).unwrap_or_default();
        name.trim() == "docker-proxy"
    };
    let proxies: Vec<Pid> =
        processes::with_command_line_text(argument.as_ref()).into_iter().filter(is_proxy).collect();
    let [proxy] = proxies[..] else { panic!("one process carries port {port}: {proxies:?}") };
    processes::kill(proxy);
    wait_until_back(&place, &product, &engine, &container).await;
    let crashes = product.audit_rows("crash").await;
    let [(_, crash)] = &crashes[..] else { panic!("{crashes:?}") };
    assert_eq!(crash["cause"], "health", "{crash}");
}
