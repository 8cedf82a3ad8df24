//! A PostgreSQL server for one run, in a folder of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use rustix::process::geteuid;
use tempfile::TempDir;

/// The folder in which Debian installs the programs of each version.
const DEBIAN_PROGRAMS_DIR: &str = "/usr/lib/postgresql";
/// The server's only database user, and the system user that runs it if the harness runs as root, which PostgreSQL
/// refuses.
const SUPERUSER: &str = "postgres";
/// The server need not survive a power loss, and many may run at once. It listens only on a socket in its folder.
const SERVER_SETTINGS: &str = "fsync = off\nfull_page_writes = off\nlisten_addresses = ''\nmax_connections = 60\n\
                        shared_buffers = 64MB\nlog_min_messages = warning\n";

/// A running server. Dropped, it is stopped and its folder removed.
#[derive(Debug)]
pub struct PostgresServer {
    programs: PathBuf,
    folder: TempDir,
    password: String,
}

impl PostgresServer {
    /// Creates and starts a server. `password` is the password of its only user.
    pub fn start(password: String) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("roundhouse-pg-").tempdir()?;
        let server = Self { programs: Self::programs()?, folder, password };
        server.init_cluster()?;
        server.pg_ctl(&["start"])?;
        Ok(server)
    }

    /// Returns the folder of the newest version's programs.
    pub fn programs() -> anyhow::Result<PathBuf> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
        let versions = fs::read_dir(DEBIAN_PROGRAMS_DIR).into_iter().flatten().flatten();
        let mut versions: Vec<PathBuf> = versions.map(|entry| entry.path().join("bin")).collect();
        versions.sort();
        folders.extend(versions.into_iter().rev());
        let found = folders.into_iter().find(|folder| folder.join("initdb").is_file());
        found.with_context(|| {
            format!("PostgreSQL's initdb is neither on the PATH nor below {DEBIAN_PROGRAMS_DIR}: install it")
        })
    }

    /// Returns the server's URL through a proxy at `address`.
    pub fn url_at(&self, address: &str) -> String {
        format!("postgres://{SUPERUSER}:{}@{address}/postgres", self.password)
    }

    /// Returns the server's URL through its socket.
    pub fn url(&self) -> String {
        format!("{}?host={}", self.url_at("localhost"), self.folder().display())
    }

    /// Returns the path of the server's socket.
    pub fn socket(&self) -> PathBuf {
        self.folder().join(".s.PGSQL.5432")
    }

    /// Returns the server's folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Restarts the server, gracefully or as after a crash. Blocks until it is running again.
    pub fn restart(&self, graceful: bool) -> anyhow::Result<()> {
        self.pg_ctl(&["restart", "-m", if graceful { "fast" } else { "immediate" }])
    }

    fn data(&self) -> PathBuf {
        self.folder().join("data")
    }

    fn init_cluster(&self) -> anyhow::Result<()> {
        let secret = self.folder().join("password");
        fs::write(&secret, &self.password)?;
        if geteuid().is_root() {
            run(Command::new("chown").arg("-R").arg(SUPERUSER).arg(self.folder()))?;
        }
        let mut initdb = self.command("initdb");
        // Plain-text authentication, because hashing the password is slow in a debug build of the client.
        initdb.args(["--no-sync", "--auth=password", "--encoding=UTF8", "--username", SUPERUSER, "--pwfile"]);
        run(initdb.arg(&secret).arg("--pgdata").arg(self.data()))?;
        // From here on, no file contains the password.
        fs::remove_file(secret)?;
        let sockets = format!("unix_socket_directories = '{}'\n", self.folder().display());
        let file = self.data().join("postgresql.auto.conf");
        fs::write(file, format!("{SERVER_SETTINGS}{sockets}"))
            .context("PostgreSQL's settings cannot be written")
    }

    fn pg_ctl(&self, arguments: &[&str]) -> anyhow::Result<()> {
        let mut control = self.command("pg_ctl");
        control.arg("--pgdata").arg(self.data()).arg("--log").arg(self.folder().join("server.log"));
        run(control.args(["--wait", "--silent"]).args(arguments))
    }

    /// Returns the command for one of PostgreSQL's programs, run as an unprivileged user.
    fn command(&self, name: &str) -> Command {
        let program = self.programs.join(name);
        let mut command = if geteuid().is_root() {
            let mut command = Command::new("setpriv");
            command.args(["--reuid", SUPERUSER, "--regid", SUPERUSER, "--clear-groups"]).arg(program);
            command
        } else {
            Command::new(program)
        };
        let path = std::env::var_os("PATH").unwrap_or_default();
        command.env_clear().env("PATH", path).env("LC_ALL", "C.UTF-8").current_dir(self.folder());
        command
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        // An error is fine: the server may not be running.
        let _ = self.pg_ctl(&["stop", "-m", "immediate"]);
    }
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let output = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).output();
    let output = output.with_context(|| format!("{} cannot be run", command.get_program().display()))?;
    if !output.status.success() {
        bail!("{command:?} ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}
