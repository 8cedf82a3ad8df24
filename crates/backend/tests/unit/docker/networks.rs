//! The engines' network isolates engines from each other; otherwise they are not launched.

use std::collections::HashMap;

use bollard::models::{Ipam, IpamConfig, NetworkCreateRequest};
use bollard::query_parameters::InspectNetworkOptions;
use uuid::Uuid;

use super::super::label::container_name;
use super::super::*;
use super::support::{Fixture, new_backend, run_inside, target_of};

impl Fixture {
    async fn make_network(&self, icc: &str, subnet: Option<&str>) -> Result<(), bollard::errors::Error> {
        let config =
            subnet.map(|subnet| IpamConfig { subnet: Some(subnet.to_owned()), ..Default::default() });
        let option = ("com.docker.network.bridge.enable_icc".to_owned(), icc.to_owned());
        let request = NetworkCreateRequest {
            name: self.options.network.clone(),
            options: Some(HashMap::from([option])),
            ipam: config.map(|config| Ipam { config: Some(vec![config]), ..Default::default() }),
            ..Default::default()
        };
        self.docker.create_network(request).await.map(drop)
    }

    /// Creates a network with addresses for the gateway and one container. Which addresses are free depends on the
    /// host: other networks, and what an earlier run left when it was killed.
    async fn make_network_for_one(&self) {
        let mut last = None;
        for _ in 0..50 {
            // The end of such an id is random.
            let [.., third, fourth] = *Uuid::now_v7().as_bytes();
            match self.make_network("false", Some(&format!("10.253.{third}.{}/30", fourth & !3))).await {
                Ok(()) => return,
                // "Pool overlaps with other one on this address space"
                Err(error @ bollard::errors::Error::DockerResponseServerError { status_code: 403, .. }) => {
                    last = Some(error);
                }
                Err(error) => panic!("{error}"),
            }
        }
        panic!("no free subnet: {last:?}");
    }

    /// Returns the engine's address on the engines' network.
    async fn address_of(&self, engine_id: EngineId) -> String {
        let found = self.backend.inner.daemon.inspect(&container_name(engine_id)).await.unwrap().unwrap();
        let mut networks = found.network_settings.unwrap().networks.unwrap();
        networks.remove(&self.options.network).unwrap().ip_address.unwrap()
    }
}

#[tokio::test]
async fn engines_cannot_reach_one_another() {
    let Some(fixture) = Fixture::new().await else { return };
    let (first, second) = (fixture.launch(), fixture.launch_of(EngineId::new()));
    let (port, second_id) = (first.placement.host_port().unwrap(), second.engine_id);
    fixture.launch_and_wait(first).await;
    fixture.launch_and_wait(second).await;
    let connect = |address: &str| {
        format!(
            "python3 -c 'import socket; s = socket.create_connection((\"{address}\", 8000), 3); \
             print(\"reached\")' 2>&1 | tail -n 1"
        )
    };
    // It reaches its own address, which shows that the command works.
    let own = fixture.address_of(fixture.engine_id).await;
    assert_eq!(run_inside(port, &connect(&own)).await, "reached");
    let other = fixture.address_of(second_id).await;
    let output = run_inside(port, &connect(&other)).await;
    assert!(output.contains("timed out") || output.contains("unreachable"), "{output}");
}

#[tokio::test]
async fn a_missing_network_is_made_and_made_again() {
    let Some(fixture) = Fixture::new().await else { return };
    fixture.backend.check_network().await.unwrap();
    let inspected = fixture.docker.inspect_network(&fixture.options.network, None::<InspectNetworkOptions>);
    let options = inspected.await.unwrap().options.unwrap();
    assert_eq!(options["com.docker.network.bridge.enable_icc"], "false");
    fixture.docker.remove_network(&fixture.options.network).await.unwrap();
    fixture.launch_and_wait(fixture.launch()).await;
    // Another orchestrator accepts the existing network.
    new_backend(&fixture.options).check_network().await.unwrap();
}

/// An operator removes the network while no engine runs, and creates another one of the same name.
#[tokio::test]
async fn a_network_that_took_the_place_of_the_checked_one_is_refused() {
    let Some(fixture) = Fixture::new().await else { return };
    fixture.launch_and_wait(fixture.launch()).await;
    fixture.backend.stop(target_of(fixture.engine_id), Duration::from_secs(30)).await.unwrap();
    fixture.docker.remove_network(&fixture.options.network).await.unwrap();
    fixture.make_network("true", None).await.unwrap();
    let error = fixture.backend.launch(fixture.launch()).await.unwrap_err();
    assert!(
        matches!(&error, BackendError::Failed(reason) if reason.contains("does not isolate engines")),
        "{error}"
    );
    assert_eq!(fixture.containers().await, []);
}

#[tokio::test]
async fn orchestrators_that_begin_at_once_make_one_network() {
    let Some(fixture) = Fixture::new().await else { return };
    let backends: Vec<_> = (0..8).map(|_| new_backend(&fixture.options)).collect();
    let checks = backends.iter().map(|backend| backend.check_network());
    for checked in futures::future::join_all(checks).await {
        checked.unwrap();
    }
    let networks = fixture.docker.list_networks(None).await.unwrap();
    let named = networks.iter().filter(|network| network.name.as_ref() == Some(&fixture.options.network));
    assert_eq!(named.count(), 1);
}

#[tokio::test]
async fn a_network_that_does_not_keep_engines_apart_is_refused() {
    let Some(fixture) = Fixture::new().await else { return };
    fixture.make_network("true", None).await.unwrap();
    let fault = fixture.backend.check_network().await.unwrap_err();
    assert!(fault.to_string().contains(&fixture.options.network), "{fault}");
    let error = fixture.backend.launch(fixture.launch()).await.unwrap_err();
    assert!(
        matches!(&error, BackendError::Failed(reason) if reason.contains("docker network rm")),
        "{error}"
    );
    assert_eq!(fixture.containers().await, []);
    // The host's network, the default bridge and no network are refused too.
    for network in ["host", "bridge", "none"] {
        let backend = new_backend(&fixture.with(|options| options.network = network.into()));
        let fault = backend.check_network().await.unwrap_err();
        assert!(matches!(fault, NetworkFault::NotIsolated { .. }), "{fault}");
    }
}

#[tokio::test]
async fn regression_o13_a_full_network_is_said_and_nothing_is_left() {
    let Some(fixture) = Fixture::new().await else { return };
    fixture.make_network_for_one().await;
    fixture.launch_and_wait(fixture.launch()).await;
    let error = fixture.backend.launch(fixture.launch_of(EngineId::new())).await.unwrap_err();
    assert!(matches!(error, BackendError::NoCapacity(_)), "{error}");
    assert_eq!(fixture.containers().await, [(fixture.engine_id, ContainerState::Running)]);
    fixture.backend.remove_with_data(target_of(fixture.engine_id)).await.unwrap();
    fixture.launch_and_wait(fixture.launch_of(EngineId::new())).await;
}
