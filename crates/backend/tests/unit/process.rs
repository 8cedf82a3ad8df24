//! Tests with real processes. The engine is a shell that runs a script; the script is a file named after the
//! subcommand (`engine`) in the engine's folder.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::{EngineKey, ProductId};
use http_service::clock::SystemClock;
use secrecy::SecretString;

use super::identity::ProcessIdentity;
use super::*;

/// Exits with code 7 on SIGTERM.
const OBEDIENT: &str = "trap 'exit 7' TERM; echo ready; while :; do sleep 0.01; done";
/// Ignores SIGTERM.
const STUBBORN: &str = "trap '' TERM; echo ready; while :; do sleep 0.01; done";

struct Fixture {
    backend: ProcessBackend,
    options: Options,
    engine_id: EngineId,
    _folder: tempfile::TempDir,
}

impl Fixture {
    fn new(script: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = Options {
            program: PathBuf::from("/bin/sh"),
            deployment_id: EngineId::new().to_string(),
            data_root: folder.path().join("engines"),
            catalog: folder.path().join("catalog"),
            url_host: "127.0.0.1".into(),
        };
        let engine_id = EngineId::new();
        let home = options.data_root.join(engine_id.to_string());
        fs::create_dir_all(&home).unwrap();
        fs::write(home.join("engine"), script).unwrap();
        Self { backend: new_backend(&options), options, engine_id, _folder: folder }
    }

    fn launch(&self) -> LaunchSpec {
        LaunchSpec {
            engine_id: self.engine_id,
            product_id: ProductId::new(),
            generation: 1,
            is_first: true,
            image: format!("svc-engine:{VERSION}").parse().unwrap(),
            placement: Placement::HostPort(9_001),
            key_hash: EngineKey::generate().unwrap().hash(),
            env: vec![("LLM_API_KEY".into(), SecretString::from("provider secret"))],
            limits: ResourceLimits::default(),
        }
    }

    async fn launch_and_wait(&self) -> Instance {
        let instance = self.backend.launch(self.launch()).await.unwrap();
        self.wait_for_log_line("ready").await;
        instance
    }

    async fn wait_for_log_line(&self, text: &str) {
        let line_written = async {
            while !self.backend.log_tail(self.engine_id, 100).await.unwrap().iter().any(|line| line == text) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), line_written)
            .await
            .expect("the engine never wrote the line");
    }

    fn target(&self) -> Target {
        self.launch().target()
    }

    fn home(&self) -> PathBuf {
        self.options.data_root.join(self.engine_id.to_string())
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        // An engine's child is found only after the engine is gone, so the search is repeated.
        loop {
            let found = found(&self.options);
            if found.is_empty() {
                return;
            }
            for FoundProcess { identity, generation, .. } in found {
                if let Ok(Some(process)) = WatchedProcess::adopt(identity, generation) {
                    process.signal(Signal::KILL).unwrap();
                }
            }
        }
    }
}

/// Finds the processes of a deployment.
fn found(options: &Options) -> Vec<FoundProcess> {
    label::find_processes(&options.deployment_id, &HashSet::new()).unwrap()
}

/// Creates the backend of another orchestrator of the deployment.
fn new_backend(options: &Options) -> ProcessBackend {
    ProcessBackend::new(options.clone(), Arc::new(SystemClock::new()))
}

async fn next(exits: &mut BoxStream<'static, InstanceExit>) -> InstanceExit {
    tokio::time::timeout(Duration::from_secs(10), exits.next()).await.expect("no exit in time").unwrap()
}

#[tokio::test]
async fn an_engine_has_its_own_folder_streams_and_environment() {
    let fixture = Fixture::new("pwd; env; cat; echo oops >&2; echo ready");
    fixture.launch_and_wait().await;
    let log = fixture.backend.log_tail(fixture.engine_id, 100).await.unwrap();
    let home = fixture.home().display().to_string();
    assert_eq!(log[0], home);
    assert_eq!(log[log.len() - 2..], ["oops", "ready"]);
    let mut names: Vec<_> = log.iter().filter_map(|line| Some(line.split_once('=')?.0)).collect();
    // Variables that the shell sets itself, and one that this host may or may not have.
    names.retain(|name| !["PWD", "OLDPWD", "SHLVL", "_", "TZ"].contains(name));
    names.sort_unstable();
    assert_eq!(
        names,
        [
            "CATALOG_DIR",
            "ENGINE_HOST",
            "ENGINE_KEY_HASH",
            "ENGINE_PORT",
            "HOME",
            "LANG",
            "LLM_API_KEY",
            "PATH",
            "SQLITE_DB_PATH",
        ]
    );
    for line in
        [format!("HOME={home}"), format!("SQLITE_DB_PATH={home}/brain.sqlite"), "ENGINE_PORT=9001".into()]
    {
        assert!(log.contains(&line), "{line} is not in {log:?}");
    }
}

#[tokio::test]
async fn an_engine_that_obeys_ends_by_itself() {
    let fixture = Fixture::new(OBEDIENT);
    let mut exits = fixture.backend.exits();
    let instance = fixture.launch_and_wait().await;
    assert_eq!(
        fixture.backend.list().await.unwrap(),
        [EngineListing { engine_id: fixture.engine_id, instance, generation: 1, running: true }]
    );
    fixture.backend.stop(fixture.target(), Duration::from_secs(30)).await.unwrap();
    assert_eq!(next(&mut exits).await.reason.as_deref(), Some("exit status: 7"));
    assert!(fixture.backend.list().await.unwrap().is_empty());
    // Stopping an engine that does not run succeeds.
    fixture.backend.stop(fixture.target(), Duration::from_secs(30)).await.unwrap();
}

/// A child of an engine has the engine's label between fork and exec. This one never calls exec.
#[tokio::test]
async fn a_child_of_an_engine_is_no_engine() {
    let fixture = Fixture::new(
        "( while :; do sleep 0.01; done ) & child=$!; trap 'kill $child; exit 0' TERM; echo ready; wait",
    );
    let instance = fixture.launch_and_wait().await;
    let engine: i32 = instance.as_str().split('.').next().unwrap().parse().unwrap();
    let children = fs::read_to_string(format!("/proc/{engine}/task/{engine}/children")).unwrap();
    let child: i32 = children.split_whitespace().next().unwrap().parse().unwrap();
    let line = |pid: i32| fs::read(format!("/proc/{pid}/cmdline")).unwrap();
    assert_eq!(line(child), line(engine), "the child does not have the label");
    let found = found(&fixture.options);
    assert_eq!(found.iter().map(|found| found.identity.instance()).collect::<Vec<_>>(), [instance]);
    fixture.backend.stop(fixture.target(), Duration::from_secs(30)).await.unwrap();
}

#[tokio::test]
async fn regression_o07_an_engine_that_does_not_obey_is_gone_after_its_grace() {
    let fixture = Fixture::new(STUBBORN);
    let mut exits = fixture.backend.exits();
    fixture.launch_and_wait().await;
    fixture.backend.stop(fixture.target(), Duration::from_millis(50)).await.unwrap();
    assert_eq!(next(&mut exits).await.reason.as_deref(), Some("signal: 9 (SIGKILL)"));
    assert!(found(&fixture.options).is_empty());
}

#[tokio::test]
async fn a_launch_ends_the_engines_earlier_process_first() {
    let fixture = Fixture::new(STUBBORN);
    let first = fixture.launch_and_wait().await;
    let second = fixture.backend.launch(fixture.launch()).await.unwrap();
    assert_ne!(first, second);
    assert_eq!(found(&fixture.options).len(), 1);
}

#[tokio::test]
async fn a_later_orchestrator_finds_watches_and_ends_what_an_earlier_one_launched() {
    let fixture = Fixture::new(OBEDIENT);
    let instance = fixture.launch_and_wait().await;
    let later = new_backend(&fixture.options);
    let mut exits = later.exits();
    let listed = later.list().await.unwrap();
    assert_eq!(
        listed,
        [EngineListing {
            engine_id: fixture.engine_id,
            instance: instance.clone(),
            generation: 1,
            running: true
        }]
    );
    later.stop(fixture.target(), Duration::from_secs(30)).await.unwrap();
    let exit = next(&mut exits).await;
    assert_eq!((exit.engine_id, exit.instance), (fixture.engine_id, instance));
    // Another deployment's engines are not touched.
    let fixture = Fixture::new(OBEDIENT);
    fixture.launch_and_wait().await;
    let other = new_backend(&Options { deployment_id: "another".into(), ..fixture.options.clone() });
    assert!(other.list().await.unwrap().is_empty());
    other.kill(fixture.target()).await.unwrap();
    assert_eq!(fixture.backend.list().await.unwrap().len(), 1);
}

/// A process of another deployment that has the id of this deployment's engine.
#[tokio::test]
async fn regression_o01_what_bears_our_name_and_anothers_label_is_never_touched() {
    let fixture = Fixture::new(OBEDIENT);
    let instance = fixture.launch_and_wait().await;
    let roots = tempfile::tempdir().unwrap();
    let other = new_backend(&Options {
        deployment_id: "another".into(),
        data_root: roots.path().join("engines"),
        ..fixture.options.clone()
    });
    assert!(other.list().await.unwrap().is_empty());
    other.stop(fixture.target(), Duration::ZERO).await.unwrap();
    other.kill(fixture.target()).await.unwrap();
    other.remove_with_data(fixture.target()).await.unwrap();
    assert!(fixture.home().exists());
    let found = found(&fixture.options);
    assert_eq!(found.iter().map(|found| found.identity.instance()).collect::<Vec<_>>(), [instance]);
}

/// A replaced orchestrator, for example one that was frozen, acts on an engine that its successor has launched.
#[tokio::test]
async fn regression_o24_what_a_replaced_orchestrator_does_late_touches_no_later_process() {
    let fixture = Fixture::new(STUBBORN);
    fixture.launch_and_wait().await;
    let successor = new_backend(&fixture.options);
    let later = LaunchSpec { generation: 2, ..fixture.launch() };
    let instance = successor.launch(later).await.unwrap();
    let superseded = Err(BackendError::Superseded { generation: 2 });
    let replaced = &fixture.backend;
    assert_eq!(replaced.stop(fixture.target(), Duration::ZERO).await, superseded);
    assert_eq!(replaced.kill(fixture.target()).await, superseded);
    assert_eq!(replaced.remove_instance(fixture.target()).await, superseded);
    assert_eq!(replaced.remove_with_data(fixture.target()).await, superseded);
    assert_eq!(replaced.launch(fixture.launch()).await.map(drop), superseded);
    // It had searched for other processes before it was frozen.
    assert_eq!(replaced.inner.launch(&fixture.launch()).await.map(drop), superseded);
    let alive = EngineListing { engine_id: fixture.engine_id, instance, generation: 2, running: true };
    for backend in [&successor, replaced] {
        assert_eq!(backend.list().await.unwrap(), std::slice::from_ref(&alive));
    }
    assert!(fixture.home().exists());
}

#[tokio::test]
async fn of_two_orchestrators_that_launch_at_once_the_later_change_has_the_engine() {
    let fixture = Fixture::new(STUBBORN);
    fs::write(fixture.home().join("brain.sqlite"), "").unwrap();
    let successor = new_backend(&fixture.options);
    for generation in 2..12 {
        let later = LaunchSpec { generation, ..fixture.launch() };
        let earlier = LaunchSpec { generation: generation - 1, ..fixture.launch() };
        let (_, instance) = tokio::join!(fixture.backend.launch(earlier), successor.launch(later));
        let instance = instance.unwrap();
        let found = found(&fixture.options);
        assert_eq!(found.iter().map(|found| found.identity.instance()).collect::<Vec<_>>(), [instance]);
    }
}

#[tokio::test]
async fn regression_o07_two_hundred_naps_leave_the_brain_intact() {
    // Writes a line when it starts, and another on SIGTERM.
    let fixture =
        Fixture::new("trap 'kill $!; echo down >> brain; exit 0' TERM; sleep 60 & echo up >> brain; wait");
    let brain = fixture.home().join("brain");
    let mut expected = String::new();
    for _ in 0..200 {
        fixture.backend.launch(fixture.launch()).await.unwrap();
        expected.push_str("up\n");
        let started = async {
            while fs::read_to_string(&brain).unwrap_or_default() != expected {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(5), started)
            .await
            .expect("the brain does not have the expected lines");
        fixture.backend.stop(fixture.target(), Duration::from_secs(30)).await.unwrap();
        expected.push_str("down\n");
    }
    assert_eq!(fs::read_to_string(&brain).unwrap(), expected);
}

/// Uses the command line that version 0.1 gave its engines, with this test's ids.
#[tokio::test]
async fn regression_o19_what_an_earlier_version_started_is_found_and_driven() {
    let fixture = Fixture::new(OBEDIENT);
    let line = include_str!("../../fixtures/0.1/command_line.txt");
    let words: Vec<String> = line
        .split_whitespace()
        .map(|word| word.replace("DEPLOYMENT", &fixture.options.deployment_id))
        .map(|word| word.replace("ENGINE", &fixture.engine_id.to_string()))
        .collect();
    let mut command = tokio::process::Command::new("/bin/sh");
    command.arg0(&words[0]).args(&words[1..]).current_dir(fixture.home());
    let folder = fixture.backend.inner.folders.folder(fixture.engine_id);
    folder.prepare(true).unwrap();
    let mut earlier = spawn::spawn(command, folder.open_log().unwrap()).unwrap();
    fixture.wait_for_log_line("ready").await;
    let listed = fixture.backend.list().await.unwrap();
    assert_eq!(listed.iter().map(|listed| listed.engine_id).collect::<Vec<_>>(), [fixture.engine_id]);
    fixture.backend.stop(fixture.target(), Duration::from_secs(30)).await.unwrap();
    assert_eq!(earlier.wait().await.unwrap().code(), Some(7));
}

#[tokio::test]
async fn an_adoption_that_fails_part_way_leaves_nothing_to_be_watched_twice() {
    let fixture = Fixture::new(OBEDIENT);
    let instance = fixture.launch_and_wait().await;
    let later = new_backend(&fixture.options);
    let mut found = found(&fixture.options);
    let invalid = ProcessIdentity { pid: 0, ..found[0].identity.clone() };
    found.push(FoundProcess { engine_id: EngineId::new(), identity: invalid, generation: 1 });
    assert!(later.inner.watch_all(found).is_err());
    let listed = later.list().await.unwrap();
    assert_eq!(
        listed,
        [EngineListing { engine_id: fixture.engine_id, instance, generation: 1, running: true }]
    );
}

#[tokio::test]
async fn a_kill_that_comes_while_an_engine_is_launched_ends_it() {
    let fixture = Fixture::new(STUBBORN);
    for _ in 0..20 {
        let launch = fixture.backend.launch(fixture.launch());
        tokio::select! {
            biased;
            _ = launch => {}
            // The caller gives up at some point; the launch may continue.
            () = tokio::task::yield_now() => {}
        }
        fixture.backend.kill(fixture.target()).await.unwrap();
        assert!(found(&fixture.options).is_empty());
    }
}

#[tokio::test]
async fn regression_o14_removal_ends_the_engine_and_takes_its_folder() {
    let fixture = Fixture::new(STUBBORN);
    fixture.launch_and_wait().await;
    fixture.backend.remove_with_data(fixture.target()).await.unwrap();
    assert!(!fixture.home().exists() && fixture.options.data_root.exists());
    assert!(found(&fixture.options).is_empty());
    fixture.backend.remove_with_data(fixture.target()).await.unwrap();
}

#[tokio::test]
async fn a_recycled_pid_is_never_taken_for_an_engine() {
    let fixture = Fixture::new(OBEDIENT);
    fixture.launch_and_wait().await;
    let identity = found(&fixture.options).remove(0).identity;
    let earlier_start = ProcessIdentity { start_ticks: identity.start_ticks - 1, ..identity.clone() };
    assert!(WatchedProcess::adopt(earlier_start, 1).unwrap().is_none());
    let other_boot = ProcessIdentity { boot_id: "another".into(), ..identity };
    assert!(WatchedProcess::adopt(other_boot, 1).unwrap().is_none());
}

#[tokio::test]
async fn what_cannot_be_launched_says_why() {
    let fixture = Fixture::new(OBEDIENT);
    let backend = new_backend(&Options { program: "/nowhere/roundhouse".into(), ..fixture.options.clone() });
    let error = backend.launch(fixture.launch()).await.unwrap_err();
    assert!(matches!(&error, BackendError::Failed(reason) if reason.contains("No such file")), "{error}");
    let other: EngineImage = "svc-engine:99.0.0".parse().unwrap();
    assert_eq!(backend.check_image(&other).await, Err(BackendError::NoImage(other.clone())));
    assert!(backend.check_image(&fixture.launch().image).await.is_ok());
}

#[tokio::test]
async fn a_port_is_free_unless_something_listens_there() {
    let fixture = Fixture::new(OBEDIENT);
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    assert!(!fixture.backend.port_is_free(port));
    drop(listener);
    assert!(fixture.backend.port_is_free(port));
}

#[tokio::test]
async fn an_engine_is_on_its_port_of_this_host_and_has_the_url_of_the_host_that_is_named() {
    let options = Options { url_host: "engines.example".into(), ..Fixture::new(OBEDIENT).options.clone() };
    let (backend, engine_id) = (new_backend(&options), EngineId::new());
    assert_eq!(backend.addressing(), Addressing::HostPort);
    assert_eq!(backend.addressing().placement(None), None);
    let placement = backend.addressing().placement(Some(9_001)).unwrap();
    assert_eq!(backend.address(engine_id, placement), Some("127.0.0.1:9001".parse().unwrap()));
    assert_eq!(backend.url_authority(engine_id, placement).as_deref(), Some("engines.example:9001"));
    assert_eq!(backend.address(engine_id, Placement::OwnAddress), None);
    assert_eq!(backend.url_authority(engine_id, Placement::OwnAddress), None);
}

/// A search of all processes of the host for each of hundreds of launches would slow down everything else.
#[tokio::test]
async fn those_who_look_for_processes_at_once_share_a_look_and_see_what_was_launched_before() {
    let fixture = Fixture::new(OBEDIENT);
    fixture.launch_and_wait().await;
    let other = new_backend(&fixture.options);
    let mut pings: FuturesUnordered<_> = (0..50).map(|_| other.ping()).collect();
    while let Some(pinged) = pings.next().await {
        pinged.unwrap();
        assert_eq!(other.inner.running.lock().len(), 1);
    }
    assert_eq!(other.inner.searches.load(Ordering::SeqCst), 2, "one that was under way, and one after it");
}
