//! Tests that need no daemon: the specification of the container, labels, and the translation of errors.

use api::{EngineKey, KeyHash, ProductId};
use bollard::errors::Error;
use pretty_assertions::assert_eq;
use secrecy::SecretString;
use serde_json::Value;

use super::super::error::{is_network_gone, launch_error};
use super::super::label::container_name;
use super::super::*;

fn options() -> Options {
    Options {
        socket: PathBuf::from("/var/run/docker.sock"),
        network: "NETWORK".into(),
        deployment_id: "DEPLOYMENT".into(),
        data_root: PathBuf::from("DATA_ROOT"),
        catalog: PathBuf::from("CATALOG"),
        url_host: "127.0.0.1".into(),
        user: User::ENGINE,
    }
}

fn launch() -> LaunchSpec {
    let hash = "54ec7c3cb55ad24e42cb7a2b4b7d7a1b4f6ad7b9d1c1a2b3c4d5e6f708192a3b";
    LaunchSpec {
        engine_id: EngineId::new(),
        product_id: ProductId::new(),
        generation: 3,
        is_first: true,
        image: "svc-engine:0.1.0".parse().unwrap(),
        placement: Placement::HostPort(9_001),
        key_hash: KeyHash::from_hex(hash).unwrap(),
        env: vec![("LLM_API_KEY".into(), SecretString::from("provider secret"))],
        limits: ResourceLimits::default(),
    }
}

/// The container equals the one in the fixture. A later version that creates a different one keeps this
/// fixture and adds its own.
#[test]
fn regression_o19_the_container_is_the_one_that_is_kept() {
    let launch = launch();
    let expected = include_str!("../../../fixtures/0.1/container.json")
        .replace("ENGINE\"", &format!("{}\"", launch.engine_id))
        .replace("PRODUCT", &launch.product_id.to_string())
        .replace("IMAGE", launch.image.as_str())
        .replace("PORT", "9001");
    let expected: Value = serde_json::from_str(&expected).unwrap();
    assert_eq!(container_name(launch.engine_id), expected["name"]);
    let body = serde_json::to_value(spec::container(&options(), &launch, "NETWORK")).unwrap();
    assert_eq!(body, expected["body"]);
}

#[test]
fn caps_are_the_policys_and_what_the_kernel_takes() {
    let host_config = |limits| {
        spec::container(&options(), &LaunchSpec { limits, ..launch() }, "NETWORK").host_config.unwrap()
    };
    let limits = ResourceLimits { memory_mb: Some(64), cpus: Some(0.5), pids: Some(16) };
    let tight = host_config(limits);
    assert_eq!((tight.memory, tight.memory_swap), (Some(64 << 20), Some(64 << 20)));
    assert_eq!(
        (tight.cpu_quota, tight.cpu_period, tight.pids_limit),
        (Some(50_000), Some(100_000), Some(16))
    );
    assert_eq!(spec::limits_of(&tight), limits);
    // Limits beyond any host's size have no effect; a limit below the kernel's minimum becomes that minimum.
    let loose =
        host_config(ResourceLimits { memory_mb: Some(u64::MAX), cpus: Some(1e300), pids: Some(u64::MAX) });
    assert_eq!((loose.memory, loose.cpu_quota), (Some(i64::MAX), Some(i64::MAX)));
    assert_eq!(loose.pids_limit, Some(4_194_304));
    let tiny = host_config(ResourceLimits { cpus: Some(1e-9), ..ResourceLimits::default() });
    assert_eq!(tiny.cpu_quota, Some(1_000));
}

fn daemon_error(status_code: u16, message: &str) -> Error {
    Error::DockerResponseServerError { status_code, message: message.to_owned() }
}

#[test]
fn regression_o13_a_host_or_network_without_room_is_told_from_a_daemon_that_fails() {
    for message in [
        "no available IPv4 addresses on this network's address pools: engine_net (3fc)",
        "could not find an available, non-overlapping IPv4 address pool among the defaults to assign to the network",
        "failed to create endpoint x on network engine_net: adding interface veth1 to bridge br-1 failed: exchange full",
        "mkdir /var/lib/docker/overlay2/x: no space left on device",
        "fork/exec /usr/bin/containerd-shim: cannot allocate memory",
        "fork/exec /usr/bin/containerd-shim: resource temporarily unavailable",
        "open /dev/ptmx: too many open files",
    ] {
        let error = launch_error(&daemon_error(500, message), &launch());
        assert!(matches!(error, BackendError::NoCapacity(_)), "{error}");
    }
    let error = launch_error(&daemon_error(500, "OCI runtime create failed"), &launch());
    assert!(matches!(&error, BackendError::Failed(reason) if reason.contains("500: OCI runtime")), "{error}");
}

#[test]
fn a_taken_port_and_a_missing_image_are_told_apart() {
    for message in [
        "driver failed programming external connectivity on endpoint x: Bind for 127.0.0.1:9001 failed: port is \
         already allocated",
        "Error starting userland proxy: listen tcp4 127.0.0.1:9001: bind: address already in use",
    ] {
        assert_eq!(launch_error(&daemon_error(500, message), &launch()), BackendError::PortTaken(9_001));
    }
    let image = "svc-engine:0.1.0".parse().unwrap();
    let error = launch_error(&daemon_error(404, "No such image: svc-engine:0.1.0"), &launch());
    assert_eq!(error, BackendError::NoImage(image));
    assert!(is_network_gone(&daemon_error(404, "network engine_net not found")));
    assert!(!is_network_gone(&daemon_error(404, "No such container: network")));
}

#[test]
fn a_daemon_that_says_nothing_is_out_of_reach_and_one_that_is_not_understood_has_failed() {
    let io = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
    for error in [
        Error::RequestTimeoutError,
        Error::SocketNotFoundError("/run/docker.sock".into()),
        Error::IOError { err: io },
    ] {
        let error = docker_backend_error(&error);
        assert!(matches!(error, BackendError::Unreachable(_)), "{error}");
    }
    let err = serde_json::from_str::<Value>("<html>").unwrap_err();
    let error = docker_backend_error(&Error::JsonSerdeError { err });
    assert!(matches!(error, BackendError::Failed(_)), "{error}");
}

#[test]
fn only_this_deployments_labels_name_an_engine() {
    let launch = launch();
    let mut labels = label::labels("mine", &launch);
    assert_eq!(engine_of("mine", &labels), Some(launch.engine_id));
    assert_eq!(engine_of("another", &labels), None);
    labels.insert("roundhouse.engine".into(), EngineKey::generate().unwrap().expose().into());
    assert_eq!(engine_of("mine", &labels), None);
}
