//! Databases for tests: a SQLite file, or a separate database on the server that `ROUNDHOUSE_TEST_POSTGRES_URL`
//! names.

use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use sqlx::any::{AnyPoolOptions, install_default_drivers};
use sqlx::{AnyPool, AssertSqlSafe, Connection as _, PgConnection};
use url::Url;

use crate::config::DatabaseUrl;

const SERVER_URL_VAR: &str = "ROUNDHOUSE_TEST_POSTGRES_URL";

/// Whether the registries of this test run are on PostgreSQL.
pub(crate) fn on_postgres() -> bool {
    std::env::var("ROUNDHOUSE_TEST_DATABASE").is_ok_and(|which| which == "postgres")
}

/// Whether to skip a test that applies to SQLite only. `why` names the property of SQLite that it tests.
pub(crate) fn skip_unless_sqlite(why: &str) -> bool {
    if on_postgres() {
        print_uncaptured(&format!("skipped on PostgreSQL: this tests SQLite's {why}"));
    }
    on_postgres()
}

/// Prints why a test is skipped; fails it if `ROUNDHOUSE_REQUIRE_ALL` is `1`.
pub(crate) fn skip_or_fail(reason: &str) {
    assert_ne!(std::env::var("ROUNDHOUSE_REQUIRE_ALL").as_deref(), Ok("1"), "{reason}");
    print_uncaptured(&format!("skipped: {reason}"));
}

/// Writes to standard error directly, because the test harness captures `eprintln!`.
fn print_uncaptured(line: &str) {
    writeln!(std::io::stderr().lock(), "{line}").unwrap();
}

/// A registry's database, which is dropped with this value.
pub(crate) struct TestDatabase {
    url: DatabaseUrl,
    /// The server's URL and the database's name; `None` for SQLite.
    server_and_name: Option<(String, String)>,
}

impl TestDatabase {
    /// Creates a database of this test run's kind; a SQLite file is created in `folder`.
    pub(crate) async fn new(folder: &Path) -> Self {
        if on_postgres() {
            return Self::create_on_test_server().await.expect("a run on PostgreSQL needs a server");
        }
        Self { url: DatabaseUrl::Sqlite(folder.join("registry.db")), server_and_name: None }
    }

    /// Creates a database on the test server. Returns `None` and prints the reason if there is no server.
    pub(crate) async fn create_on_test_server() -> Option<Self> {
        let Ok(server) = std::env::var(SERVER_URL_VAR) else {
            skip_or_fail(&format!("{SERVER_URL_VAR} is not set"));
            return None;
        };
        Some(Self::create_on(&server).await)
    }

    /// Creates a database on the server of this URL.
    pub(crate) async fn create_on(server: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        install_default_drivers();
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("test_{}_{number}_{:08x}", std::process::id(), getrandom::u32().unwrap());
        execute_on_server(server, &format!("CREATE DATABASE {name}")).await;
        let url = with_database(server, &name);
        Self { url: DatabaseUrl::parse(&url).unwrap(), server_and_name: Some((server.to_owned(), name)) }
    }

    pub(crate) const fn url(&self) -> &DatabaseUrl {
        &self.url
    }

    /// Returns the URL of the database through another port of this machine, such as a proxy's.
    pub(crate) fn url_via_port(&self, port: u16) -> DatabaseUrl {
        let (server, name) = self.server_and_name.as_ref().expect("a SQLite file has no port");
        let mut url = Url::parse(server).unwrap();
        url.set_port(Some(port)).unwrap();
        url.set_host(Some("127.0.0.1")).unwrap();
        DatabaseUrl::parse(&with_database(url.as_str(), name)).unwrap()
    }

    /// Returns the server's address, as `host:port`.
    pub(crate) fn address(&self) -> String {
        let (server, _) = self.server_and_name.as_ref().expect("a SQLite file has no address");
        let url = Url::parse(server).unwrap();
        format!("{}:{}", url.host_str().expect("a host"), url.port().unwrap_or(5_432))
    }

    /// Opens a connection that is separate from the registry's.
    pub(crate) async fn pool(&self) -> AnyPool {
        pool(&self.url).await
    }
}

/// Opens a connection to `url` that is separate from the registry's.
pub(crate) async fn pool(url: &DatabaseUrl) -> AnyPool {
    install_default_drivers();
    let url = match url {
        DatabaseUrl::Sqlite(path) => format!("sqlite://{}", path.display()),
        DatabaseUrl::Postgres(url) => url.expose().to_owned(),
    };
    let options = AnyPoolOptions::new().acquire_timeout(Duration::from_mins(1)).max_connections(2);
    options.connect(&url).await.unwrap()
}

/// Returns the URL `server` with its database replaced by `name`.
fn with_database(server: &str, name: &str) -> String {
    let mut url = Url::parse(server).unwrap();
    url.set_path(name);
    url.into()
}

/// Executes `command` on the server, outside any transaction.
pub(crate) async fn execute_on_server(server: &str, command: &str) {
    let mut connection = PgConnection::connect(server).await.expect("the test server is unreachable");
    sqlx::raw_sql(AssertSqlSafe(command.to_owned())).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        let Some((server, name)) = self.server_and_name.take() else { return };
        // On a thread of its own, because the test's runtime may be shutting down.
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let Ok(mut connection) = PgConnection::connect(&server).await else { return };
                let statement = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
                let _ = sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut connection).await;
            });
        });
        let _ = thread.join();
    }
}
