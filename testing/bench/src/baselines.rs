//! The baseline servers: minimal programs that do the same work as Roundhouse, with the same axum and allocator.
//!
//! They run as a hidden command of this program, so a baseline is a process like the one it is compared with. Each
//! exits after a bounded time, in case nothing is left to stop it.

mod admit;
mod admit_postgres;
mod files;
mod health;
mod registry;
mod replay;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use axum::serve::ListenerExt as _;
use clap::{Args, ValueEnum};
use tokio::net::TcpListener;

pub(crate) use admit::{
    PLATFORM_KEY as ADMIT_KEY, USER_COUNT as ADMIT_USERS, insert_engines as fill_admit,
    user_name as admit_user,
};
pub(crate) use admit_postgres::{insert_engines as fill_admit_postgres, write_url as tell_postgres};
pub(crate) use files::PATH as FILE;
pub(crate) use health::health as healthy;
pub(crate) use replay::{PATH as REPLAY, store_events as store_replay};

/// Lifetime of a baseline process, longer than any measurement.
const MAX_LIFETIME: Duration = Duration::from_mins(15);

/// The kind of baseline server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BaselineKind {
    /// Axum and nothing else.
    Bare,
    /// Axum and a SQLite file.
    Sqlite,
    /// Axum and one point read for each admit.
    Admit,
    /// Axum and one indexed read of PostgreSQL for each admit.
    AdmitPostgres,
    /// Axum and the queries of the registry's other reads, on a copy of a registry.
    Registry,
    /// Axum and the stored bytes of a replay, selected page by page.
    Replay,
    /// Axum and one file, uploaded and downloaded.
    Files,
}

/// Arguments of the command that runs a baseline server.
#[derive(Args, Debug)]
pub(crate) struct BaselineArgs {
    /// The kind of server.
    #[arg(value_enum)]
    kind: BaselineKind,
    /// The port to listen on.
    #[arg(long)]
    port: u16,
    /// The folder of its database.
    #[arg(long)]
    folder: PathBuf,
}

/// Returns the command that starts a baseline from `program`, a copy of this program.
pub(crate) fn command(
    program: &Path,
    kind: BaselineKind,
    port: u16,
    folder: &Path,
) -> anyhow::Result<Command> {
    let name = kind.to_possible_value().context("every baseline has a name")?;
    let mut command = Command::new(program);
    command.env_clear().args(["floor", name.get_name(), "--port", &port.to_string(), "--folder"]).arg(folder);
    Ok(command)
}

/// Serves until the process is stopped or its lifetime ends.
pub(crate) fn run(baseline: &BaselineArgs) -> anyhow::Result<()> {
    // As many workers as an engine has.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let router = router(baseline.kind, &baseline.folder).await?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, baseline.port));
        let listener =
            TcpListener::bind(address).await.with_context(|| format!("{address} cannot be bound"))?;
        // The lifetime ended or the server failed; both end the process.
        match tokio::time::timeout(MAX_LIFETIME, serve(listener, router)).await {
            Ok(served) => Ok(served?),
            Err(_) => Ok(()),
        }
    })
}

async fn router(kind: BaselineKind, folder: &Path) -> anyhow::Result<Router> {
    match kind {
        BaselineKind::Bare => Ok(health::bare()),
        BaselineKind::Sqlite => health::sqlite(&database_file(folder)),
        BaselineKind::Admit => Ok(admit::router(&database_file(folder))?.merge(health::bare())),
        BaselineKind::AdmitPostgres => Ok(admit_postgres::router(folder).await?.merge(health::bare())),
        BaselineKind::Registry => Ok(registry::router(database_file(folder)).merge(health::bare())),
        BaselineKind::Files => Ok(files::router(folder).merge(health::bare())),
        BaselineKind::Replay => Ok(replay::router(database_file(folder))?.merge(health::bare())),
    }
}

/// Returns the database file of a baseline in `folder`.
pub(crate) fn database_file(folder: &Path) -> PathBuf {
    folder.join("baseline.sqlite")
}

pub(crate) async fn serve(listener: TcpListener, router: Router) -> std::io::Result<()> {
    let listener = listener.tap_io(|stream| {
        // Without it the kernel delays small responses; a failure would show in the results.
        let _ = stream.set_nodelay(true);
    });
    axum::serve(listener, router).await
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use api::engine::{EngineHealth, HEALTHY};
    use api::orchestrator::{Admission, Admit, PLATFORM_KEY_HEADER};
    use chaos::postgres::PostgresServer;
    use http_body_util::Full;
    use hyper::{Method, StatusCode};

    use super::*;
    use crate::client::Client;

    async fn start(kind: BaselineKind) -> (Client, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, router(kind, folder.path()).await.unwrap()));
        (Client::connect(address).await.unwrap(), folder)
    }

    #[tokio::test]
    async fn every_floor_is_well() {
        // This one also needs a PostgreSQL server.
        let standalone =
            BaselineKind::value_variants().iter().filter(|kind| **kind != BaselineKind::AdmitPostgres);
        for kind in standalone {
            let (mut client, _folder) = start(*kind).await;
            let request = client.request(Method::GET, "/health").body(Full::default()).unwrap();
            let health: EngineHealth = client.fetch_json(request).await.unwrap();
            assert_eq!(health.status, HEALTHY, "{kind:?}");
        }
    }

    #[tokio::test]
    async fn the_admit_floor_admits_whom_it_knows() {
        let (client, folder) = start(BaselineKind::Admit).await;
        let added = u32::from(ADMIT_USERS);
        fill_admit(&database_file(folder.path()), [(added, "added".to_owned())]).unwrap();
        assert_admits_known_users(client).await;
    }

    #[tokio::test]
    async fn the_floor_on_postgresql_admits_whom_it_knows() {
        if let Err(missing) = PostgresServer::programs() {
            assert!(std::env::var_os("ROUNDHOUSE_REQUIRE_ALL").is_none(), "{missing:#}");
            // Written directly to standard error, so that the test harness does not capture it.
            writeln!(std::io::stderr(), "skipped: {missing:#}").unwrap();
            return;
        }
        let server = PostgresServer::start("a-password".to_owned()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        tell_postgres(folder.path(), &server.url()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, router(BaselineKind::AdmitPostgres, folder.path()).await.unwrap()));
        let added = u32::from(ADMIT_USERS);
        fill_admit_postgres(&server.url(), [(added, "added".to_owned())]).await.unwrap();
        assert_admits_known_users(Client::connect(address).await.unwrap()).await;
    }

    async fn assert_admits_known_users(mut client: Client) {
        for (key, user, status) in [
            (ADMIT_KEY, admit_user(3), StatusCode::OK),
            (ADMIT_KEY, "added".into(), StatusCode::OK),
            (ADMIT_KEY, "nobody".into(), StatusCode::NOT_FOUND),
            ("pk-svc-wrong", admit_user(3), StatusCode::UNAUTHORIZED),
        ] {
            let body = serde_json::to_vec(&Admit::default()).unwrap();
            let request = client.request(Method::POST, &format!("/engines/{user}/admit"));
            let request = request.header(PLATFORM_KEY_HEADER, key).body(Full::from(body)).unwrap();
            let (answered, body) = client.fetch(request).await.unwrap();
            assert_eq!(answered, status);
            if status == StatusCode::OK {
                let admission: Admission = serde_json::from_slice(&body).unwrap();
                let engine = admission.engine.unwrap();
                assert_eq!(engine.summary.user_id.as_str(), user);
                assert!(admission.admitted && engine.api_key.expose().starts_with("sk-svc-"));
            }
        }
    }
}
