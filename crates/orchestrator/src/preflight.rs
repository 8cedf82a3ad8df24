//! `roundhouse orchestrator --check`: checks that everything the configuration names exists and is usable. It
//! creates and changes nothing, and may run while an orchestrator runs.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use backend::docker::{self, DockerBackend};
use backend::{BackendError, EngineBackend as _};
use http_service::clock::SystemClock;
use rustix::fs::{Access, access};
use rustix::io::Errno;

use crate::OpenError;
use crate::config::{BackendKind, Config, DatabaseUrl};
use crate::registry::check_usable;

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
    /// The backend cannot run engines.
    #[error("engines cannot be run ({variable}): {fault}")]
    Backend {
        /// The variable to check.
        variable: &'static str,
        /// The problem that was found.
        fault: String,
    },
}

/// Returns all unmet requirements; the list is empty if an orchestrator could start.
pub async fn preflight(config: &Config) -> Vec<PreflightError> {
    let mut errors = Vec::new();
    errors.extend(check_registry(&config.database).await.err());
    errors.extend(check_folder("ORCH_DATA_ROOT_PATH", &config.data_root).err());
    errors.extend(check_backend(config).await.err());
    errors
}

async fn check_registry(database: &DatabaseUrl) -> Result<(), PreflightError> {
    if let DatabaseUrl::Sqlite(path) = database
        && !check_registry_file(path)?
    {
        return Ok(());
    }
    let checked = tokio::time::timeout(CHECK_TIMEOUT, check_usable(database)).await;
    let checked =
        checked.unwrap_or_else(|_| Err(sqlx::Error::Io(io::Error::from(io::ErrorKind::TimedOut)).into()));
    checked.map_err(|error| PreflightError::Registry(OpenError::from_registry_error(database.clone(), error)))
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
    let BackendKind::Docker { socket } = &config.backend else { return Ok(()) };
    let options = docker::Options {
        socket: socket.clone(),
        network: config.engine_network.clone(),
        // Empty, because the checks look up nothing by deployment.
        deployment_id: String::new(),
        data_root: config.data_root.clone(),
        catalog: config.catalog.clone(),
        url_host: config.url_host.clone(),
        user: docker::User::for_engines(),
    };
    let backend = DockerBackend::new(options, Arc::new(SystemClock::new()));
    let check = async {
        backend.ping().await?;
        backend.check_image(&config.engine_image).await
    };
    let checked: Result<(), BackendError> = match tokio::time::timeout(CHECK_TIMEOUT, check).await {
        Ok(checked) => checked,
        Err(_) => Err(BackendError::Unreachable(format!("no answer within {} s", CHECK_TIMEOUT.as_secs()))),
    };
    checked.map_err(|error| {
        let variable = if matches!(error, BackendError::NoImage(_)) {
            "ORCH_ENGINE_IMAGE"
        } else {
            "ORCH_DOCKER_SOCKET"
        };
        PreflightError::Backend { variable, fault: error.to_string() }
    })
}
