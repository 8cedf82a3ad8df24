//! A PostgreSQL server for one story, which can be stopped, killed and made to hang.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal};
use tempfile::TempDir;

use super::ports::Ports;
use super::{eventually, processes, skip};

/// A server, which is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct PostgresCluster {
    folder: TempDir,
    programs: PathBuf,
    ports: Ports,
    server: Option<Child>,
}

impl PostgresCluster {
    /// Starts a server; skips the story and returns `None` if PostgreSQL's programs are missing.
    pub(crate) async fn start() -> Option<Self> {
        let Some(programs) = programs_folder() else {
            skip("PostgreSQL's programs, below /usr/lib/postgresql or in the PATH");
            return None;
        };
        let folder = TempDir::with_prefix("roundhouse-postgres-").unwrap();
        // The server runs as another user, who must be able to enter; initdb makes the data folder private.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let mut this = Self { folder, programs, ports: Ports::claim(), server: None };
        let made = this
            .command("initdb")
            .args(["--auth=trust", "--username=postgres", "--no-sync", "--locale=C.UTF-8", "-D"])
            .arg(this.data_folder())
            .output()
            .unwrap();
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        this.launch().await;
        Some(this)
    }

    /// The server's URL.
    pub(crate) fn url(&self) -> String {
        format!("postgres://postgres:cluster-password@127.0.0.1:{}/postgres", self.ports.first())
    }

    /// Starts the server and waits until it answers.
    pub(crate) async fn launch(&mut self) {
        let log = fs::File::options().create(true).append(true).open(self.folder.path().join("log")).unwrap();
        let server = self
            .command("postgres")
            .arg("-D")
            .arg(self.data_folder())
            .args(["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="])
            .args(["-c", "fsync=off", "-c", &format!("port={}", self.ports.first())])
            .stdout(Stdio::from(log.try_clone().unwrap()))
            .stderr(Stdio::from(log))
            .spawn()
            .unwrap();
        self.server = Some(server);
        eventually("the server answers", async || self.is_accepting_connections().then_some(())).await;
    }

    /// Stops it as its service manager would at a restart: connections are closed, and the shutdown is clean.
    pub(crate) fn stop(&mut self) {
        self.stop_with(Signal::INT);
    }

    /// Stops it at once, without a clean shutdown.
    pub(crate) fn crash(&mut self) {
        self.stop_with(Signal::QUIT);
    }

    /// Suspends it: connections stay open, but get no response.
    pub(crate) fn pause(&self) {
        self.signal_all(Signal::STOP);
    }

    /// Resumes it.
    pub(crate) fn resume(&self) {
        self.signal_all(Signal::CONT);
    }

    fn stop_with(&mut self, signal: Signal) {
        let mut server = self.server.take().expect("the server runs");
        processes::signal(pid_of(&server), signal);
        server.wait().unwrap();
    }

    /// Signals the server and the processes that serve its connections, the parent first.
    fn signal_all(&self, signal: Signal) {
        let server = pid_of(self.server.as_ref().expect("the server runs"));
        processes::signal(server, signal);
        for child in processes::children(server) {
            // The process may have ended meanwhile.
            let _ = rustix::process::kill_process(child, signal);
        }
    }

    fn is_accepting_connections(&self) -> bool {
        let url = self.url();
        let status = self.command("pg_isready").args(["--quiet", "--timeout=2", "--dbname", &url]).status();
        status.is_ok_and(|status| status.success())
    }

    fn data_folder(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// A command for one of PostgreSQL's programs, which refuse to run as root. It ends with this process.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("setpriv");
        if rustix::process::getuid().is_root() {
            command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]);
        }
        command.args(["--pdeathsig=KILL", "--"]).arg(self.programs.join(program));
        command.current_dir(self.folder.path());
        command
    }
}

impl Drop for PostgresCluster {
    fn drop(&mut self) {
        if self.server.is_some() {
            self.resume();
            self.stop_with(Signal::QUIT);
        }
    }
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap()
}

/// The folder of the newest version of PostgreSQL's programs.
fn programs_folder() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&path).collect::<Vec<_>>();
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    let mut versions: Vec<PathBuf> =
        versions.filter_map(|entry| Some(entry.ok()?.path().join("bin"))).collect();
    versions.sort();
    let has_all =
        |folder: &Path| ["initdb", "postgres", "pg_isready"].iter().all(|name| folder.join(name).is_file());
    versions.into_iter().rev().chain(in_path).find(|folder| has_all(folder))
}
