//! That no second engine ever uses a brain, and that an orchestrator that was replaced touches nothing.

use super::super::*;
use super::support::{Fixture, Node, new_backend};

#[tokio::test]
async fn regression_k02_what_a_later_generation_launched_is_left_alone() {
    let Some(test) = Fixture::new().await else { return };
    let later = test.backend.launch(LaunchSpec { generation: 7, ..test.launch() }).await.unwrap();
    let replaced = new_backend(&test.options);
    let superseded = Err(BackendError::Superseded { generation: 7 });
    let target = test.target(5);
    assert_eq!(replaced.stop(target, Duration::ZERO).await, superseded);
    assert_eq!(replaced.kill(target).await, superseded);
    assert_eq!(replaced.remove_instance(target).await, superseded);
    assert_eq!(replaced.remove_with_data(target).await, superseded);
    assert_eq!(replaced.launch(test.relaunch(5)).await.map(drop), superseded);
    assert!(test.backend.is_running(&later).await.unwrap());
    // Also while it sleeps: its claim says for which generation it was launched.
    test.backend.stop(test.target(7), Duration::ZERO).await.unwrap();
    assert_eq!(replaced.launch(test.relaunch(5)).await.map(drop), superseded);
    assert_eq!(replaced.remove_with_data(target).await, superseded);
    assert_eq!(replaced.copy_brain(target).await.map(drop), superseded);
    assert!(test.pods().await.is_empty());
    assert_eq!(test.claims().await.len(), 1);
}

#[tokio::test]
async fn regression_k02_of_two_launches_at_once_the_later_generation_survives() {
    let Some(test) = Fixture::new().await else { return };
    test.backend.launch(test.launch()).await.unwrap();
    test.backend.stop(test.target(3), Duration::ZERO).await.unwrap();
    let other = new_backend(&test.options);
    let (earlier, later) =
        tokio::join!(test.backend.launch(test.relaunch(4)), other.launch(test.relaunch(5)));
    // The earlier one lost at once, or its Pod was replaced.
    let later = later.unwrap();
    assert!(earlier.is_err() || earlier.is_ok_and(|earlier| earlier != later));
    let listed = other.list().await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!((&listed[0].instance, listed[0].generation), (&later, 5));
}

#[tokio::test]
async fn regression_k02_a_node_that_confirms_no_end_keeps_the_engine_from_a_second_one() {
    let Some(mut test) = Fixture::new().await else { return };
    let first = test.backend.launch(test.launch()).await.unwrap();
    test.set_node(Node::Lost);
    let error = test.backend.launch(test.relaunch(4)).await.unwrap_err();
    assert!(matches!(&error, BackendError::Unreachable(why) if why.contains("does not confirm")), "{error}");
    assert!(error.is_host_problem());
    assert_eq!(test.pods().await.len(), 1);
    assert!(test.backend.is_running(&first).await.unwrap());
    // Unless the operator takes the responsibility.
    test.options.settings.force_after = Some(Duration::ZERO);
    let forced = new_backend(&test.options);
    forced.remove_instance(test.target(5)).await.unwrap();
    assert!(test.pods().await.is_empty());
    test.set_node(Node::Runs);
    assert_ne!(forced.launch(test.relaunch(5)).await.unwrap(), first);
}
