//! An engine on a real node. `ROUNDHOUSE_TEST_KUBERNETES_IMAGE` names an image of this version's engine that the nodes
//! have.

use std::collections::BTreeMap;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::super::*;
use super::support::{Fixture, new_backend, next_exit, node_image, poll_until};

/// How long a stopping engine may take.
const GRACE: Duration = Duration::from_secs(20);

/// Prepares a deployment whose engines real nodes run.
async fn on_nodes() -> Option<(Fixture, EngineImage)> {
    let image = node_image()?;
    let mut test = Fixture::new().await?;
    test.options.copy_image = image.clone();
    test.options.settings.node_selector = BTreeMap::new();
    test.options.settings.start_timeout = Duration::from_secs(30);
    test.leave_pods_to_nodes();
    test.backend = new_backend(&test.options);
    Some((test, image))
}

fn launch(test: &Fixture, image: &EngineImage, generation: i64) -> LaunchSpec {
    let limits = ResourceLimits { memory_mb: Some(256), cpus: Some(1.0), pids: None };
    LaunchSpec { generation, is_first: generation == 3, image: image.clone(), limits, ..test.launch() }
}

/// Waits until the engine answers a health check.
async fn wait_for_health(test: &Fixture) {
    poll_until("an engine answers", async || {
        let address = test.backend.address(test.engine_id, Placement::OwnAddress)?;
        let mut stream = TcpStream::connect(address).await.ok()?;
        stream.write_all(b"GET /health HTTP/1.0\r\n\r\n").await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        answer.contains("200 OK").then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_engine_keeps_its_brain_over_stops_copies_and_kills() {
    let Some((test, image)) = on_nodes().await else { return };
    let (backend, engine_id) = (&test.backend, test.engine_id);
    let mut exits = backend.exits();
    let first = backend.launch(launch(&test, &image, 3)).await.unwrap();
    wait_for_health(&test).await;
    let log = backend.log_tail(engine_id, 100).await.unwrap().join("\n");
    assert!(log.contains("The engine is ready"), "{log}");
    assert!(log.contains("landlock, seccomp"), "programs are confined as elsewhere: {log}");
    // A running engine's brain is not copied.
    assert!(matches!(backend.copy_brain(test.target(3)).await, Err(BackendError::Failed(_))));

    backend.stop(test.target(3), GRACE).await.unwrap();
    assert_eq!(next_exit(&mut exits).await.instance, first);
    // All that it wrote until its end.
    let log = backend.log_tail(engine_id, 2).await.unwrap().join("\n");
    assert!(log.contains("The engine has stopped"), "{log}");
    let copy = backend.copy_brain(test.target(3)).await.unwrap();
    assert!(copy.format.is_some_and(|format| format > 0), "{copy:?}");
    backend.restore_brain(test.target(3)).await.unwrap();

    let second = backend.launch(launch(&test, &image, 4)).await.unwrap();
    wait_for_health(&test).await;
    backend.kill(test.target(4)).await.unwrap();
    assert!(!backend.is_running(&second).await.unwrap());
    assert!(!backend.log_tail(engine_id, 10).await.unwrap().is_empty());
    assert_eq!(next_exit(&mut exits).await.instance, second);
    // Its brain has the log of one that did not shut down; it is still that brain.
    assert_eq!(backend.copy_brain(test.target(4)).await.unwrap(), copy);
    backend.remove_with_data(test.target(4)).await.unwrap();
    poll_until("the claim is gone", async || test.claims().await.is_empty().then_some(())).await;
}

#[tokio::test]
async fn an_interrupted_restore_is_repeated_before_the_next_launch() {
    let Some((test, image)) = on_nodes().await else { return };
    let backend = &test.backend;
    backend.launch(launch(&test, &image, 3)).await.unwrap();
    backend.stop(test.target(3), GRACE).await.unwrap();
    backend.copy_brain(test.target(3)).await.unwrap();
    backend.inner.mark_restoring(test.target(3), true).await.unwrap();
    backend.launch(launch(&test, &image, 4)).await.unwrap();
    assert!(!backend.inner.claim_for(test.target(4)).await.unwrap().is_restoring);
}

#[tokio::test]
async fn an_image_that_no_registry_has_is_told_by_a_real_node() {
    let Some((test, _)) = on_nodes().await else { return };
    let missing: EngineImage = "localhost/no-such-engine:9.9.9".parse().unwrap();
    let launched = test.backend.launch(LaunchSpec { image: missing.clone(), ..test.launch() }).await;
    // Without a registry there, the image may exist: then nothing is said about it.
    match launched.unwrap_err() {
        BackendError::NoImage(image) => assert_eq!(image, missing),
        BackendError::Unreachable(why) => assert!(why.contains("no-such-engine:9.9.9"), "{why}"),
        other => panic!("{other}"),
    }
    assert!(test.pods().await.is_empty());
}

#[tokio::test]
async fn a_real_scheduler_says_why_there_is_no_room() {
    let Some((mut test, image)) = on_nodes().await else { return };
    test.options.settings.start_timeout = Duration::from_secs(3);
    test.options.settings.requests = Requests { memory_mb: 9_000_000, cpu_millis: 10 };
    let limits = ResourceLimits { memory_mb: Some(9_000_000), ..ResourceLimits::default() };
    let launch = LaunchSpec { limits, ..launch(&test, &image, 3) };
    let error = new_backend(&test.options).launch(launch).await.unwrap_err();
    assert!(
        matches!(&error, BackendError::NoCapacity(why) if why.contains("Insufficient memory")),
        "{error}"
    );
    assert!(test.pods().await.is_empty());
}
