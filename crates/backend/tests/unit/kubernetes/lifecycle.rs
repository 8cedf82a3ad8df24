//! The life of an engine: launch, exit, stop, kill, removal, and what stays.

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Service};
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use super::super::*;
use super::support::{Fixture, Node, POD_IP, new_backend, next_exit, poll_until};
use crate::DataUnavailable;

#[tokio::test]
async fn an_engine_runs_sleeps_keeps_its_data_and_goes() {
    let Some(test) = Fixture::new().await else { return };
    let (backend, engine_id) = (&test.backend, test.engine_id);
    let _exits = backend.exits();
    backend.ping().await.unwrap();
    let instance = backend.launch(test.launch()).await.unwrap();
    assert!(backend.is_running(&instance).await.unwrap());
    let listed = backend.list().await.unwrap();
    let expected = EngineListing { engine_id, instance: instance.clone(), generation: 3, running: true };
    assert_eq!(listed, [expected]);
    let limits = backend.resource_limits(engine_id).await.unwrap().unwrap();
    assert_eq!(limits, ResourceLimits { memory_mb: Some(64), cpus: Some(0.5), pids: None });
    // Where it is, for the orchestrator and for products.
    let address =
        poll_until("the address is known", async || backend.address(engine_id, Placement::OwnAddress));
    assert_eq!(address.await.to_string(), format!("{POD_IP}:8000"));
    let url = backend.url_authority(engine_id, Placement::OwnAddress).unwrap();
    let namespace = &test.options.settings.namespace;
    assert_eq!(url, format!("{}.engines.{namespace}.svc:8000", engine_name(engine_id)));
    assert!(test.api::<Service>().get_opt("engines").await.unwrap().is_some());
    assert_eq!(test.secrets().await.len(), 1);

    backend.stop(test.target(3), Duration::from_secs(5)).await.unwrap();
    assert!(test.pods().await.is_empty());
    assert!(!backend.is_running(&instance).await.unwrap());
    assert_eq!(backend.resource_limits(engine_id).await.unwrap(), None);
    assert!(backend.has_data(engine_id).await.unwrap());
    poll_until("the secret goes with the Pod", async || test.secrets().await.is_empty().then_some(())).await;

    let again = backend.launch(test.relaunch(4)).await.unwrap();
    assert_ne!(again, instance);
    backend.remove_with_data(test.target(4)).await.unwrap();
    assert!(test.pods().await.is_empty() && test.claims().await.is_empty());
    // What does not exist is removed.
    backend.remove_with_data(test.target(4)).await.unwrap();
    backend.kill(test.target(4)).await.unwrap();
    assert_eq!(backend.list().await.unwrap(), []);
}

#[tokio::test]
async fn regression_k06_without_its_claim_an_engine_is_not_launched() {
    let Some(test) = Fixture::new().await else { return };
    let missing = BackendError::DataUnavailable(DataUnavailable::VolumeMissing);
    assert_eq!(test.backend.has_data(test.engine_id).await.unwrap_err(), missing);
    assert_eq!(test.backend.launch(test.relaunch(3)).await.unwrap_err(), missing);
    assert!(test.pods().await.is_empty() && test.claims().await.is_empty());
    // A claim of the same name that is not this deployment's is not its data.
    let foreign = new_backend(&Options { deployment_id: "other".to_owned(), ..test.options.clone() });
    foreign.launch(test.launch()).await.unwrap();
    assert_eq!(test.backend.has_data(test.engine_id).await.unwrap_err(), missing);
    assert_eq!(test.backend.list().await.unwrap(), []);
}

#[tokio::test]
async fn regression_k04_an_exit_is_reported_once_with_its_reason_and_its_last_lines() {
    let Some(test) = Fixture::new().await else { return };
    let mut exits = test.backend.exits();
    let instance = test.backend.launch(test.launch()).await.unwrap();
    test.set_node(Node::Lost);
    test.end_container(json!({"exitCode": 137, "reason": "OOMKilled", "message": "one\nlast words\n"})).await;
    let exit = next_exit(&mut exits).await;
    assert_eq!((exit.engine_id, &exit.instance), (test.engine_id, &instance));
    assert!(exit.reason.unwrap().contains("more memory than its limit"));
    assert!(!test.backend.is_running(&instance).await.unwrap());
    // A kill leaves what has exited, because its log is there.
    test.backend.kill(test.target(3)).await.unwrap();
    assert!(!test.backend.list().await.unwrap()[0].running);
    assert_eq!(test.backend.inner.logs.tail(test.engine_id, 1), ["last words"]);
    test.set_node(Node::Runs);
    let again = test.backend.launch(test.relaunch(4)).await.unwrap();
    // Its deletion by somebody else is its end, too.
    test.api::<k8s_openapi::api::core::v1::Pod>()
        .delete(&engine_name(test.engine_id), &DeleteParams::default().grace_period(1))
        .await
        .unwrap();
    let exit = next_exit(&mut exits).await;
    assert_eq!(exit.instance, again);
}

#[tokio::test]
async fn regression_k01_a_later_orchestrator_finds_what_an_earlier_one_launched() {
    let Some(test) = Fixture::new().await else { return };
    let instance = test.backend.launch(test.launch()).await.unwrap();
    let later = new_backend(&test.options);
    let mut exits = later.exits();
    assert_eq!(later.list().await.unwrap()[0].instance, instance);
    assert!(later.address(test.engine_id, Placement::OwnAddress).is_some());
    test.backend.stop(test.target(3), Duration::from_secs(1)).await.unwrap();
    assert_eq!(next_exit(&mut exits).await.instance, instance);
}

#[tokio::test]
async fn an_image_that_no_registry_has_is_named_and_nothing_stays() {
    let Some(test) = Fixture::new().await else { return };
    test.set_node(Node::HasNoImage);
    let launch = test.launch();
    let image = launch.image.clone();
    test.backend.check_image(&image).await.unwrap();
    assert_eq!(test.backend.launch(launch).await.unwrap_err(), BackendError::NoImage(image.clone()));
    assert!(test.pods().await.is_empty());
    assert_eq!(test.backend.check_image(&image).await.unwrap_err(), BackendError::NoImage(image));
}

#[tokio::test]
async fn regression_k05_a_cluster_without_room_says_so_and_nothing_stays() {
    let Some(mut test) = Fixture::new().await else { return };
    test.set_node(Node::IsFull);
    test.options.settings.start_timeout = Duration::from_secs(1);
    let error = new_backend(&test.options).launch(test.launch()).await.unwrap_err();
    assert!(
        matches!(&error, BackendError::NoCapacity(why) if why.contains("Insufficient memory")),
        "{error}"
    );
    assert!(test.pods().await.is_empty());
}

#[tokio::test]
async fn regression_k06_a_lost_claim_is_no_data() {
    let Some(test) = Fixture::new().await else { return };
    test.backend.launch(test.launch()).await.unwrap();
    test.backend.stop(test.target(3), Duration::ZERO).await.unwrap();
    // To the cluster, this is a claim that was bound to a volume that is gone.
    let bound = Patch::Merge(json!({
        "metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        "spec": {"volumeName": "gone"},
    }));
    let (name, claims) = (engine_name(test.engine_id), test.api::<PersistentVolumeClaim>());
    claims.patch(&name, &PatchParams::default(), &bound).await.unwrap();
    poll_until("the claim is lost", async || {
        let status = claims.get(&name).await.unwrap().status;
        status.filter(|status| status.phase.as_deref() == Some("Lost"))
    })
    .await;
    let error = test.backend.launch(test.relaunch(4)).await.unwrap_err();
    assert_eq!(error, BackendError::DataUnavailable(DataUnavailable::VolumeLost));
}
