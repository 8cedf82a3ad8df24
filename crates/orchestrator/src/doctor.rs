//! `roundhouse doctor`: examines a deployment and its host, and reports what an operator should look at. It changes
//! nothing, and may run while an orchestrator runs.

mod data;
mod host;

use std::fs;
use std::io;
use std::path::PathBuf;

use http_service::clock::{Clock as _, SystemClock};
use http_service::env::{ConfigErrors, Env, EnvReader};

use crate::config::{BackendKind, Config, DatabaseUrl, read_data_root};
use crate::preflight::{PreflightError, preflight};
use crate::registry::{Inventory, OpenRegistryError, inventory};

/// The scope of the examination.
#[derive(Debug)]
pub struct Doctor {
    /// The registry's database.
    database: DatabaseUrl,
    /// The folder that contains the engines' folders; `None` if their data is not on this host.
    data_root: Option<PathBuf>,
    /// Whether engines run in containers of this host.
    uses_containers: bool,
    configuration: Configuration,
}

/// The orchestrator's configuration, as far as this process has it.
#[derive(Debug)]
enum Configuration {
    Read(Box<Config>),
    Invalid(ConfigErrors),
    /// Its keys are not set, so this is not the orchestrator's environment.
    Elsewhere,
}

/// One part of a deployment or its host, and what was found there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What was examined, in one word.
    pub subject: &'static str,
    /// What was found.
    pub outcome: Outcome,
}

/// What was found. The texts are for the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing to do; with a remark.
    Passed(String),
    /// What a person should look at: what is wrong, where, and what to do.
    Found(Vec<String>),
    /// It was not examined, for this reason.
    Skipped(String),
}

impl Check {
    /// The result of an examination that found `found`, or else nothing, with `remark`.
    pub fn new(subject: &'static str, found: Vec<String>, remark: impl Into<String>) -> Self {
        let outcome = if found.is_empty() { Outcome::Passed(remark.into()) } else { Outcome::Found(found) };
        Self { subject, outcome }
    }

    /// An examination that was not made.
    pub fn skipped(subject: &'static str, reason: impl Into<String>) -> Self {
        Self { subject, outcome: Outcome::Skipped(reason.into()) }
    }
}

/// Why nothing could be examined. The text is for the operator.
#[derive(Debug, thiserror::Error)]
pub enum DoctorError {
    /// The registry cannot be read.
    #[error("the registry {database} cannot be read: check ORCH_DATABASE_URL")]
    Registry {
        /// The registry.
        database: DatabaseUrl,
        /// The underlying error.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The database is not a registry, or one of a later version.
    #[error("{database} is not a registry, or was created by a later version of roundhouse")]
    NotARegistry {
        /// The database in question.
        database: DatabaseUrl,
    },
    /// The engines' folders cannot be listed.
    #[error("the folder {folder} (ORCH_DATA_ROOT_PATH) cannot be read")]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// The error of the listing.
        #[source]
        source: io::Error,
    },
}

impl Doctor {
    /// Reads `ORCH_DATABASE_URL`, `ORCH_DATA_ROOT_PATH` and `ORCH_BACKEND`, and all other variables of the orchestrator if
    /// its keys are set.
    pub fn from_env(env: &dyn Env) -> Result<Self, ConfigErrors> {
        let mut reader = EnvReader::new(env);
        let database = DatabaseUrl::read(&mut reader);
        let backend = BackendKind::read(&mut reader);
        let uses_containers = matches!(backend, BackendKind::Docker { .. });
        let is_elsewhere = matches!(backend, BackendKind::Kubernetes(_));
        let data_root = if is_elsewhere { None } else { Some(read_data_root(&mut reader)) };
        let has_keys = ["ORCH_MASTER_KEY", "ORCH_ADMIN_KEY"].iter().any(|name| env.get(name).is_some());
        let configuration = match has_keys.then(|| Config::from_env(env)) {
            None => Configuration::Elsewhere,
            Some(Ok(config)) => Configuration::Read(Box::new(config)),
            Some(Err(errors)) => Configuration::Invalid(errors),
        };
        let doctor = database.map(|database| Self { database, data_root, uses_containers, configuration });
        reader.finish(doctor)
    }

    /// Whether programs of tools run on this host.
    pub const fn runs_tools_here(&self) -> bool {
        self.data_root.is_some()
    }

    /// Examines the deployment and this host.
    ///
    /// # Errors
    ///
    /// Returns a [`DoctorError`] if the registry or the engines' folders cannot be read.
    pub async fn run(&self) -> Result<Vec<Check>, DoctorError> {
        // The folders before the registry: an engine created meanwhile gets its row first.
        let folders = self.data_root.as_deref().map(data::engine_folders).transpose()?;
        let known = self.inventory().await?;
        let mut found = Vec::new();
        if let (Some(data_root), Some(folders)) = (&self.data_root, folders) {
            found = data::compare(data_root, folders, &known)?;
        }
        let engines = known.engines.len();
        let remark = format!("{engines} engines in the registry, and {}", self.describe_data());
        let mut checks = self.check_configuration().await;
        checks.push(Check::new("data", found.iter().map(ToString::to_string).collect(), remark));
        checks.push(host::check_disks(&self.folders()));
        let now = SystemClock::new().now();
        checks.push(host::check_clock(now, known.database_time, known.last_change_at));
        checks.push(self.check_ports());
        checks.push(host::check_certificates());
        Ok(checks)
    }

    fn describe_data(&self) -> String {
        match &self.data_root {
            Some(data_root) => format!("the data of those in {}", data_root.display()),
            None => "their data is not on this host".to_owned(),
        }
    }

    /// Checks the variables, and what they name.
    async fn check_configuration(&self) -> Vec<Check> {
        const SUBJECTS: [&str; 4] = ["registry", "folders", "backend", "backups"];
        let (first, reason) = match &self.configuration {
            Configuration::Read(config) => {
                let found = preflight(config).await;
                let of = |subject| {
                    let errors = found.errors.iter().filter(|error| error.subject() == subject);
                    errors.map(describe).collect()
                };
                let warnings = config.warnings.iter().map(|&warning| warning.to_owned()).collect();
                let remarks = SUBJECTS.map(|subject| match subject {
                    "registry" => found.registry.clone().unwrap_or_default(),
                    "backups" if config.backups.is_none() => "not configured (ORCH_BACKUP_URL)".to_owned(),
                    _ => "can be used".to_owned(),
                });
                let first = Check::new("variables", warnings, "each has a value that can be used");
                let others = SUBJECTS.into_iter().zip(remarks);
                let others = others.map(|(subject, remark)| Check::new(subject, of(subject), remark));
                return std::iter::once(first).chain(others).collect();
            }
            Configuration::Invalid(errors) => {
                let found = Check::new("variables", vec![errors.to_string()], "");
                (found, "the variables have to be right first")
            }
            Configuration::Elsewhere => {
                let reason =
                    "the orchestrator's keys are not set here: run it with the orchestrator's environment";
                (Check::skipped("variables", reason), reason)
            }
        };
        let others = SUBJECTS.map(|subject| match subject {
            "registry" => Check::new(subject, Vec::new(), "can be read"),
            _ => Check::skipped(subject, reason),
        });
        std::iter::once(first).chain(others).collect()
    }

    /// The folders of this host that grow.
    fn folders(&self) -> Vec<(&'static str, PathBuf)> {
        let registry = match &self.database {
            DatabaseUrl::Sqlite(path) => Some(("ORCH_DATABASE_URL", path.clone())),
            DatabaseUrl::Postgres(_) => None,
        };
        let data = self.data_root.clone().map(|folder| ("ORCH_DATA_ROOT_PATH", folder));
        let backups = match &self.configuration {
            Configuration::Read(config) => {
                let folder = config.backups.as_ref().and_then(|backups| backups.target.folder());
                folder.map(|folder| ("ORCH_BACKUP_URL", folder))
            }
            Configuration::Invalid(_) | Configuration::Elsewhere => None,
        };
        registry.into_iter().chain(data).chain(backups).collect()
    }

    /// Checks that nothing but engines gets their ports, and that containers reach no service of the host.
    fn check_ports(&self) -> Check {
        let mut found = Vec::new();
        if self.uses_containers {
            found.extend(data::open_to_containers().map(|finding| finding.to_string()));
        }
        let Configuration::Read(config) = &self.configuration else {
            return Check::new("ports", found, "no service is open to containers");
        };
        if config.backend.runs_on_this_machine() {
            found.extend(host::check_port_range(config.ports));
        }
        Check::new("ports", found, "the engines' ports are theirs")
    }

    async fn inventory(&self) -> Result<Inventory, DoctorError> {
        let database = || self.database.clone();
        let unreadable = |source| DoctorError::Registry { database: database(), source };
        // SQLite does not report why it cannot open a file.
        if let DatabaseUrl::Sqlite(path) = &self.database {
            fs::File::open(path).map_err(|error| unreadable(error.into()))?;
        }
        match inventory(&self.database).await {
            Ok(Some(inventory)) => Ok(inventory),
            Ok(None) | Err(OpenRegistryError::Corrupt(_)) => {
                Err(DoctorError::NotARegistry { database: database() })
            }
            Err(error) => Err(unreadable(error.into())),
        }
    }
}

/// The text of an error, with its causes.
fn describe(error: &PreflightError) -> String {
    let causes = std::iter::successors(std::error::Error::source(error), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
