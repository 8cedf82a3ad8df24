//! The PostgreSQL server of a run. The orchestrator reaches it through a proxy, the harness directly.

use std::path::Path;

use super::proxy::{Proxy, ProxyMode};
use super::registry::Registry;
use crate::postgres::PostgresServer;

/// A running server with its proxy.
#[derive(Debug)]
pub(crate) struct Cluster {
    server: PostgresServer,
    proxy: Proxy,
}

/// A fault of the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DatabaseFault {
    /// An administrator restarts it, which closes all sessions.
    Restarted,
    /// It crashes and recovers.
    Crashed,
    /// All connections to it break.
    CutOff,
    /// All connections to it hold back their data.
    Hung,
}

impl DatabaseFault {
    pub(crate) const ALL: [Self; 4] = [Self::Restarted, Self::Crashed, Self::CutOff, Self::Hung];

    /// Returns the name of the fault's counter.
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
    /// Creates and starts a server and its proxy. `password` is the password of the only user.
    pub(crate) async fn start(password: String) -> anyhow::Result<Self> {
        let server = tokio::task::spawn_blocking(move || PostgresServer::start(password)).await??;
        let proxy = Proxy::start(server.socket()).await?;
        Ok(Self { server, proxy })
    }

    /// Returns the URL for the orchestrator, through the proxy.
    pub(crate) fn url(&self) -> String {
        self.server.url_at(&self.proxy.address.to_string())
    }

    /// Starts another proxy, for one of several orchestrators, and returns it with the URL that leads through it.
    pub(crate) async fn start_proxy(&self) -> anyhow::Result<(Proxy, String)> {
        let proxy = Proxy::start(self.server.socket()).await?;
        let url = self.server.url_at(&proxy.address.to_string());
        Ok((proxy, url))
    }

    /// Returns the registry as the harness reads it, without the proxy.
    pub(crate) fn registry(&self) -> Registry {
        Registry::postgres(&self.server.url())
    }

    /// Returns the server's folder.
    pub(crate) fn folder(&self) -> &Path {
        self.server.folder()
    }

    /// Injects `fault`. Blocks for the duration of a restart.
    pub(crate) fn inject(&self, fault: DatabaseFault) -> anyhow::Result<()> {
        match fault {
            DatabaseFault::Restarted => return self.server.restart(true),
            DatabaseFault::Crashed => return self.server.restart(false),
            DatabaseFault::CutOff => self.proxy.set_mode(ProxyMode::Cut),
            DatabaseFault::Hung => self.proxy.set_mode(ProxyMode::Hung),
        }
        Ok(())
    }

    /// Ends the fault.
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

    /// Returns whether a query through the proxy succeeds or fails as expected.
    async fn answers(cluster: &Cluster, expected: bool) -> bool {
        let query = async {
            let mut connection = AnyConnection::connect(&cluster.url()).await?;
            sqlx::query("SELECT 1").execute(&mut connection).await
        };
        // If no answer is expected, a short wait is enough.
        let timeout = Duration::from_secs(if expected { 60 } else { 1 });
        tokio::time::timeout(timeout, query).await.is_ok_and(|query| query.is_ok()) == expected
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_befalls_a_cluster_ends() {
        if let Err(missing) = PostgresServer::programs() {
            let must = std::env::var_os("ROUNDHOUSE_REQUIRE_ALL").is_some();
            assert!(!must, "{missing:#}");
            // Written directly to standard error, so that the test harness does not capture it.
            writeln!(std::io::stderr(), "skipped: {missing:#}").unwrap();
            return;
        }
        let password = "A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8S9t0_-x".to_owned();
        let cluster = Cluster::start(password.clone()).await.unwrap();
        let registry = cluster.registry();
        registry.wait_disconnected().await.unwrap();
        assert!(answers(&cluster, true).await);
        for fault in DatabaseFault::ALL {
            cluster.inject(fault).unwrap();
            let is_out_of_reach = matches!(fault, DatabaseFault::CutOff | DatabaseFault::Hung);
            assert!(answers(&cluster, !is_out_of_reach).await, "{fault:?}");
            cluster.heal();
            assert!(answers(&cluster, true).await, "{fault:?}");
        }
        let leaks = Secrets::new([&password]).scan_files(cluster.folder()).unwrap();
        assert_eq!(leaks, Vec::<String>::new());
        let folder = cluster.folder().to_owned();
        drop(cluster);
        assert!(!folder.exists());
    }
}
