//! The PostgreSQL server of a run, reached by the orchestrator through a proxy, by the harness directly.

use std::path::Path;

use super::proxy::{Mode, Proxy};
use super::registry::Registry;
use crate::postgres::Server;

/// See the module.
#[derive(Debug)]
pub(crate) struct Cluster {
    server: Server,
    proxy: Proxy,
}

/// What befalls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// Its administrator restarts it, which ends all sessions.
    Restarted,
    /// It crashes and recovers.
    Crashed,
    /// The network to it breaks.
    CutOff,
    /// The network to it keeps everything to itself.
    Hung,
}

impl Trouble {
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
        let server = tokio::task::spawn_blocking(move || Server::start(password)).await??;
        let proxy = Proxy::start(server.socket()).await?;
        Ok(Self { server, proxy })
    }

    /// What the orchestrator is told.
    pub(crate) fn url(&self) -> String {
        self.server.url_by(&self.proxy.address.to_string())
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
    pub(crate) fn begin(&self, trouble: Trouble) -> anyhow::Result<()> {
        match trouble {
            Trouble::Restarted => return self.server.restart(true),
            Trouble::Crashed => return self.server.restart(false),
            Trouble::CutOff => self.proxy.set(Mode::Cut),
            Trouble::Hung => self.proxy.set(Mode::Hung),
        }
        Ok(())
    }

    /// Ends whatever trouble there is.
    pub(crate) fn end_trouble(&self) {
        self.proxy.set(Mode::Open);
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
        if let Err(missing) = Server::programs() {
            let must = std::env::var_os("ROUNDHOUSE_REQUIRE_ALL").is_some();
            assert!(!must, "{missing:#}");
            // Written past the test's capture, so that a skip is seen.
            writeln!(std::io::stderr(), "skipped: {missing:#}").unwrap();
            return;
        }
        let password = "A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8S9t0_-x".to_owned();
        let cluster = Cluster::start(password.clone()).await.unwrap();
        let registry = cluster.registry();
        registry.is_left().await.unwrap();
        assert!(answers(&cluster, true).await);
        for trouble in Trouble::ALL {
            cluster.begin(trouble).unwrap();
            let is_out_of_reach = matches!(trouble, Trouble::CutOff | Trouble::Hung);
            assert!(answers(&cluster, !is_out_of_reach).await, "{trouble:?}");
            cluster.end_trouble();
            assert!(answers(&cluster, true).await, "{trouble:?}");
        }
        let leaks = Secrets::new([&password]).in_files(cluster.folder()).unwrap();
        assert_eq!(leaks, Vec::<String>::new());
        let folder = cluster.folder().to_owned();
        drop(cluster);
        assert!(!folder.exists());
    }
}
