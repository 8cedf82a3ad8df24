//! A PostgreSQL server for a single test, which the test may stop and start.

use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::database::skip_or_fail;

/// A server on its own port. It is stopped and removed when dropped.
pub(crate) struct Cluster {
    folder: tempfile::TempDir,
    bin_dir: PathBuf,
    port: u16,
}

/// Finds the folder in which distributions install the server's programs.
fn find_bin_dir() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let folders = versions.flatten().map(|version| version.path().join("bin"));
    folders.filter(|folder| folder.join("initdb").exists()).max()
}

impl Cluster {
    /// Starts a server. Returns `None` and prints the reason if this machine has no PostgreSQL.
    pub(crate) fn new() -> Option<Self> {
        let Some(bin_dir) = find_bin_dir() else {
            skip_or_fail("there is no PostgreSQL under /usr/lib/postgresql");
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let cluster = Self { folder, bin_dir, port };
        if let Some((user, group)) = server_user() {
            chown(cluster.folder.path(), Some(user), Some(group)).unwrap();
        }
        cluster.run(
            "initdb",
            &["-D", &cluster.data_dir(), "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8"],
        );
        cluster.start();
        Some(cluster)
    }

    /// The server's URL, for its superuser.
    pub(crate) fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres?sslmode=disable", self.port)
    }

    pub(crate) fn start(&self) {
        let options = format!(
            "-p {} -c listen_addresses=127.0.0.1 -c unix_socket_directories={} -c fsync=off",
            self.port,
            self.folder.path().display()
        );
        let log = self.folder.path().join("log").display().to_string();
        self.run("pg_ctl", &["start", "-w", "-t", "120", "-D", &self.data_dir(), "-l", &log, "-o", &options]);
    }

    /// Stops the server like a crash: without notice to its clients.
    pub(crate) fn crash(&self) {
        self.run("pg_ctl", &["stop", "-w", "-t", "120", "-m", "immediate", "-D", &self.data_dir()]);
    }

    fn data_dir(&self) -> String {
        self.folder.path().join("data").display().to_string()
    }

    fn run(&self, program: &str, arguments: &[&str]) {
        let status = server_command(&self.bin_dir.join(program)).args(arguments).status().unwrap();
        assert!(status.success(), "{program} {arguments:?}: {status}");
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let mut stop = server_command(&self.bin_dir.join("pg_ctl"));
        let _ = stop.args(["stop", "-w", "-m", "immediate", "-D", &self.data_dir()]).status();
    }
}

/// Returns the user and group to run the server as if the tests run as root, because PostgreSQL refuses to run as
/// root.
fn server_user() -> Option<(u32, u32)> {
    rustix::process::geteuid().is_root().then(|| {
        let id = |which| {
            let id = Command::new("id").args([which, "postgres"]).output().unwrap();
            String::from_utf8(id.stdout).unwrap().trim().parse().unwrap()
        };
        (id("-u"), id("-g"))
    })
}

fn server_command(program: &Path) -> Command {
    use std::os::unix::process::CommandExt as _;
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/");
    if let Some((user, group)) = server_user() {
        command.uid(user).gid(group);
    }
    command
}
