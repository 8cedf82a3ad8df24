//! `roundhouse orchestrator --check`: checks that everything the configuration names exists and is usable. It
//! only reads, may run beside a running orchestrator, and creates nothing.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http_service::clock::SystemClock;
use rustix::fs::{Access, access};
use rustix::io::Errno;

use crate::OpenError;
use crate::backend::docker::{self, DockerBackend};
use crate::backend::{BackendError, EngineBackend as _};
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
        "{folder} ({variable}) cannot be used: it must be a folder that this user can write to, or one that can be made"
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
    let mut lacks = Vec::new();
    lacks.extend(check_registry(&config.database).await.err());
    lacks.extend(check_folder("ORCH_DATA_ROOT_PATH", &config.data_root).err());
    lacks.extend(check_backend(config).await.err());
    lacks
}

async fn check_registry(database: &DatabaseUrl) -> Result<(), PreflightError> {
    if let DatabaseUrl::Sqlite(path) = database
        && !check_registry_file(path)?
    {
        return Ok(());
    }
    let looked = tokio::time::timeout(CHECK_TIMEOUT, check_usable(database)).await;
    let looked =
        looked.unwrap_or_else(|_| Err(sqlx::Error::Io(io::Error::from(io::ErrorKind::TimedOut)).into()));
    looked.map_err(|error| PreflightError::Registry(OpenError::from_registry_error(database.clone(), error)))
}

/// Returns whether the registry's file exists. It and the files beside it while it is in use must be writable
/// where they exist, and their folder too.
fn check_registry_file(path: &Path) -> Result<bool, PreflightError> {
    const DATABASE_VARIABLE: &str = "ORCH_DATABASE_URL";
    let lack = |file: PathBuf, source: io::Error| PreflightError::RegistryFile { file, source };
    let file = std::path::absolute(path).map_err(|error| lack(path.to_owned(), error))?;
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
            Err(errno) => return Err(lack(name.into(), errno.into())),
        }
    }
    Ok(file.exists())
}

/// Checks that `folder` can be written to or, if it does not exist, created.
fn check_folder(variable: &'static str, folder: &Path) -> Result<(), PreflightError> {
    let lack = |source| PreflightError::Folder { variable, folder: folder.to_owned(), source };
    let absolute = std::path::absolute(folder).map_err(lack)?;
    for existing in absolute.ancestors() {
        match existing.metadata() {
            Ok(found) if found.is_dir() => {
                let needed = Access::WRITE_OK | Access::EXEC_OK;
                return access(existing, needed).map_err(|errno| lack(errno.into()));
            }
            Ok(_) => return Err(lack(io::Error::from(io::ErrorKind::NotADirectory))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(lack(error)),
        }
    }
    Ok(())
}

async fn check_backend(config: &Config) -> Result<(), PreflightError> {
    let BackendKind::Docker { socket } = &config.backend else { return Ok(()) };
    let options = docker::Options {
        socket: socket.clone(),
        network: config.engine_network.clone(),
        // Belongs to no deployment: it is not used for any lookup.
        deployment_id: String::new(),
        data_root: config.data_root.clone(),
        catalog: config.catalog.clone(),
        user: docker::User::for_engines(),
    };
    let backend = DockerBackend::new(options, Arc::new(SystemClock::new()));
    let look = async {
        backend.ping().await?;
        backend.check_image(&config.engine_image).await
    };
    let looked: Result<(), BackendError> = match tokio::time::timeout(CHECK_TIMEOUT, look).await {
        Ok(looked) => looked,
        Err(_) => Err(BackendError::Unreachable(format!("no answer within {} s", CHECK_TIMEOUT.as_secs()))),
    };
    looked.map_err(|error| {
        let variable = if matches!(error, BackendError::NoImage(_)) {
            "ORCH_ENGINE_IMAGE"
        } else {
            "ORCH_DOCKER_SOCKET"
        };
        PreflightError::Backend { variable, fault: error.to_string() }
    })
}
