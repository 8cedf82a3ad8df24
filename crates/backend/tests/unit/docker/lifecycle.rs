//! The lifecycle of a container from launch to removal, with the obstacles that may occur.

use bollard::models::{ContainerCreateBody, HostConfig};
use bollard::query_parameters::StartContainerOptions;

use super::super::label::container_name;
use super::super::launch::StartError;
use super::super::*;
use super::support::{Fixture, free_port, new_backend, next_exit, poll_until, run_inside, target_of};

const GRACE: Duration = Duration::from_secs(30);

#[tokio::test]
async fn an_engine_answers_on_its_port_ends_when_it_is_told_and_keeps_its_data() {
    let Some(fixture) = Fixture::new().await else { return };
    let mut exits = fixture.backend.exits();
    let launch = fixture.launch();
    let port = launch.placement.host_port().unwrap();
    let instance = fixture.launch_and_wait(launch).await;
    let alive = EngineListing {
        engine_id: fixture.engine_id,
        instance: instance.clone(),
        generation: 3,
        running: true,
    };
    assert_eq!(fixture.backend.list().await.unwrap(), [alive]);
    run_inside(port, "echo kept > /data/note").await;

    fixture.backend.stop(target_of(fixture.engine_id), GRACE).await.unwrap();
    let exit = next_exit(&mut exits).await;
    assert_eq!((exit.engine_id, exit.instance), (fixture.engine_id, instance));
    assert_eq!(exit.reason.as_deref(), Some("exit code 7"));
    assert_eq!(fixture.containers().await, []);

    let second_launch = fixture.launch();
    let port = second_launch.placement.host_port().unwrap();
    fixture.launch_and_wait(second_launch).await;
    assert_eq!(run_inside(port, "cat /data/note").await, "kept");
    fixture.backend.remove_with_data(target_of(fixture.engine_id)).await.unwrap();
    assert_eq!(fixture.containers().await, []);
    assert!(!fixture.options.data_root.join(fixture.engine_id.to_string()).exists());
    // Further calls do nothing and succeed.
    fixture.backend.stop(target_of(fixture.engine_id), GRACE).await.unwrap();
    fixture.backend.kill(target_of(fixture.engine_id)).await.unwrap();
    fixture.backend.remove_with_data(target_of(fixture.engine_id)).await.unwrap();
}

#[tokio::test]
async fn regression_o07_a_container_that_does_not_obey_is_gone_after_its_grace() {
    let Some(fixture) = Fixture::new().await else { return };
    let mut exits = fixture.backend.exits();
    fixture.launch_and_wait(fixture.stubborn()).await;
    fixture.backend.stop(target_of(fixture.engine_id), Duration::from_secs(1)).await.unwrap();
    assert_eq!(fixture.containers().await, []);
    assert_eq!(next_exit(&mut exits).await.reason.as_deref(), Some("exit code 137"));
}

#[tokio::test]
async fn a_killed_engine_leaves_its_log_until_its_next_launch() {
    let Some(fixture) = Fixture::new().await else { return };
    let engine_id = fixture.engine_id;
    assert!(fixture.backend.log_tail(engine_id, 10).await.unwrap().is_empty());
    let launch = fixture.stubborn();
    let port = launch.placement.host_port().unwrap();
    fixture.launch_and_wait(launch).await;
    fixture.backend.kill(target_of(engine_id)).await.unwrap();
    assert_eq!(fixture.containers().await, [(engine_id, ContainerState::Exited)]);
    let mut log = fixture.backend.log_tail(engine_id, 10).await.unwrap();
    log.sort_unstable();
    assert_eq!(log, ["oops", "ready"]);
    assert_eq!(fixture.backend.log_tail(engine_id, 1).await.unwrap().len(), 1);
    // The container is not started again: the next launch creates another one, on the same port.
    let instance = fixture
        .launch_and_wait(LaunchSpec { placement: Placement::HostPort(port), ..fixture.launch() })
        .await;
    let listed = fixture.backend.list().await.unwrap();
    assert_eq!(listed, [EngineListing { engine_id, instance, generation: 3, running: true }]);
    fixture.backend.remove_instance(target_of(engine_id)).await.unwrap();
    assert_eq!(fixture.containers().await, []);
}

#[tokio::test]
async fn an_engine_that_was_halted_can_be_stopped_and_killed() {
    let Some(fixture) = Fixture::new().await else { return };
    let mut exits = fixture.backend.exits();
    let name = container_name(fixture.engine_id);
    fixture.launch_and_wait(fixture.launch()).await;
    fixture.docker.pause_container(&name).await.unwrap();
    assert!(fixture.backend.list().await.unwrap()[0].running);
    fixture.backend.stop(target_of(fixture.engine_id), GRACE).await.unwrap();
    assert_eq!(next_exit(&mut exits).await.reason.as_deref(), Some("exit code 7"));

    fixture.launch_and_wait(fixture.launch()).await;
    fixture.docker.pause_container(&name).await.unwrap();
    fixture.backend.kill(target_of(fixture.engine_id)).await.unwrap();
    assert_eq!(fixture.containers().await, [(fixture.engine_id, ContainerState::Exited)]);
    assert_eq!(next_exit(&mut exits).await.reason.as_deref(), Some("exit code 137"));
}

/// An orchestrator that is killed between creating and starting a container leaves it behind.
#[tokio::test]
async fn regression_o01_a_container_that_never_began_is_listed_replaced_and_removed() {
    let Some(fixture) = Fixture::new().await else { return };
    let engine_id = fixture.engine_id;
    let create_leftover = async || {
        let launch = fixture.launch();
        fixture.backend.inner.prepare_folder(&launch).await.unwrap();
        let network = fixture.backend.inner.ensure_network().await.unwrap();
        fixture.create(&container_name(engine_id), spec::container(&fixture.options, &launch, &network)).await
    };
    let id = create_leftover().await;
    let listed = fixture.backend.list().await.unwrap();
    assert_eq!(
        listed,
        [EngineListing { engine_id, instance: Instance::new(id), generation: 3, running: false }]
    );
    fixture.launch_and_wait(fixture.launch()).await;
    assert_eq!(fixture.containers().await, [(engine_id, ContainerState::Running)]);
    fixture.backend.remove_instance(target_of(engine_id)).await.unwrap();

    create_leftover().await;
    fixture.backend.kill(target_of(engine_id)).await.unwrap();
    assert_eq!(fixture.containers().await, []);
    create_leftover().await;
    fixture.backend.remove_with_data(target_of(engine_id)).await.unwrap();
    assert_eq!(fixture.containers().await, []);
}

#[tokio::test]
async fn regression_o01_a_foreign_container_with_our_name_is_never_touched() {
    let Some(fixture) = Fixture::new().await else { return };
    let name = container_name(fixture.engine_id);
    fixture.backend.check_network().await.unwrap();
    let options = fixture.with(|options| options.deployment_id = "another".into());
    let mut foreign = spec::container(&options, &fixture.launch(), &fixture.options.network);
    let network_mode = Some(fixture.options.network.clone());
    foreign.host_config = Some(HostConfig { network_mode, ..HostConfig::default() });
    let unlabelled = ContainerCreateBody { labels: None, ..foreign.clone() };
    for body in [foreign, unlabelled] {
        let id = fixture.create(&name, body).await;
        fixture.docker.start_container(&id, None::<StartContainerOptions>).await.unwrap();
        let launched = fixture.backend.launch(fixture.launch()).await;
        fixture.backend.stop(target_of(fixture.engine_id), GRACE).await.unwrap();
        fixture.backend.kill(target_of(fixture.engine_id)).await.unwrap();
        fixture.backend.remove_with_data(target_of(fixture.engine_id)).await.unwrap();
        let listed = fixture.backend.list().await.unwrap();
        let state = fixture.backend.inner.daemon.inspect(&id).await.unwrap().and_then(|found| found.state);
        fixture.remove(&id).await;
        let error = launched.unwrap_err();
        assert!(matches!(&error, BackendError::Failed(reason) if reason.contains(&name)), "{error}");
        assert_eq!(listed, []);
        assert_eq!(state.and_then(|state| state.running), Some(true));
    }
}

#[tokio::test]
async fn two_deployments_on_one_daemon_do_not_see_each_other() {
    let (Some(one), Some(other)) = (Fixture::new().await, Fixture::new().await) else { return };
    let mut exits = other.backend.exits();
    one.launch_and_wait(one.launch()).await;
    let instance = other.launch_and_wait(other.launch()).await;
    assert_eq!(one.backend.list().await.unwrap().len(), 1);
    // Not even when called with the id of the other's engine.
    for engine_id in [one.engine_id, other.engine_id] {
        one.backend.kill(target_of(engine_id)).await.unwrap();
        one.backend.remove_instance(target_of(engine_id)).await.unwrap();
        one.backend.remove_with_data(target_of(engine_id)).await.unwrap();
    }
    assert_eq!(one.containers().await, []);
    let alive = EngineListing {
        engine_id: other.engine_id,
        instance: instance.clone(),
        generation: 3,
        running: true,
    };
    assert_eq!(other.backend.list().await.unwrap(), [alive]);
    // The first exit that it reports is that of its own engine.
    other.backend.kill(target_of(other.engine_id)).await.unwrap();
    assert_eq!(next_exit(&mut exits).await.instance, instance);
}

#[tokio::test]
async fn regression_o13_a_port_that_something_else_has_is_said_and_nothing_is_left() {
    let Some(fixture) = Fixture::new().await else { return };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    assert!(!fixture.backend.port_is_free(port));
    let error = fixture
        .backend
        .launch(LaunchSpec { placement: Placement::HostPort(port), ..fixture.launch() })
        .await
        .unwrap_err();
    assert_eq!(error, BackendError::PortTaken(port));
    assert_eq!(fixture.containers().await, []);
    drop(listener);
    let first = fixture.launch();
    let port = first.placement.host_port().unwrap();
    fixture.launch_and_wait(first).await;
    // The port of another engine.
    let second = LaunchSpec { placement: Placement::HostPort(port), ..fixture.launch_of(EngineId::new()) };
    assert_eq!(fixture.backend.launch(second).await.unwrap_err(), BackendError::PortTaken(port));
    assert_eq!(fixture.containers().await, [(fixture.engine_id, ContainerState::Running)]);
}

#[tokio::test]
async fn an_image_that_is_not_there_is_said() {
    let Some(fixture) = Fixture::new().await else { return };
    fixture.backend.check_image(&fixture.image).await.unwrap();
    let image: EngineImage = "roundhouse-test-nothing:9.9.9".parse().unwrap();
    let error = BackendError::NoImage(image.clone());
    assert_eq!(fixture.backend.check_image(&image).await, Err(error.clone()));
    assert_eq!(fixture.backend.launch(LaunchSpec { image, ..fixture.launch() }).await, Err(error));
    assert_eq!(fixture.containers().await, []);
}

#[tokio::test]
async fn a_later_orchestrator_finds_and_drives_what_an_earlier_one_launched() {
    let Some(fixture) = Fixture::new().await else { return };
    let instance = fixture.launch_and_wait(fixture.launch()).await;
    let later = new_backend(&fixture.options);
    let mut exits = later.exits();
    let alive = EngineListing {
        engine_id: fixture.engine_id,
        instance: instance.clone(),
        generation: 3,
        running: true,
    };
    assert_eq!(later.list().await.unwrap(), [alive]);
    later.stop(target_of(fixture.engine_id), GRACE).await.unwrap();
    assert_eq!(next_exit(&mut exits).await.instance, instance);
}

/// A caller may give up at any point of a launch; the next call waits for that launch or cleans up after it.
#[tokio::test]
async fn a_launch_that_nobody_waits_for_any_more_is_out_of_the_way_of_the_next() {
    let Some(fixture) = Fixture::new().await else { return };
    for timeout_ms in [0, 1, 5, 20, 80] {
        let launch = fixture.backend.launch(fixture.launch());
        let _ = tokio::time::timeout(Duration::from_millis(timeout_ms), launch).await;
    }
    let port = free_port();
    let instance = fixture
        .launch_and_wait(LaunchSpec { placement: Placement::HostPort(port), ..fixture.launch() })
        .await;
    let engine_id = fixture.engine_id;
    assert_eq!(
        fixture.backend.list().await.unwrap(),
        [EngineListing { engine_id, instance, generation: 3, running: true }]
    );
    let is_gone = async || fixture.containers().await.is_empty().then_some(());
    fixture.backend.remove_with_data(target_of(engine_id)).await.unwrap();
    poll_until("nothing is left", is_gone).await;
}

/// A replaced orchestrator, which was frozen or whose daemon was slow, acts on an engine that its successor
/// launched.
#[tokio::test]
async fn regression_o24_what_a_replaced_orchestrator_does_late_touches_no_later_container() {
    let Some(fixture) = Fixture::new().await else { return };
    let engine_id = fixture.engine_id;
    fixture.launch_and_wait(fixture.launch()).await;
    let successor = new_backend(&fixture.options);
    let later = LaunchSpec { generation: 5, ..fixture.launch() };
    let instance = successor.launch(later).await.unwrap();
    let superseded = Err(BackendError::Superseded { generation: 5 });
    let replaced = &fixture.backend;
    assert_eq!(replaced.stop(target_of(engine_id), GRACE).await, superseded);
    assert_eq!(replaced.kill(target_of(engine_id)).await, superseded);
    assert_eq!(replaced.remove_instance(target_of(engine_id)).await, superseded);
    assert_eq!(replaced.remove_with_data(target_of(engine_id)).await, superseded);
    assert_eq!(replaced.launch(fixture.launch()).await.map(drop), superseded);
    // It had removed earlier containers before it was frozen.
    let Err(StartError::Fenced(error)) =
        replaced.inner.create(&fixture.launch(), &fixture.options.network).await
    else {
        panic!("a container was created beside the later one")
    };
    assert_eq!(Err(error), superseded);
    let alive = EngineListing { engine_id, instance, generation: 5, running: true };
    assert_eq!(successor.list().await.unwrap(), [alive]);
    assert!(fixture.options.data_root.join(engine_id.to_string()).exists());
}

#[tokio::test]
async fn the_last_words_of_a_container_outlive_it() {
    let Some(fixture) = Fixture::new().await else { return };
    let (engine_id, backend) = (fixture.engine_id, &fixture.backend);
    let sorted_log = async || {
        let mut log = backend.log_tail(engine_id, 10).await.unwrap();
        log.sort_unstable();
        log
    };
    fixture.launch_and_wait(fixture.launch()).await;
    backend.stop(target_of(engine_id), GRACE).await.unwrap();
    assert_eq!(fixture.containers().await, []);
    assert_eq!(sorted_log().await, ["oops", "ready"]);
    assert_eq!(backend.log_tail(engine_id, 1).await.unwrap().len(), 1);
    // A container that was killed, and is removed afterwards.
    fixture.launch_and_wait(fixture.launch()).await;
    backend.kill(target_of(engine_id)).await.unwrap();
    backend.remove_instance(target_of(engine_id)).await.unwrap();
    assert_eq!(sorted_log().await, ["oops", "ready"]);
}
