//! The backend and the database of a deployment. Stories about orchestrators in general are the same for every
//! combination; `ROUNDHOUSE_TEST_BACKEND` and `ROUNDHOUSE_TEST_DATABASE` choose it.

use std::env;

/// Where engines run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    Process,
    Docker,
    Kubernetes,
}

/// Where the registry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Database {
    Sqlite,
    Postgres,
}

impl Backend {
    /// The choice of this test run.
    pub(crate) fn from_env() -> Self {
        match env::var("ROUNDHOUSE_TEST_BACKEND").as_deref() {
            Err(_) | Ok("" | "process") => Self::Process,
            Ok("docker") => Self::Docker,
            Ok("kubernetes") => Self::Kubernetes,
            Ok(other) => {
                panic!(
                    "ROUNDHOUSE_TEST_BACKEND is {other:?}, and must be `process`, `docker` or `kubernetes`"
                )
            }
        }
    }
}

impl Backend {
    /// How much longer than a process an engine may take to start. The times that stories give their deployments are
    /// multiplied by it.
    pub(crate) const fn slowness(self) -> f64 {
        match self {
            Self::Process | Self::Docker => 1.0,
            Self::Kubernetes => 5.0,
        }
    }
}

impl Database {
    /// The choice of this test run.
    pub(crate) fn from_env() -> Self {
        match env::var("ROUNDHOUSE_TEST_DATABASE").as_deref() {
            Err(_) | Ok("" | "sqlite") => Self::Sqlite,
            Ok("postgres") => Self::Postgres,
            Ok(other) => panic!("ROUNDHOUSE_TEST_DATABASE is {other:?}, and must be `sqlite` or `postgres`"),
        }
    }
}
