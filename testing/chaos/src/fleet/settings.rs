//! The environment of a run's orchestrator, with short intervals and time limits.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context as _;

use super::engine_host::EngineHost;

/// Returns the environment of an orchestrator in `folder`, without its ports.
pub(crate) fn env_vars(
    folder: &Path,
    host: &EngineHost,
    database: String,
    (admin_key, master_key): (&str, &str),
) -> anyhow::Result<BTreeMap<String, String>> {
    let path = |name: &str| {
        folder.join(name).to_str().map(str::to_owned).context("the path of a temporary folder is not UTF-8")
    };
    let common = [
        ("ORCH_DATABASE_URL", database),
        ("ORCH_MASTER_KEY", master_key.to_owned()),
        ("ORCH_ADMIN_KEY", admin_key.to_owned()),
        ("ORCH_HOST", "127.0.0.1".to_owned()),
        ("ORCH_DATA_ROOT_PATH", path("engines")?),
        ("ORCH_CATALOG_MOUNT_PATH", path("catalog")?),
        ("ORCH_ENGINE_ENV_PASSTHROUGH", "LLM_PROVIDER,ENGINE_LOG_LEVEL".to_owned()),
        ("LLM_PROVIDER", "scripted".to_owned()),
        ("ENGINE_LOG_LEVEL", "warn".to_owned()),
        ("ORCH_BOOT_TIMEOUT_S", "20".to_owned()),
        // Long enough for a busy machine, and short enough that a hanging engine is detected.
        ("ORCH_HEALTH_CHECK_INTERVAL_S", "0.2".to_owned()),
        ("ORCH_HEALTH_CHECK_TIMEOUT_S", "1".to_owned()),
        ("ORCH_HEALTH_MAX_FAILURES", "2".to_owned()),
        ("ORCH_IDLE_SLEEP_THRESHOLD_S", "1".to_owned()),
        ("ORCH_RESTART_BACKOFF_BASE_S", "0.1".to_owned()),
        ("ORCH_RESTART_BACKOFF_MAX_S", "0.5".to_owned()),
        ("ORCH_RESTART_MAX_ATTEMPTS", "8".to_owned()),
    ];
    let backend_settings = match host {
        EngineHost::Processes => vec![
            ("ORCH_BACKEND", "process".to_owned()),
            ("ORCH_ENGINE_IMAGE", format!("svc-engine:{}", env!("CARGO_PKG_VERSION"))),
        ],
        EngineHost::Containers(containers) => vec![
            ("ORCH_BACKEND", "docker".to_owned()),
            ("ORCH_DOCKER_SOCKET", containers.resources.daemon.socket.display().to_string()),
            ("ORCH_ENGINE_IMAGE", containers.resources.image()),
            ("ORCH_ENGINE_NETWORK", containers.resources.network().to_owned()),
        ],
        EngineHost::Pods(pods) => pods.settings(folder),
    };
    Ok(common.into_iter().chain(backend_settings).map(|(name, value)| (name.to_owned(), value)).collect())
}
