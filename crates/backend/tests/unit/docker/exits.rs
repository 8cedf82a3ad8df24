//! Exits that the orchestrator did not cause are noticed, whatever their cause.

use bollard::query_parameters::{KillContainerOptionsBuilder, RestartContainerOptions, StopContainerOptions};

use super::super::label::container_name;
use super::super::*;
use super::support::{Fixture, new_backend, next_exit, poll_until, send_command, target_of};
use super::unresponsive::{Mode, Proxy};

#[tokio::test]
async fn regression_o05_what_ends_behind_our_back_is_noticed() {
    let Some(fixture) = Fixture::new().await else { return };
    let mut exits = fixture.backend.exits();
    let name = container_name(fixture.engine_id);
    for (cause, code) in [("kill", 137), ("stop", 7), ("remove", 137), ("end", 128 + 10)] {
        let launch = fixture.launch();
        let port = launch.placement.host_port().unwrap();
        let instance = fixture.launch_and_wait(launch).await;
        match cause {
            "kill" => {
                let kill = KillContainerOptionsBuilder::new().signal("SIGKILL").build();
                fixture.docker.kill_container(&name, Some(kill)).await.unwrap();
            }
            "stop" => fixture.docker.stop_container(&name, None::<StopContainerOptions>).await.unwrap(),
            "remove" => fixture.remove(&name).await,
            // By itself: the server is the parent of the shell that runs this command.
            _ => {
                let end = "exec python3 -c 'import os, signal; os.kill(os.getppid(), signal.SIGUSR1)'";
                send_command(port, end).await;
            }
        }
        let exit = next_exit(&mut exits).await;
        assert_eq!((exit.engine_id, &exit.instance), (fixture.engine_id, &instance), "{cause}");
        assert_eq!(exit.reason, Some(format!("exit code {code}")), "{cause}");
        // The daemon sends the event a moment before its listing shows the exit.
        let has_exited = async || {
            let listed = fixture.backend.list().await.unwrap();
            listed.iter().all(|listed| !listed.running).then_some(())
        };
        poll_until(cause, has_exited).await;
    }
}

#[tokio::test]
async fn a_container_that_was_begun_again_is_known_to_run_and_its_next_end_is_told() {
    let Some(fixture) = Fixture::new().await else { return };
    let mut exits = fixture.backend.exits();
    let instance = fixture.launch_and_wait(fixture.launch()).await;
    fixture.docker.restart_container(instance.as_str(), None::<RestartContainerOptions>).await.unwrap();
    assert_eq!(next_exit(&mut exits).await.instance, instance);
    poll_until("it runs again", async || fixture.backend.is_running(&instance).await.unwrap().then_some(()))
        .await;
    fixture.backend.kill(target_of(fixture.engine_id)).await.unwrap();
    assert_eq!(next_exit(&mut exits).await.instance, instance);
    poll_until("it has ended", async || {
        (!fixture.backend.is_running(&instance).await.unwrap()).then_some(())
    })
    .await;
    fixture.backend.remove_instance(target_of(fixture.engine_id)).await.unwrap();
    assert!(!fixture.backend.is_running(&instance).await.unwrap());
}

/// The event stream breaks, and engines exit meanwhile or afterwards: each exit is reported once.
#[tokio::test]
async fn regression_o05_no_end_is_missed_while_the_daemon_is_away() {
    let Some(fixture) = Fixture::new().await else { return };
    let proxy = Proxy::new(fixture.folder());
    let backend = new_backend(&fixture.with(|options| options.socket.clone_from(&proxy.socket)));
    let mut exits = backend.exits();
    let ids: Vec<_> = (0..4).map(|_| EngineId::new()).collect();
    let mut instances = Vec::new();
    for engine_id in &ids {
        instances.push(backend.launch(fixture.launch_of(*engine_id)).await.unwrap());
    }
    // The daemon refuses connections or hangs, and comes back each time.
    for (index, mode) in [Mode::Refuse, Mode::Hang, Mode::Refuse].into_iter().enumerate() {
        proxy.set(mode);
        fixture.remove(instances[index].as_str()).await;
        let unreachable = tokio::time::timeout(Duration::from_millis(300), backend.list()).await;
        assert!(!matches!(unreachable, Ok(Ok(_))), "the daemon is away");
        proxy.set(Mode::Forward);
        let exit = next_exit(&mut exits).await;
        assert_eq!((exit.engine_id, &exit.instance), (ids[index], &instances[index]));
    }
    // The stream works again: the next exit is reported, and no earlier one a second time.
    backend.kill(target_of(ids[3])).await.unwrap();
    let exit = next_exit(&mut exits).await;
    assert_eq!((exit.instance, exit.reason.as_deref()), (instances[3].clone(), Some("exit code 137")));
    backend.remove_instance(target_of(ids[3])).await.unwrap();
}

#[tokio::test]
async fn an_engine_that_ends_at_once_is_told_of() {
    let Some(fixture) = Fixture::new().await else { return };
    let mut exits = fixture.backend.exits();
    let mut launch = fixture.launch();
    // Python does not find its standard library, so the engine exits before it is ready.
    launch.env.push(("PYTHONHOME".into(), secrecy::SecretString::from("/nowhere")));
    let instance = fixture.backend.launch(launch).await.unwrap();
    let exit = next_exit(&mut exits).await;
    assert_eq!((exit.instance, exit.reason.as_deref()), (instance, Some("exit code 1")));
    assert!(!fixture.backend.log_tail(fixture.engine_id, 20).await.unwrap().is_empty());
}
