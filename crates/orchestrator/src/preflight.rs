//! `roundhouse orchestrator --check`: checks that everything the configuration names exists and is usable. It
//! creates and changes nothing, and may run while an orchestrator runs.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use backend::docker::{self, DockerBackend};
use backend::kubernetes::{self, KubernetesBackend, Settings};
use backend::{BackendError, EngineBackend};
use backup::{BackupError, Store, Target};
use http_service::clock::SystemClock;
use rustix::fs::{Access, access};
use rustix::io::Errno;

use crate::OpenError;
use crate::config::{BackendKind, Config, DatabaseUrl};
use crate::registry::{FoundRegistry, check_usable};

/// How long to wait for the database and for the backend.
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);

/// A requirement of an orchestrator with this configuration that is not met. The text is for the operator.
#[derive(Debug, thiserror::Error)]
pub enum PreflightError {
    /// The registry cannot be used.
    #[error(transparent)]
    Registry(OpenError),
    /// The registry's file, or one beside it, cannot be read or written.
    #[error("{file} (ORCH_DATABASE_URL) cannot be used: this user must be able to read and write it")]
    RegistryFile {
        /// The file.
        file: PathBuf,
        /// The error of the file access.
        #[source]
        source: io::Error,
    },
    /// A folder can be neither used nor created.
    #[error(
        "{folder} ({variable}) cannot be used: it must be a folder that this user can write to or create"
    )]
    Folder {
        /// The variable that names it.
        variable: &'static str,
        /// The folder.
        folder: PathBuf,
        /// The error of the folder access.
        #[source]
        source: io::Error,
    },
    /// The store of backups cannot be used.
    #[error("backups cannot be made: {target} (ORCH_BACKUP_URL): {fault}")]
    Backups {
        /// Where backups are kept.
        target: Box<Target>,
        /// The problem that was found.
        fault: String,
    },
    /// The backend cannot run engines.
    #[error("engines cannot be run ({variable}): {fault}")]
    Backend {
        /// The variable to check.
        variable: &'static str,
        /// The problem that was found.
        fault: String,
    },
}

impl PreflightError {
    /// What cannot be used, in one word.
    pub(crate) const fn subject(&self) -> &'static str {
        match self {
            Self::Registry(_) | Self::RegistryFile { .. } => "registry",
            Self::Folder { .. } => "folders",
            Self::Backups { .. } => "backups",
            Self::Backend { .. } => "backend",
        }
    }
}

/// The result of a preflight.
#[derive(Debug)]
pub struct Preflight {
    /// What is known of the registry, for people; `None` if it cannot be used.
    pub registry: Option<String>,
    /// All unmet requirements; there are none if an orchestrator could start.
    pub errors: Vec<PreflightError>,
}

/// Checks everything that the configuration names.
pub async fn preflight(config: &Config) -> Preflight {
    let mut errors = Vec::new();
    let registry = check_registry(&config.database).await.map_err(|error| errors.push(error)).ok();
    if !matches!(config.backend, BackendKind::Kubernetes(_)) {
        errors.extend(check_folder("ORCH_DATA_ROOT_PATH", &config.data_root).err());
    }
    errors.extend(check_backend(config).await.err());
    errors.extend(check_backups(config).await.err());
    Preflight { registry, errors }
}

/// Checks that the store of backups answers, and that its backups can be read with this master key.
async fn check_backups(config: &Config) -> Result<(), PreflightError> {
    let Some(settings) = &config.backups else { return Ok(()) };
    if let Some(folder) = settings.target.folder() {
        check_folder("ORCH_BACKUP_URL", &folder)?;
        if !folder.exists() {
            return Ok(());
        }
    }
    let unusable =
        |fault: String| PreflightError::Backups { target: Box::new(settings.target.clone()), fault };
    let opened = Store::open(&settings.target, &config.master_key, false);
    match tokio::time::timeout(CHECK_TIMEOUT, opened).await {
        // An empty store gets its root key with the first backup.
        Ok(Ok(Ok(_) | Err(BackupError::NotFound))) => Ok(()),
        Ok(Ok(Err(error))) => Err(unusable(error.to_string())),
        Ok(Err(invalid)) => Err(unusable(invalid.to_string())),
        Err(_) => Err(unusable(format!("it did not answer within {} s", CHECK_TIMEOUT.as_secs()))),
    }
}

/// Describes a registry that can be used.
fn describe_registry(found: Option<&FoundRegistry>) -> String {
    let Some(FoundRegistry { schema_version: Some(version), holder }) = found else {
        return "the registry is empty: the orchestrator creates it at its start".to_owned();
    };
    let active = match holder {
        Some(holder) => format!("{holder} is active, and another orchestrator would be its standby"),
        None => "no orchestrator is active".to_owned(),
    };
    format!("the registry has schema version {version}; {active}")
}

/// Returns a description of the registry.
async fn check_registry(database: &DatabaseUrl) -> Result<String, PreflightError> {
    if let DatabaseUrl::Sqlite(path) = database
        && !check_registry_file(path)?
    {
        return Ok(describe_registry(None));
    }
    let checked = tokio::time::timeout(CHECK_TIMEOUT, check_usable(database)).await;
    let checked =
        checked.unwrap_or_else(|_| Err(sqlx::Error::Io(io::Error::from(io::ErrorKind::TimedOut)).into()));
    let unusable = |error| PreflightError::Registry(OpenError::from_registry_error(database.clone(), error));
    checked.map(|found| describe_registry(Some(&found))).map_err(unusable)
}

/// Returns whether the registry's file exists. The file, the files that SQLite and the lock keep beside it, and
/// their folder must be readable and writable; files that do not exist yet are ignored.
fn check_registry_file(path: &Path) -> Result<bool, PreflightError> {
    const DATABASE_VARIABLE: &str = "ORCH_DATABASE_URL";
    let unusable = |file: PathBuf, source: io::Error| PreflightError::RegistryFile { file, source };
    let file = std::path::absolute(path).map_err(|error| unusable(path.to_owned(), error))?;
    check_folder(DATABASE_VARIABLE, file.parent().unwrap_or(Path::new("/")))?;
    // If it is a symbolic link, SQLite creates its files beside the link's target.
    let file = match file.canonicalize() {
        Ok(real) if real != file => {
            check_folder(DATABASE_VARIABLE, real.parent().unwrap_or(Path::new("/")))?;
            real
        }
        _ => file,
    };
    for suffix in ["", "-wal", "-shm", ".lock"] {
        let mut name = file.clone().into_os_string();
        name.push(suffix);
        match access(&name, Access::READ_OK | Access::WRITE_OK) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(unusable(name.into(), errno.into())),
        }
    }
    Ok(file.exists())
}

/// Checks that `folder` can be written to or, if it does not exist, created.
fn check_folder(variable: &'static str, folder: &Path) -> Result<(), PreflightError> {
    let unusable = |source| PreflightError::Folder { variable, folder: folder.to_owned(), source };
    let absolute = std::path::absolute(folder).map_err(unusable)?;
    for existing in absolute.ancestors() {
        match existing.metadata() {
            Ok(found) if found.is_dir() => {
                let needed = Access::WRITE_OK | Access::EXEC_OK;
                return access(existing, needed).map_err(|errno| unusable(errno.into()));
            }
            Ok(_) => return Err(unusable(io::Error::from(io::ErrorKind::NotADirectory))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(unusable(error)),
        }
    }
    Ok(())
}

async fn check_backend(config: &Config) -> Result<(), PreflightError> {
    match &config.backend {
        BackendKind::Process => Ok(()),
        BackendKind::Docker { socket } => check_docker(config, socket).await,
        BackendKind::Kubernetes(settings) => check_kubernetes(config, settings).await,
    }
}

async fn check_docker(config: &Config, socket: &Path) -> Result<(), PreflightError> {
    let options = docker::Options {
        socket: socket.to_owned(),
        network: config.engine_network.clone(),
        // Empty, because the checks look up nothing by deployment.
        deployment_id: String::new(),
        data_root: config.data_root.clone(),
        catalog: config.catalog.clone(),
        url_host: config.url_host.clone(),
        user: docker::User::for_engines(),
    };
    let backend = DockerBackend::new(options, Arc::new(SystemClock::new()));
    check_reachable(config, &backend, "ORCH_DOCKER_SOCKET").await
}

async fn check_kubernetes(config: &Config, settings: &Settings) -> Result<(), PreflightError> {
    let options = kubernetes::Options {
        // No deployment has this id: listing its engines finds none, and checks the namespace and the rights.
        deployment_id: "check".to_owned(),
        copy_image: config.engine_image.clone(),
        settings: settings.clone(),
    };
    let backend = KubernetesBackend::new(options, Arc::new(SystemClock::new()));
    check_reachable(config, &backend, "ORCH_KUBERNETES_NAMESPACE").await
}

/// Checks that the backend answers and has the image. `variable` says where it is.
async fn check_reachable(
    config: &Config,
    backend: &dyn EngineBackend,
    variable: &'static str,
) -> Result<(), PreflightError> {
    let check = async {
        backend.ping().await?;
        backend.list().await?;
        backend.check_image(&config.engine_image).await
    };
    let checked: Result<(), BackendError> = match tokio::time::timeout(CHECK_TIMEOUT, check).await {
        Ok(checked) => checked,
        Err(_) => Err(BackendError::Unreachable(format!("no answer within {} s", CHECK_TIMEOUT.as_secs()))),
    };
    checked.map_err(|error| {
        let is_image = matches!(error, BackendError::NoImage(_));
        let variable = if is_image { "ORCH_ENGINE_IMAGE" } else { variable };
        PreflightError::Backend { variable, fault: error.to_string() }
    })
}
