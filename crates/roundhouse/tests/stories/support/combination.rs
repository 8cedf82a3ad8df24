//! What a deployment is made of: where its engines live, and where its registry. The stories about orchestrators in
//! general are the same for all of it: `ROUNDHOUSE_TEST_BACKEND` and `ROUNDHOUSE_TEST_DATABASE` choose.

use std::env;

/// Where engines live.
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
    /// What this run of the stories was asked for.
    pub(crate) fn from_env() -> Self {
        match env::var("ROUNDHOUSE_TEST_BACKEND").as_deref() {
            Err(_) | Ok("" | "process") => Self::Process,
            Ok("docker") => Self::Docker,
            Ok(other) => panic!("ROUNDHOUSE_TEST_BACKEND is {other:?}, and must be `process` or `docker`"),
        }
    }
}

impl Database {
    /// What this run of the stories was asked for.
    pub(crate) fn from_env() -> Self {
        match env::var("ROUNDHOUSE_TEST_DATABASE").as_deref() {
            Err(_) | Ok("" | "sqlite") => Self::Sqlite,
            Ok("postgres") => Self::Postgres,
            Ok(other) => panic!("ROUNDHOUSE_TEST_DATABASE is {other:?}, and must be `sqlite` or `postgres`"),
        }
    }
}
