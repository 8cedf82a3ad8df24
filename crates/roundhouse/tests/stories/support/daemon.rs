//! A Docker daemon for one story, which can be stopped, killed and made to hang.

use std::ffi::OsStr;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal};
use tempfile::TempDir;

use super::docker::Docker;
use super::ports::Ports;
use super::{eventually, image, is_installed, processes, skip};

/// A daemon with its own folders and bridge. Dropping it ends it and everything that it runs.
#[derive(Debug)]
pub(crate) struct DockerDaemon {
    pub(crate) docker: Docker,
    folder: TempDir,
    /// Distinguishes it from other daemons of this and other test runs.
    number: u16,
    live_restore: LiveRestore,
    _ports: Ports,
    server: Option<Child>,
    /// The host's network links of its networks when it was last stopped: it may not run again to remove them.
    links: Vec<String>,
}

/// Whether containers keep running while their daemon is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LiveRestore {
    Yes,
    No,
}

impl DockerDaemon {
    /// Starts a daemon that has the engines' image; skips the story and returns `None` where that is impossible.
    pub(crate) async fn start(live_restore: LiveRestore) -> Option<Self> {
        let local_daemon = Docker::local()?;
        let reference = image::current_build(&local_daemon)?;
        if !["dockerd", "ip", "setpriv"].into_iter().all(is_installed) {
            return None;
        }
        if !rustix::process::getuid().is_root() {
            skip("root privileges, to run a second Docker daemon");
            return None;
        }
        let ports = Ports::claim();
        let number = ports.slot();
        let folder = TempDir::with_prefix("roundhouse-dockerd-").unwrap();
        let docker = Docker::from_socket(&folder.path().join("docker.sock"));
        let mut this =
            Self { docker, folder, number, live_restore, _ports: ports, server: None, links: Vec::new() };
        this.make_bridge();
        this.launch().await;
        copy_image(&local_daemon, &this.docker, &reference).await;
        Some(this)
    }

    /// Starts the daemon and waits until it answers.
    pub(crate) async fn launch(&mut self) {
        let path = |name: &str| self.folder.path().join(name).to_str().unwrap().to_owned();
        let log = fs::File::options().create(true).append(true).open(path("log")).unwrap();
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig=KILL", "--", "dockerd", "--config-file", &self.configuration()])
            .args(["--host", &format!("unix://{}", self.docker.socket().display())])
            .args(["--data-root", &path("data"), "--exec-root", &path("exec"), "--pidfile", &path("pid")])
            // A daemon without a bridge, or one that assigns addresses itself, would remove the bridge of the
            // host's own daemon at its start.
            .args(["--bridge", &self.bridge(), "--iptables=false", "--ip6tables=false", "--ip-masq=false"])
            .args(["--cgroup-parent", &self.name(), "--containerd-namespace", &self.name()])
            .args(["--containerd-plugins-namespace", &format!("{}-plugins", self.name())]);
        if self.live_restore == LiveRestore::Yes {
            command.arg("--live-restore");
        }
        self.server =
            Some(command.stdout(log.try_clone().unwrap()).stderr(log).stdin(Stdio::null()).spawn().unwrap());
        eventually("the daemon answers", async || {
            let status = self.server.as_mut().unwrap().try_wait().unwrap();
            assert!(status.is_none(), "the daemon ended: {}", fs::read_to_string(path("log")).unwrap());
            self.docker.try_run(&["version"]).await.ok()
        })
        .await;
    }

    /// Stops it as its service manager would.
    pub(crate) fn stop(&mut self) {
        self.stop_with(Signal::TERM, 60);
    }

    /// Kills it. Its containers keep running.
    pub(crate) fn crash(&mut self) {
        self.stop_with(Signal::KILL, 10);
        // Its containerd is killed too, and both pid files are removed, or the next daemon would take them for
        // running processes.
        let helper = self.folder.path().join("exec/containerd/containerd.pid");
        let number = fs::read_to_string(&helper).ok().and_then(|text| text.trim().parse().ok());
        if let Some(pid) = number.and_then(Pid::from_raw) {
            processes::kill(pid);
        }
        let _ = fs::remove_file(helper);
        let _ = fs::remove_file(self.folder.path().join("pid"));
    }

    /// Suspends it: calls connect, but get no response.
    pub(crate) fn pause(&self) {
        processes::signal(self.pid(), Signal::STOP);
    }

    /// Resumes it.
    pub(crate) fn resume(&self) {
        processes::signal(self.pid(), Signal::CONT);
    }

    fn pid(&self) -> Pid {
        pid_of(self.server.as_ref().expect("the daemon runs"))
    }

    fn stop_with(&mut self, signal: Signal, seconds: i64) {
        self.links = self.networks().iter().map(|network| format!("br-{network}")).collect();
        let mut server = self.server.take().expect("the daemon runs");
        let pid = pid_of(&server);
        processes::signal(pid, signal);
        assert!(processes::exits_within(pid, seconds), "the daemon has not ended within {seconds} s");
        server.wait().unwrap();
    }

    /// The networks that were created at this daemon.
    fn networks(&self) -> Vec<String> {
        let networks = self.docker.run_blocking(&["network", "ls", "--quiet", "--filter", "type=custom"]);
        networks.unwrap_or_default().lines().map(str::to_owned).collect()
    }

    fn name(&self) -> String {
        format!("roundhouse-e2e-{}", self.number)
    }

    /// The name of the daemon's bridge, so that it neither creates one nor uses the host's.
    fn bridge(&self) -> String {
        format!("rhe2e{}", self.number)
    }

    /// The host's address on the bridge.
    fn address(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 112, u8::try_from(self.number).unwrap(), 1)
    }

    fn make_bridge(&self) {
        let bridge = self.bridge();
        remove_link(&bridge);
        ip(&["link", "add", "name", &bridge, "type", "bridge"]);
        ip(&["address", "add", &format!("{}/24", self.address()), "dev", &bridge]);
        ip(&["link", "set", &bridge, "up"]);
    }

    /// Writes an empty configuration, so that the host's is not read.
    fn configuration(&self) -> String {
        let file = self.folder.path().join("daemon.json");
        fs::write(&file, "{}").unwrap();
        file.to_str().unwrap().to_owned()
    }

    /// Kills the processes that a killed daemon left running.
    fn kill_leftovers(&self) {
        processes::kill_all_mentioning(self.folder.path().as_os_str());
        let shims = || processes::with_command_line_text(self.folder.path().as_os_str());
        let contained = || processes::in_cgroup(&self.name());
        for _ in 0..100 {
            let found = [shims(), contained()].concat();
            if found.is_empty() {
                break;
            }
            found.into_iter().for_each(processes::kill);
        }
        for mount in mounts_below(self.folder.path()) {
            let _ = Command::new("umount").arg("--lazy").arg(mount).status();
        }
    }
}

impl Drop for DockerDaemon {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            let pid = pid_of(&server);
            let _ = rustix::process::kill_process(pid, Signal::CONT);
            // Its networks are links of the host, which only the daemon can identify.
            let networks = self.networks();
            let containers = self.docker.run_blocking(&["ps", "--all", "--quiet"]).unwrap_or_default();
            for container in containers.lines() {
                let _ = self.docker.run_blocking(&["rm", "--force", container]);
            }
            for network in networks {
                let _ = self.docker.run_blocking(&["network", "rm", &network]);
            }
            let _ = rustix::process::kill_process(pid, Signal::TERM);
            if !processes::exits_within(pid, 20) {
                let _ = server.kill();
            }
            let _ = server.wait();
        }
        self.kill_leftovers();
        for link in &self.links {
            remove_link(link);
        }
        remove_link(&self.bridge());
    }
}

/// Copies an image from one daemon to another.
async fn copy_image(from: &Docker, to: &Docker, reference: &str) {
    let line =
        r#"set -o pipefail; docker --host "unix://$0" save "$2" | docker --host "unix://$1" load --quiet"#;
    let mut command = tokio::process::Command::new("bash");
    let output =
        command.args(["-c", line]).args([from.socket(), to.socket()]).arg(reference).output().await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap()
}

fn ip(arguments: &[&str]) {
    let output = Command::new("ip").args(arguments).output().unwrap();
    assert!(output.status.success(), "ip {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn remove_link(name: &str) {
    let _ = Command::new("ip").args(["link", "delete", name]).stderr(Stdio::null()).status();
}

/// The mount points below a folder, the innermost first.
fn mounts_below(folder: &Path) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let points = table.lines().filter_map(|line| line.split(' ').nth(4)).map(OsStr::new).map(PathBuf::from);
    let mut points: Vec<PathBuf> = points.filter(|point| point.starts_with(folder)).collect();
    points.sort();
    points.reverse();
    points
}
