//! Story 33 (lesson o14): what an engine in a container can see and do, checked from inside the container.

use std::collections::BTreeSet;
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::time::Duration;

use futures::future::join_all;
use serde_json::Value;

use crate::support::{Deployment, Engine, Product, eventually};

/// An engine in a container that is inspected.
struct InspectedEngine {
    deployment: Deployment,
    _orchestrator: crate::support::Orchestrator,
    product: Product,
    engine: Engine,
    container: String,
}

impl InspectedEngine {
    async fn new() -> Option<Self> {
        let deployment = Deployment::docker()?;
        let (orchestrator, product) = deployment.start_with_product().await;
        let engine = product.engine("ada").await;
        let container = deployment.container_of(&engine).await.unwrap();
        Some(Self { deployment, _orchestrator: orchestrator, product, engine, container })
    }

    /// The output of a shell line that the engine's user runs in the container.
    async fn exec_shell(&self, line: &str) -> String {
        self.deployment.docker_daemon().exec_shell(&self.container, line).await
    }

    /// The output of a shell line that root runs in the container.
    async fn exec_shell_as_root(&self, line: &str) -> String {
        let line = format!("{line} 2>&1; true");
        self.deployment
            .docker_daemon()
            .run(&["exec", "--user", "0", &self.container, "sh", "-c", &line])
            .await
    }

    async fn inspect(&self) -> Value {
        self.deployment.docker_daemon().inspect(&self.container).await
    }
}

/// The user and group as which engines run: those of the orchestrator, unless it runs as root.
fn engine_ids() -> (u32, u32) {
    let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
    if uid.is_root() { (10_001, 10_001) } else { (uid.as_raw(), gid.as_raw()) }
}

#[tokio::test]
async fn an_engine_has_no_power_over_its_machine() {
    let Some(inspected) = InspectedEngine::new().await else { return };
    let (uid, gid) = engine_ids();
    assert_eq!(inspected.exec_shell("id -u; id -g; id -G").await, format!("{uid}\n{gid}\n{gid}"));
    // The kernel's view of the engine's own process.
    let process = inspected.deployment.process_of(&inspected.engine).unwrap().as_raw_nonzero();
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("no {name} in {status}")).trim().to_owned()
    };
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(field(set), "0000000000000000", "{set}");
    }
    assert_eq!((field("NoNewPrivs"), field("Seccomp")), ("1".to_owned(), "2".to_owned()));
    assert_eq!(field("Uid"), [uid; 4].map(|uid| uid.to_string()).join("\t"));
    // An init process reaps orphans and forwards signals.
    assert_eq!(inspected.exec_shell("cat /proc/1/comm").await, "docker-init");
    let container_info = inspected.inspect().await;
    let host = &container_info["HostConfig"];
    assert_eq!((&host["Privileged"], &host["RestartPolicy"]["Name"]), (&false.into(), &"no".into()));
    assert_eq!((&host["PidMode"], &host["IpcMode"]), (&"".into(), &"private".into()), "{host}");
    let log = (&host["LogConfig"]["Type"], &host["LogConfig"]["Config"]["max-file"]);
    assert_eq!(log, (&"json-file".into(), &"3".into()), "{host}");
    assert_eq!(host["LogConfig"]["Config"]["max-size"], "10m", "{host}");
}

#[tokio::test]
async fn an_engine_writes_where_it_may_and_nowhere_else() {
    let Some(inspected) = InspectedEngine::new().await else { return };
    // Not even root can write there: the file systems are read-only.
    for path in ["/", "/usr/bin", "/etc", "/root", "/var/tmp", "/catalog"] {
        let output = inspected.exec_shell_as_root(&format!("touch {path}/file")).await;
        assert!(output.contains("Read-only file system"), "{path}: {output}");
    }
    assert_eq!(inspected.exec_shell("touch /data/file && rm /data/file && echo done").await, "done");
    // Everyone may write to /tmp, and nothing can be executed from there.
    assert_eq!(inspected.exec_shell("stat -c %a /tmp").await, "1777");
    let mounts = inspected.exec_shell("cat /proc/mounts").await;
    let tmp: Vec<&str> = mounts.lines().filter(|line| line.split(' ').nth(1) == Some("/tmp")).collect();
    let options: BTreeSet<&str> = tmp[0].split(' ').nth(3).unwrap().split(',').collect();
    assert!(options.is_superset(&BTreeSet::from(["rw", "noexec", "nosuid", "nodev"])), "{tmp:?}");
    let output = inspected
        .exec_shell("cp /bin/true /tmp/it && chmod 755 /tmp/it && { /tmp/it 2>&1 || echo refused; }")
        .await;
    assert!(output.contains("refused"), "{output}");
    // Its folder is private, on the host too.
    let (uid, gid) = engine_ids();
    let folder = fs::metadata(inspected.deployment.fleet.engine_folder(&inspected.engine.id)).unwrap();
    assert_eq!((folder.permissions().mode() & 0o7777, folder.uid(), folder.gid()), (0o700, uid, gid));
    assert_eq!(inspected.exec_shell("stat -c '%a %u %g' /data").await, format!("700 {uid} {gid}"));
}

#[tokio::test]
async fn an_engine_sees_its_own_data_and_nobody_elses() {
    let Some(inspected) = InspectedEngine::new().await else { return };
    let other = inspected.product.engine("bob").await;
    let mounts = inspected.exec_shell("cat /proc/self/mountinfo").await;
    // Mounts from the host's disks, except those that Docker itself makes in /etc.
    let points = mounts.lines().map(|line| line.split(' ').nth(4).unwrap());
    let ours: Vec<&str> =
        points.filter(|point| point.starts_with("/data") || point.starts_with("/catalog")).collect();
    assert_eq!(ours.len(), 2, "{mounts}");
    assert!(!mounts.contains(&other.id) && mounts.contains(&inspected.engine.id), "{mounts}");
    let container_info = inspected.inspect().await;
    let bound = container_info["Mounts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|mount| mount["Destination"].as_str().unwrap());
    assert_eq!(bound.collect::<BTreeSet<_>>(), BTreeSet::from(["/catalog", "/data"]), "{container_info}");
    let folders = fs::canonicalize(inspected.deployment.fleet.engine_folder(&inspected.engine.id)).unwrap();
    assert_eq!(
        container_info["Mounts"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|mount| mount["Source"] == folders.to_str().unwrap())
            .count(),
        1
    );
    assert_eq!(
        inspected.exec_shell("ls -d /run/docker.sock /var/run/docker.sock 2>/dev/null; true").await,
        ""
    );
}

#[tokio::test]
async fn an_engines_environment_is_made_from_nothing() {
    let Some(deployment) = Deployment::docker() else { return };
    let deployment = deployment.with_env("SOMETHING_ELSE", "not-passed-through");
    let (_orchestrator, product) = deployment.start_with_product().await;
    let engine = product.engine("ada").await;
    let process = deployment.process_of(&engine).unwrap().as_raw_nonzero();
    let environment = fs::read(format!("/proc/{process}/environ")).unwrap();
    let environment = String::from_utf8(environment).unwrap();
    let variables: Vec<(&str, &str)> =
        environment.split_terminator('\0').map(|variable| variable.split_once('=').unwrap()).collect();
    let value = |name: &str| variables.iter().find(|variable| variable.0 == name).map(|variable| variable.1);
    assert_eq!(
        (value("SQLITE_DB_PATH"), value("CATALOG_DIR")),
        (Some("/data/brain.sqlite"), Some("/catalog"))
    );
    let hash = value("ENGINE_KEY_HASH").unwrap();
    assert!(hash.len() == 64 && hash.bytes().all(|byte| b"0123456789abcdef".contains(&byte)), "{hash}");
    assert!(!variables.iter().any(|(name, _)| name.starts_with("ORCH_")), "{variables:?}");
    assert_eq!(value("SOMETHING_ELSE"), None);
    let container_info = deployment
        .docker_daemon()
        .inspect(&deployment.container_of(&engine).await.unwrap())
        .await
        .to_string();
    for secret in [&deployment.admin_key, &deployment.master_key, &engine.key, &product.key] {
        assert!(
            !environment.contains(secret.as_str()) && !container_info.contains(secret.as_str()),
            "a key reached the engine"
        );
    }
}

#[tokio::test]
async fn engines_cannot_reach_one_another() {
    let Some(inspected) = InspectedEngine::new().await else { return };
    let other = inspected.product.engine("bob").await;
    let container = inspected.deployment.container_of(&other).await.unwrap();
    let address = async |container: &str| {
        let container_info = inspected.deployment.docker_daemon().inspect(container).await;
        let address =
            &container_info["NetworkSettings"]["Networks"][inspected.deployment.network()]["IPAddress"];
        address.as_str().unwrap().to_owned()
    };
    let (own, others) = (address(&inspected.container).await, address(&container).await);
    assert!(!own.is_empty() && !others.is_empty() && own != others, "{own:?} and {others:?}");
    let port: u16 = other.url.rsplit(':').next().unwrap().parse().unwrap();
    let reaches = async |host: &str, port: u16| {
        let line = format!(
            "python3 -c \"import socket; socket.create_connection(('{host}', {port}), 3)\" 2>/dev/null && echo yes || echo no"
        );
        inspected.exec_shell(&line).await == "yes"
    };
    // The probe itself works: the engine reaches itself, and the host reaches the other engine.
    assert!(reaches(&own, 8000).await, "it reaches itself");
    let other_address = format!("{others}:8000").parse::<SocketAddr>().unwrap();
    TcpStream::connect_timeout(&other_address, Duration::from_secs(10))
        .expect("the host reaches the other engine");
    assert!(!reaches(&others, 8000).await, "it reaches the other engine's port");
    assert!(
        !reaches(&inspected.deployment.docker_daemon().host_address(), port).await,
        "it reaches the other engine through the host"
    );
}

#[tokio::test]
async fn an_engines_port_is_open_to_this_machine_alone() {
    let Some(inspected) = InspectedEngine::new().await else { return };
    let port: u16 = inspected.engine.url.rsplit(':').next().unwrap().parse().unwrap();
    assert_eq!(inspected.engine.health().await["status"], "ok");
    let container_info = inspected.inspect().await;
    let bound = &container_info["NetworkSettings"]["Ports"]["8000/tcp"];
    assert_eq!(bound.as_array().map(Vec::len), Some(1), "{bound}");
    assert_eq!(
        (bound[0]["HostIp"].as_str(), bound[0]["HostPort"].as_str()),
        (Some("127.0.0.1"), Some(port.to_string().as_str()))
    );
    let elsewhere: SocketAddr =
        format!("{}:{port}", inspected.deployment.docker_daemon().host_address()).parse().unwrap();
    assert!(TcpStream::connect_timeout(&elsewhere, Duration::from_secs(3)).is_err(), "{elsewhere} is open");
}

#[tokio::test]
async fn a_network_where_engines_could_talk_is_refused_at_the_start() {
    let Some(deployment) = Deployment::docker() else { return };
    deployment.docker_daemon().run(&["network", "create", deployment.network()]).await;
    let exit = deployment.launch().program.wait().await;
    assert!(exit.code.is_some_and(|code| code != 0), "{exit:?}");
    assert!(exit.output.contains(deployment.network()), "the error names the network: {}", exit.output);
    assert!(exit.output.contains("enable_icc"), "the error names the faulty option: {}", exit.output);
}

#[tokio::test]
async fn regression_o14_users_are_kept_apart_and_their_names_reach_nothing() {
    let Some(deployment) = Deployment::docker() else { return };
    let orchestrator = deployment.start().await;
    let product = orchestrator.register("unheard-of-shop", serde_json::json!({})).await;
    let users = ["../../etc", "ada-lovelace", "ADA-LOVELACE", "\u{1f980}\u{1f600}", "slash/ed", "$(touch x)"];
    let engines = join_all(users.map(|user| product.engine(user))).await;
    for (engine, user) in engines.iter().zip(users) {
        engine.run_turn("task", &format!("I am {user}.")).await;
    }
    let root = deployment.fleet.folder().join("engines");
    let folders: BTreeSet<String> =
        fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(folders, engines.iter().map(|engine| engine.id.clone()).collect());
    for (engine, user) in engines.iter().zip(users) {
        let container_info = deployment
            .docker_daemon()
            .inspect(&deployment.container_of(engine).await.unwrap())
            .await
            .to_string();
        let json = serde_json::to_string(user).unwrap();
        assert!(
            !container_info.contains(json.trim_matches('"')) && !container_info.contains("unheard-of-shop"),
            "{user}: {container_info}"
        );
        let messages = engine.messages("task").await;
        assert_eq!(messages.len(), 2);
        assert_eq!(messages[0]["content"], format!("I am {user}."));
    }
    // Destroying engines leaves the others alone, and a returning user starts with an empty engine.
    product.delete("../../etc").await.assert_ok("status:text engine_id:engine");
    product.delete("ADA-LOVELACE").await.assert_ok("status:text engine_id:engine");
    assert!(fs::exists("/etc/passwd").unwrap());
    assert_eq!(product.engine("ada-lovelace").await.messages("task").await.len(), 2);
    assert_eq!(product.engine("ADA-LOVELACE").await.tasks("").await.1, 0);
    eventually("a folder for each engine", async || {
        (fs::read_dir(&root).unwrap().count() == 5).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_link_in_the_place_of_a_folder_is_not_followed() {
    let Some(inspected) = InspectedEngine::new().await else { return };
    inspected.product.stop("ada").await.assert_ok("status:text");
    let folder = inspected.deployment.fleet.engine_folder(&inspected.engine.id);
    let precious = inspected.deployment.fleet.test_env.path().join("precious");
    fs::create_dir(&precious).unwrap();
    fs::write(precious.join("file"), "kept").unwrap();
    fs::remove_dir_all(&folder).unwrap();
    std::os::unix::fs::symlink(&precious, &folder).unwrap();
    inspected.product.delete("ada").await;
    assert_eq!(fs::read_to_string(precious.join("file")).unwrap(), "kept");
}
