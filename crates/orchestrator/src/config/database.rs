//! The address of the registry's database.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr as _;
use std::sync::Arc;

use http_service::env::EnvReader;
use secrecy::{ExposeSecret as _, SecretString};
use sqlx::postgres::PgConnectOptions;

/// The registry's database. Its `Display` and `Debug` output contain no secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DatabaseUrl {
    /// A SQLite file; created if it is missing.
    Sqlite(PathBuf),
    /// A database of a PostgreSQL server.
    Postgres(PostgresUrl),
}

impl DatabaseUrl {
    /// Parses `sqlite:<path>` or `postgres://…`. An in-memory SQLite database is refused, because the registry
    /// must be persistent.
    pub fn parse(text: &str) -> Option<Self> {
        if let Some(url) = PostgresUrl::parse(text) {
            return Some(Self::Postgres(url));
        }
        let path = text.strip_prefix("sqlite:")?;
        let path = path.strip_prefix("//").unwrap_or(path);
        let is_file_path = !path.is_empty() && !path.starts_with(':') && !path.contains(['?', '\0']);
        is_file_path.then(|| Self::Sqlite(PathBuf::from(path)))
    }

    /// Reads `ORCH_DATABASE_URL`.
    pub fn read(reader: &mut EnvReader<'_>) -> Option<Self> {
        reader.required_secret(
            "ORCH_DATABASE_URL",
            "sqlite:<path of a file>, such as sqlite:/var/lib/roundhouse/registry.db, or \
             postgres://<user>:<password>@<host>/<database>",
            Self::parse,
        )
    }
}

impl fmt::Display for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => path.display().fmt(f),
            Self::Postgres(url) => url.fmt(f),
        }
    }
}

/// The parameters that are accepted after the `?` of a PostgreSQL URL.
const POSTGRES_PARAMETERS: [&str; 11] = [
    "application_name",
    "dbname",
    "host",
    "hostaddr",
    "options",
    "password",
    "port",
    "sslcert",
    "sslkey",
    "sslmode",
    "sslrootcert",
];

/// The address of a PostgreSQL database. Its password is never shown.
#[derive(Clone)]
pub struct PostgresUrl {
    text: Arc<SecretString>,
    redacted: String,
}

impl PostgresUrl {
    fn parse(text: &str) -> Option<Self> {
        if !text.starts_with("postgres://") && !text.starts_with("postgresql://") {
            return None;
        }
        // The driver would ignore an unknown parameter with a warning that shows its value.
        let query = text.split_once('?').map_or("", |(_, query)| query);
        let known =
            |parameter: &str| POSTGRES_PARAMETERS.contains(&parameter.split('=').next().unwrap_or_default());
        if !query.split('&').filter(|parameter| !parameter.is_empty()).all(known) {
            return None;
        }
        let options = PgConnectOptions::from_str(text).ok()?;
        let server = match options.get_socket() {
            Some(folder) => folder.display().to_string(),
            None => format!("{}:{}", options.get_host(), options.get_port()),
        };
        let user = options.get_username();
        // The default database of a user has the user's name.
        let database = options.get_database().unwrap_or(user);
        let redacted = format!("postgres://{user}@{server}/{database}");
        Some(Self { text: Arc::new(SecretString::from(text)), redacted })
    }

    /// The complete URL, including the password.
    pub(crate) fn expose(&self) -> &str {
        self.text.expose_secret()
    }
}

impl fmt::Display for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.redacted)
    }
}

impl fmt::Debug for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PostgresUrl").field(&self.redacted).finish()
    }
}

impl PartialEq for PostgresUrl {
    fn eq(&self, other: &Self) -> bool {
        self.expose() == other.expose()
    }
}

impl Eq for PostgresUrl {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registry_is_a_file_or_a_database_of_a_server() {
        for (text, path) in [
            ("sqlite:/a/b.db", "/a/b.db"),
            ("sqlite:///a/b.db", "/a/b.db"),
            ("sqlite:b.db", "b.db"),
            ("sqlite://b.db", "b.db"),
        ] {
            assert_eq!(DatabaseUrl::parse(text), Some(DatabaseUrl::Sqlite(path.into())), "{text}");
        }
        for (text, shown) in [
            ("postgres://ann@h:1/d", "postgres://ann@h:1/d"),
            ("postgresql://ann@h:1/d", "postgres://ann@h:1/d"),
            ("postgres://ann@%2Frun%2Fpg/d", "postgres://ann@/run/pg/d"),
            ("postgres://ann@h:1/d?sslmode=require", "postgres://ann@h:1/d"),
        ] {
            assert_eq!(DatabaseUrl::parse(text).unwrap().to_string(), shown, "{text}");
        }
        for text in [
            "",
            "sqlite:",
            "sqlite::memory:",
            "sqlite:a?mode=ro",
            "/a/b.db",
            "postgres:",
            "postgres://h:x/d",
            "postgres://h/d?sslmode=maybe",
            "postgres://h/d?sslmod=verify-full",
            "postgres://h/d?sslmode=require&sslpassword=hunter2",
            "mysql://h/d",
        ] {
            assert_eq!(DatabaseUrl::parse(text), None, "{text}");
        }
    }

    #[test]
    fn no_password_is_shown() {
        let url = DatabaseUrl::parse("postgres://ann:hunter2@h:1/d?sslmode=require").unwrap();
        let shown = format!("{url} {url:?}");
        assert!(shown.contains("ann@h:1/d") && !shown.contains("hunter2"), "{shown}");
    }
}
