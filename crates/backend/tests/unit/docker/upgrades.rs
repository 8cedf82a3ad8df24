//! Containers that version 0.1 launched are adopted. `fixtures` contains the request that created them, unchanged.

use api::ProductId;
use bollard::query_parameters::StartContainerOptions;
use serde_json::Value;

use super::super::*;
use super::support::{Fixture, free_port, next_exit, run_inside, target_of};

#[tokio::test]
async fn regression_o19_a_container_of_an_earlier_version_is_adopted_stopped_and_removed() {
    let Some(fixture) = Fixture::new().await else { return };
    let Fixture { backend, options, engine_id, .. } = &fixture;
    backend.check_network().await.unwrap();
    let home = options.data_root.join(engine_id.to_string());
    let request = |port: u16| -> (String, Value) {
        let json = include_str!("../../../fixtures/0.1/container.json")
            .replace("DATA_ROOT", &options.data_root.display().to_string())
            .replace("DEPLOYMENT", &options.deployment_id)
            .replace("CATALOG\"", &format!("{}\"", options.catalog.display()))
            .replace("NETWORK", &options.network)
            .replace("PRODUCT", &ProductId::new().to_string())
            .replace("10001:10001", &options.user.to_string())
            .replace("IMAGE", fixture.image.as_str())
            .replace("ENGINE\"", &format!("{engine_id}\""))
            .replace("PORT", &port.to_string());
        let json: Value = serde_json::from_str(&json).unwrap();
        (json["name"].as_str().unwrap().to_owned(), json["body"].clone())
    };
    let launch_as_0_1 = async || {
        backend.inner.prepare_folder(&fixture.launch_of(*engine_id)).await.unwrap();
        let port = free_port();
        let (name, body) = request(port);
        let id = fixture.create(&name, serde_json::from_value(body).unwrap()).await;
        fixture.docker.start_container(&id, None::<StartContainerOptions>).await.unwrap();
        run_inside(port, "echo brain > /data/brain.sqlite").await;
        Instance::new(id)
    };
    let mut exits = backend.exits();
    let instance = launch_as_0_1().await;
    let alive =
        EngineListing { engine_id: *engine_id, instance: instance.clone(), generation: 3, running: true };
    assert_eq!(backend.list().await.unwrap(), [alive]);
    assert!(backend.resource_limits(*engine_id).await.unwrap().is_some());
    assert!(backend.log_tail(*engine_id, 10).await.unwrap().contains(&"ready".to_owned()));
    backend.stop(target_of(*engine_id), Duration::from_secs(30)).await.unwrap();
    assert_eq!(next_exit(&mut exits).await.instance, instance);
    assert_eq!(fixture.containers().await, []);

    // A launch replaces it and keeps its data.
    launch_as_0_1().await;
    let launch = fixture.launch();
    let port = launch.placement.host_port().unwrap();
    fixture.launch_and_wait(launch).await;
    assert_eq!(run_inside(port, "cat /data/brain.sqlite").await, "brain");
    backend.remove_instance(target_of(*engine_id)).await.unwrap();

    launch_as_0_1().await;
    backend.remove_with_data(target_of(*engine_id)).await.unwrap();
    assert_eq!(fixture.containers().await, []);
    assert!(!home.exists());
}
