//! The specification of an engine's container: its confinement, mounts, environment and resource limits.
//!
//! The container drops all capabilities and has a read-only root file system; the engine can write only to
//! its own folder and to `/tmp`.

use std::collections::HashMap;

use bollard::models::{
    ContainerCreateBody, HostConfig, HostConfigLogConfig, Mount, MountType, PortBinding, RestartPolicy,
    RestartPolicyNameEnum,
};
use secrecy::ExposeSecret as _;

use super::{Options, label};
use crate::{LaunchSpec, ResourceLimits};

/// The port on which the engine listens inside its container.
const CONTAINER_PORT: &str = "8000/tcp";

/// The limits where a product's policy sets none: MiB of memory, processors, processes.
const DEFAULT_LIMITS: (u64, f64, u64) = (1_024, 2.0, 512);

/// The grace in seconds when something other than the orchestrator stops the container, such as the daemon's
/// shutdown.
const STOP_TIMEOUT_S: i64 = 30;

/// The period of the processor quota in microseconds: the kernel's default.
const CPU_PERIOD_US: i64 = 100_000;
/// The smallest processor quota, in microseconds, that the kernel accepts.
const MIN_CPU_QUOTA_US: i64 = 1_000;
/// The largest number of processes that the kernel supports (`PID_MAX_LIMIT`).
const MAX_PIDS: i64 = 4_194_304;

/// Builds the request that creates the container of `launch` on `network`.
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
    let published = launch.placement.host_port().map(|port| {
        let binding =
            PortBinding { host_ip: Some("127.0.0.1".to_owned()), host_port: Some(port.to_string()) };
        HashMap::from([(CONTAINER_PORT.to_owned(), Some(vec![binding]))])
    });
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
        port_bindings: published,
        restart_policy: Some(RestartPolicy {
            name: Some(RestartPolicyNameEnum::NO),
            maximum_retry_count: None,
        }),
        memory: Some(limits.memory),
        // The limit on memory plus swap: equal to the memory limit, so that there is no swap.
        memory_swap: Some(limits.memory),
        cpu_period: Some(CPU_PERIOD_US),
        cpu_quota: Some(limits.cpu_quota),
        pids_limit: Some(limits.pids),
        ..HostConfig::default()
    }
}

/// Returns the three variables of the container contract and those of the launch. All others come from the image.
fn environment(launch: &LaunchSpec) -> Vec<String> {
    let own = [
        format!("ENGINE_KEY_HASH={}", launch.key_hash.to_hex()),
        "SQLITE_DB_PATH=/data/brain.sqlite".to_owned(),
        "CATALOG_DIR=/catalog".to_owned(),
    ];
    let from_launch = launch.env.iter().map(|(name, value)| format!("{name}={}", value.expose_secret()));
    own.into_iter().chain(from_launch).collect()
}

/// Mounts a folder of the host. Unlike with the short volume syntax, a missing folder is an error.
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

/// Resource limits in the daemon's units: bytes, microseconds per [`CPU_PERIOD_US`], processes.
struct ContainerLimits {
    memory: i64,
    cpu_quota: i64,
    pids: i64,
}

impl ContainerLimits {
    fn from_resource_limits(limits: &ResourceLimits) -> Self {
        let (memory_mb, cpus, pids) = DEFAULT_LIMITS;
        let to_i64 = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        let cpus = limits.cpus.unwrap_or(cpus);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a quota beyond the size of any host is equivalent to none"
        )]
        let cpu_quota = (cpus * 100_000.0).round() as i64;
        Self {
            memory: to_i64(limits.memory_mb.unwrap_or(memory_mb)).saturating_mul(1_024 * 1_024),
            cpu_quota: cpu_quota.max(MIN_CPU_QUOTA_US),
            pids: to_i64(limits.pids.unwrap_or(pids)).min(MAX_PIDS),
        }
    }
}

/// Returns the limits in force on a container.
pub(super) fn limits_of(host: &HostConfig) -> ResourceLimits {
    let above_zero = |limit: Option<i64>| limit.filter(|limit| *limit > 0).map(i64::unsigned_abs);
    let cpus = above_zero(host.cpu_quota).zip(above_zero(host.cpu_period));
    ResourceLimits {
        memory_mb: above_zero(host.memory).map(|bytes| bytes / (1_024 * 1_024)),
        cpus: cpus.map(|(quota, period)| cpu_count(quota, period)),
        pids: above_zero(host.pids_limit),
    }
}

#[expect(clippy::cast_precision_loss, reason = "quotas are small, and the result is only displayed")]
fn cpu_count(quota: u64, period: u64) -> f64 {
    quota as f64 / period as f64
}
