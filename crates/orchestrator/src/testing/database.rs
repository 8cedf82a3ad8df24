//! Databases for tests: a SQLite file, or a database of the test's own on the server that
//! `ROUNDHOUSE_TEST_POSTGRES_URL` names.

use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use sqlx::any::{AnyPoolOptions, install_default_drivers};
use sqlx::{AnyPool, AssertSqlSafe, Connection as _, PgConnection};
use url::Url;

use crate::config::DatabaseUrl;

const SERVER_URL_VAR: &str = "ROUNDHOUSE_TEST_POSTGRES_URL";

/// Whether this run's registries are on PostgreSQL.
pub(crate) fn on_postgres() -> bool {
    std::env::var("ROUNDHOUSE_TEST_DATABASE").is_ok_and(|which| which == "postgres")
}

/// Whether the test, which is about SQLite and why, is left out of this run.
pub(crate) fn skip_unless_sqlite(why: &str) -> bool {
    if on_postgres() {
        print_uncaptured(&format!("skipped on PostgreSQL: this is about SQLite's {why}"));
    }
    on_postgres()
}

/// Tells why a test is left out; fails it where nothing may be left out.
pub(crate) fn skip_or_fail(what: &str) {
    assert_ne!(std::env::var("ROUNDHOUSE_REQUIRE_ALL").as_deref(), Ok("1"), "{what}");
    print_uncaptured(&format!("skipped: {what}"));
}

/// Past the test harness, which would show it to nobody.
fn print_uncaptured(line: &str) {
    writeln!(std::io::stderr().lock(), "{line}").unwrap();
}

/// A registry's database, which goes with it.
pub(crate) struct TestDatabase {
    url: DatabaseUrl,
    /// On a server: the server, and the database's name there.
    server_and_name: Option<(String, String)>,
}

impl TestDatabase {
    /// One of the kind that this run is about; a file of SQLite's goes to `folder`.
    pub(crate) async fn new(folder: &Path) -> Self {
        if on_postgres() {
            return Self::create_on_test_server().await.expect("a run on PostgreSQL has a server");
        }
        Self { url: DatabaseUrl::Sqlite(folder.join("registry.db")), server_and_name: None }
    }

    /// One on the server; none, with the reason told, if there is no server.
    pub(crate) async fn create_on_test_server() -> Option<Self> {
        let Ok(server) = std::env::var(SERVER_URL_VAR) else {
            skip_or_fail(&format!("{SERVER_URL_VAR} is not set"));
            return None;
        };
        Some(Self::create_on(&server).await)
    }

    /// One on the server of this URL.
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

    /// The database by way of another port of this machine.
    pub(crate) fn url_via_port(&self, port: u16) -> DatabaseUrl {
        let (server, name) = self.server_and_name.as_ref().expect("a file has no port");
        let mut url = Url::parse(server).unwrap();
        url.set_port(Some(port)).unwrap();
        url.set_host(Some("127.0.0.1")).unwrap();
        DatabaseUrl::parse(&with_database(url.as_str(), name)).unwrap()
    }

    /// Where its server listens.
    pub(crate) fn address(&self) -> String {
        let (server, _) = self.server_and_name.as_ref().expect("a file has no address");
        let url = Url::parse(server).unwrap();
        format!("{}:{}", url.host_str().expect("a host"), url.port().unwrap_or(5_432))
    }

    /// A connection beside the registry's.
    pub(crate) async fn pool(&self) -> AnyPool {
        pool(&self.url).await
    }
}

/// A connection to `url` beside the registry's.
pub(crate) async fn pool(url: &DatabaseUrl) -> AnyPool {
    install_default_drivers();
    let url = match url {
        DatabaseUrl::Sqlite(path) => format!("sqlite://{}", path.display()),
        DatabaseUrl::Postgres(url) => url.expose().to_owned(),
    };
    let check_target = AnyPoolOptions::new().acquire_timeout(Duration::from_mins(1)).max_connections(2);
    check_target.connect(&url).await.unwrap()
}

/// `server`, with another database in place of the one that it names.
fn with_database(server: &str, name: &str) -> String {
    let mut url = Url::parse(server).unwrap();
    url.set_path(name);
    url.into()
}

/// Has the server do something outside any transaction.
pub(crate) async fn execute_on_server(server: &str, command: &str) {
    let mut connection = PgConnection::connect(server).await.expect("the server of the tests answers");
    sqlx::raw_sql(AssertSqlSafe(command.to_owned())).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        let Some((server, name)) = self.server_and_name.take() else { return };
        // A test's own runtime may be ending.
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let Ok(mut connection) = PgConnection::connect(&server).await else { return };
                let drop = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
                let _ = sqlx::raw_sql(AssertSqlSafe(drop)).execute(&mut connection).await;
            });
        });
        let _ = dropping.join();
    }
}
