//! The backend and the database of a deployment. Stories about orchestrators in general are the same for every
//! combination; `ROUNDHOUSE_TEST_BACKEND` and `ROUNDHOUSE_TEST_DATABASE` choose it.

use std::env;

/// Where engines run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    Process,
    Docker,
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
            Ok(other) => panic!("ROUNDHOUSE_TEST_BACKEND is {other:?}, and must be `process` or `docker`"),
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
