//! PostgreSQL through `psql`: a database for each story, and queries on it.

use std::process::{Command, Output};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use super::skip;

/// A database of one story; dropping this drops it.
#[derive(Debug)]
pub(crate) struct PostgresDatabase {
    server: String,
    pub(crate) name: String,
}

impl PostgresDatabase {
    /// Creates a database on the server that `ROUNDHOUSE_TEST_POSTGRES_URL` names; skips the story and returns
    /// `None` if there is no server.
    pub(crate) fn local() -> Option<Self> {
        static FOUND: OnceLock<Result<String, String>> = OnceLock::new();
        let found = FOUND.get_or_init(|| {
            let url = std::env::var("ROUNDHOUSE_TEST_POSTGRES_URL").unwrap_or_default();
            if url.is_empty() {
                return Err("ROUNDHOUSE_TEST_POSTGRES_URL names no server".to_owned());
            }
            query(&url, "SELECT 1").map(|_| url)
        });
        match found {
            Ok(url) => Some(Self::create_on(url)),
            Err(reason) => {
                skip(&format!("a PostgreSQL server: {reason}"));
                None
            }
        }
    }

    /// Creates a database on the server of this URL.
    pub(crate) fn create_on(server: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("roundhouse_e2e_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        // A killed run whose process had the same id may have left one.
        let drop = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
        query(server, &drop).unwrap();
        query(server, &format!("CREATE DATABASE {name}")).unwrap();
        Self { server: server.to_owned(), name }
    }

    /// The URL of the database.
    pub(crate) fn url(&self) -> String {
        with_database(&self.server, &self.name)
    }

    /// The result of a statement that is run in the database.
    #[track_caller]
    pub(crate) fn query(&self, statement: &str) -> String {
        self.try_query(statement).unwrap_or_else(|error| panic!("{statement}: {error}"))
    }

    /// The result of a statement, or its error.
    pub(crate) fn try_query(&self, statement: &str) -> Result<String, String> {
        query(&self.url(), statement)
    }

    /// The result of a statement that is run on the server, outside the database.
    #[track_caller]
    pub(crate) fn query_server(&self, statement: &str) -> String {
        query(&self.server, statement).unwrap_or_else(|error| panic!("{statement}: {error}"))
    }
}

impl Drop for PostgresDatabase {
    fn drop(&mut self) {
        let _ = query(&self.server, &format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name));
    }
}

/// `url` with another database.
fn with_database(url: &str, name: &str) -> String {
    let (rest, parameters) = match url.split_once('?') {
        Some((rest, parameters)) => (rest, format!("?{parameters}")),
        None => (url, String::new()),
    };
    let (scheme, rest) = rest.split_once("://").expect("a URL");
    let server = rest.split('/').next().unwrap_or_default();
    format!("{scheme}://{server}/{name}{parameters}")
}

/// Runs a statement on a database. The result has a line for each row, with columns separated by `|`.
fn query(url: &str, statement: &str) -> Result<String, String> {
    let output = Command::new("timeout")
        .args(["30", "psql", "--no-psqlrc", "--quiet", "--tuples-only", "--no-align"])
        .args(["--set", "ON_ERROR_STOP=1", "--dbname", url, "--command", statement])
        .env("PGCONNECT_TIMEOUT", "10")
        .output();
    let Output { status, stdout, stderr } = output.map_err(|error| format!("psql: {error}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if status.success() { Ok(text(&stdout)) } else { Err(text(&stderr)) }
}
