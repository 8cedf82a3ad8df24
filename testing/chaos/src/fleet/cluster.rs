//! The PostgreSQL server of a run, reached by the orchestrator through a proxy, by the harness directly.

use std::path::Path;

use super::proxy::{Proxy, ProxyMode};
use super::registry::Registry;
use crate::postgres::PostgresServer;

/// See the module.
#[derive(Debug)]
pub(crate) struct Cluster {
    server: PostgresServer,
    proxy: Proxy,
}

/// What befalls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DatabaseFault {
    /// Its administrator restarts it, which ends all sessions.
    Restarted,
    /// It crashes and recovers.
    Crashed,
    /// The network to it breaks.
    CutOff,
    /// The network to it keeps everything to itself.
    Hung,
}

impl DatabaseFault {
    pub(crate) const ALL: [Self; 4] = [Self::Restarted, Self::Crashed, Self::CutOff, Self::Hung];

    /// Its count.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Restarted => "PostgreSQL restarted",
            Self::Crashed => "PostgreSQL crashed",
            Self::CutOff => "PostgreSQL cut off",
            Self::Hung => "PostgreSQL hung",
        }
    }
}

impl Cluster {
    /// Makes one and starts it. `password` is that of its only user.
    pub(crate) async fn start(password: String) -> anyhow::Result<Self> {
        let server = tokio::task::spawn_blocking(move || PostgresServer::start(password)).await??;
        let proxy = Proxy::start(server.socket()).await?;
        Ok(Self { server, proxy })
    }

    /// What the orchestrator is told.
    pub(crate) fn url(&self) -> String {
        self.server.url_at(&self.proxy.address.to_string())
    }

    /// What the harness reads.
    pub(crate) fn registry(&self) -> Registry {
        Registry::postgres(&self.server.url())
    }

    /// Its folder.
    pub(crate) fn folder(&self) -> &Path {
        self.server.folder()
    }

    /// Begins `trouble`. Blocks as long as a restart takes.
    pub(crate) fn inject(&self, trouble: DatabaseFault) -> anyhow::Result<()> {
        match trouble {
            DatabaseFault::Restarted => return self.server.restart(true),
            DatabaseFault::Crashed => return self.server.restart(false),
            DatabaseFault::CutOff => self.proxy.set_mode(ProxyMode::Cut),
            DatabaseFault::Hung => self.proxy.set_mode(ProxyMode::Hung),
        }
        Ok(())
    }

    /// Ends whatever trouble there is.
    pub(crate) fn heal(&self) {
        self.proxy.set_mode(ProxyMode::Open);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::time::Duration;

    use sqlx::{AnyConnection, Connection as _};

    use super::*;
    use crate::fleet::secrets::Secrets;

    /// Whether a query through the proxy is answered, or not answered, as it must be.
    async fn answers(cluster: &Cluster, expected: bool) -> bool {
        let asked = async {
            let mut connection = AnyConnection::connect(&cluster.url()).await?;
            sqlx::query("SELECT 1").execute(&mut connection).await
        };
        // Where nothing answers nothing is missed by a short wait.
        let patience = Duration::from_secs(if expected { 60 } else { 1 });
        tokio::time::timeout(patience, asked).await.is_ok_and(|asked| asked.is_ok()) == expected
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_befalls_a_cluster_ends() {
        if let Err(missing) = PostgresServer::programs() {
            let must = std::env::var_os("ROUNDHOUSE_REQUIRE_ALL").is_some();
            assert!(!must, "{missing:#}");
            // Written past the test's capture, so that a skip is seen.
            writeln!(std::io::stderr(), "skipped: {missing:#}").unwrap();
            return;
        }
        let password = "A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8S9t0_-x".to_owned();
        let cluster = Cluster::start(password.clone()).await.unwrap();
        let registry = cluster.registry();
        registry.wait_disconnected().await.unwrap();
        assert!(answers(&cluster, true).await);
        for trouble in DatabaseFault::ALL {
            cluster.inject(trouble).unwrap();
            let is_out_of_reach = matches!(trouble, DatabaseFault::CutOff | DatabaseFault::Hung);
            assert!(answers(&cluster, !is_out_of_reach).await, "{trouble:?}");
            cluster.heal();
            assert!(answers(&cluster, true).await, "{trouble:?}");
        }
        let leaks = Secrets::new([&password]).scan_files(cluster.folder()).unwrap();
        assert_eq!(leaks, Vec::<String>::new());
        let folder = cluster.folder().to_owned();
        drop(cluster);
        assert!(!folder.exists());
    }
}
