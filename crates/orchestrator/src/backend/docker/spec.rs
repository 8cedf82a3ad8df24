//! The container of an engine, as the daemon is asked for it.

use std::collections::HashMap;

use bollard::models::{
    ContainerCreateBody, HostConfig, HostConfigLogConfig, Mount, MountType, PortBinding, RestartPolicy,
    RestartPolicyNameEnum,
};
use secrecy::ExposeSecret as _;

use super::{Options, label};
use crate::backend::{LaunchSpec, ResourceLimits};

/// Where the image's engine listens.
const CONTAINER_PORT: &str = "8000/tcp";

/// What an engine may use where its product's policy says nothing.
const DEFAULT_LIMITS: (u64, f64, u64) = (1_024, 2.0, 512);

/// The seconds that whoever else stops the container, as a daemon does that ends itself, gives the engine.
const STOP_TIMEOUT_S: i64 = 30;

/// Processor time is dealt out in periods of so many microseconds; this is the kernel's own choice.
const CPU_PERIOD_US: i64 = 100_000;
/// The least that the kernel takes.
const MIN_CPU_QUOTA_US: i64 = 1_000;
/// The most processes that the kernel counts.
const MAX_PIDS: i64 = 4_194_304;

/// The container that runs `launch` on `network`.
pub(super) fn container(options: &Options, launch: &LaunchSpec, network: &str) -> ContainerCreateBody {
    ContainerCreateBody {
        image: Some(launch.image.to_string()),
        user: Some(options.user.to_string()),
        env: Some(environment(launch)),
        labels: Some(label::labels(&options.deployment_id, launch)),
        exposed_ports: Some(vec![CONTAINER_PORT.to_owned()]),
        stop_signal: Some("SIGTERM".to_owned()),
        stop_timeout: Some(STOP_TIMEOUT_S),
        host_config: Some(host_config(options, launch, network)),
        ..ContainerCreateBody::default()
    }
}

fn host_config(options: &Options, launch: &LaunchSpec, network: &str) -> HostConfig {
    let data = options.data_root.join(launch.engine_id.to_string());
    let published =
        PortBinding { host_ip: Some("127.0.0.1".to_owned()), host_port: Some(launch.port.to_string()) };
    let limits = ContainerLimits::from_resource_limits(&launch.limits);
    HostConfig {
        cap_drop: Some(vec!["ALL".to_owned()]),
        security_opt: Some(vec!["no-new-privileges:true".to_owned()]),
        readonly_rootfs: Some(true),
        tmpfs: Some(string_map([("/tmp", "rw,noexec,nosuid,nodev,mode=1777,size=128m")])),
        init: Some(true),
        log_config: Some(HostConfigLogConfig {
            typ: Some("json-file".to_owned()),
            config: Some(string_map([("max-size", "10m"), ("max-file", "3")])),
        }),
        mounts: Some(vec![
            bind_mount(data.display().to_string(), "/data", false),
            bind_mount(options.catalog.display().to_string(), "/catalog", true),
        ]),
        network_mode: Some(network.to_owned()),
        port_bindings: Some(HashMap::from([(CONTAINER_PORT.to_owned(), Some(vec![published]))])),
        restart_policy: Some(RestartPolicy {
            name: Some(RestartPolicyNameEnum::NO),
            maximum_retry_count: None,
        }),
        memory: Some(limits.memory),
        // As much as the memory: none of it is swap.
        memory_swap: Some(limits.memory),
        cpu_period: Some(CPU_PERIOD_US),
        cpu_quota: Some(limits.cpu_quota),
        pids_limit: Some(limits.pids),
        ..HostConfig::default()
    }
}

/// The contract's three variables and those handed on; what else there is, the image brings.
fn environment(launch: &LaunchSpec) -> Vec<String> {
    let own = [
        format!("ENGINE_KEY_HASH={}", launch.key_hash.to_hex()),
        "SQLITE_DB_PATH=/data/brain.sqlite".to_owned(),
        "CATALOG_DIR=/catalog".to_owned(),
    ];
    let handed_on = launch.env.iter().map(|(name, value)| format!("{name}={}", value.expose_secret()));
    own.into_iter().chain(handed_on).collect()
}

/// A folder of the host. Unlike a volume given in short form, one that is missing is an error.
fn bind_mount(source: String, target: &str, read_only: bool) -> Mount {
    Mount {
        typ: Some(MountType::BIND),
        source: Some(source),
        target: Some(target.to_owned()),
        read_only: Some(read_only),
        ..Mount::default()
    }
}

fn string_map<const N: usize>(pairs: [(&str, &str); N]) -> HashMap<String, String> {
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Caps as the daemon takes them.
struct ContainerLimits {
    memory: i64,
    cpu_quota: i64,
    pids: i64,
}

impl ContainerLimits {
    fn from_resource_limits(caps: &ResourceLimits) -> Self {
        let (memory_mb, cpus, pids) = DEFAULT_LIMITS;
        let whole = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        let cpus = caps.cpus.unwrap_or(cpus);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a quota beyond every machine is as good as none"
        )]
        let cpu_quota = (cpus * 100_000.0).round() as i64;
        Self {
            memory: whole(caps.memory_mb.unwrap_or(memory_mb)).saturating_mul(1_024 * 1_024),
            cpu_quota: cpu_quota.max(MIN_CPU_QUOTA_US),
            pids: whole(caps.pids.unwrap_or(pids)).min(MAX_PIDS),
        }
    }
}

/// The caps that a container is held to.
pub(super) fn limits_of(host: &HostConfig) -> ResourceLimits {
    let above_zero = |limit: Option<i64>| limit.filter(|limit| *limit > 0).map(i64::unsigned_abs);
    let cpus = above_zero(host.cpu_quota).zip(above_zero(host.cpu_period));
    ResourceLimits {
        memory_mb: above_zero(host.memory).map(|bytes| bytes / (1_024 * 1_024)),
        cpus: cpus.map(|(quota, period)| cpu_count(quota, period)),
        pids: above_zero(host.pids_limit),
    }
}

#[expect(clippy::cast_precision_loss, reason = "quotas are small, and shown to people")]
fn cpu_count(quota: u64, period: u64) -> f64 {
    quota as f64 / period as f64
}
