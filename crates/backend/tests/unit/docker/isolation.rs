//! The confinement of an engine in its container: privileges, files, environment and resource limits.

use api::policy::Policy;

use super::super::*;
use super::support::{Fixture, run_inside, target_of};

#[tokio::test]
async fn an_engine_has_no_power_over_anything_but_its_data() {
    let Some(fixture) = Fixture::new().await else { return };
    let launch = fixture.launch();
    let (port, key_hash) = (launch.placement.host_port().unwrap(), launch.key_hash.to_hex());
    fixture.launch_and_wait(launch).await;
    let user = fixture.options.user;
    assert_eq!(run_inside(port, "echo $(id -u):$(id -g)").await, user.to_string());
    // No capability is in any set, and programs that the engine runs cannot gain any.
    let privileges = run_inside(port, "grep -E '^(Cap|NoNewPrivs)' /proc/self/status").await;
    for line in privileges.lines() {
        let (name, value) = line.split_once(":\t").unwrap();
        let expected = if name == "NoNewPrivs" { "1" } else { "0000000000000000" };
        assert_eq!(value, expected, "{name}");
    }
    assert_eq!(privileges.lines().count(), 6, "{privileges}");
    for (command, error) in [
        ("touch /usr/bin/x", "Read-only file system"),
        ("touch /catalog/x", "Read-only file system"),
        ("cp /bin/true /tmp/x && chmod +x /tmp/x && /tmp/x", "Permission denied"),
        ("mount -t tmpfs none /data", "permitted|must be superuser|denied"),
    ] {
        let output = run_inside(port, command).await;
        assert!(error.split('|').any(|error| output.contains(error)), "{command}: {output}");
    }
    assert_eq!(run_inside(port, "cat /catalog/soul.md").await, "who it is");
    assert_eq!(run_inside(port, "stat -c '%a %u' /data && echo x > /data/x && cat /data/x").await, {
        let uid = user.to_string();
        format!("700 {}\nx", uid.split_once(':').unwrap().0)
    });
    assert_eq!(run_inside(port, "stat -c %a /tmp").await, "1777");
    // An init process reaps orphaned processes.
    assert!(run_inside(port, "cat /proc/1/comm").await.contains("init"));
    // The variables of the container contract and of the launch, and none of the orchestrator's.
    let names = run_inside(port, "env | cut -d= -f1 | sort").await;
    let mut names: Vec<_> = names.lines().collect();
    // Variables that the image, the daemon and the shell set.
    names.retain(|name| {
        !["HOME", "HOSTNAME", "PATH", "PWD", "OLDPWD", "SHLVL", "_", "LC_CTYPE"].contains(name)
    });
    assert_eq!(names, ["CATALOG_DIR", "ENGINE_KEY_HASH", "LLM_API_KEY", "SQLITE_DB_PATH"]);
    assert_eq!(
        run_inside(port, "echo $ENGINE_KEY_HASH $SQLITE_DB_PATH $CATALOG_DIR").await,
        format!("{key_hash} /data/brain.sqlite /catalog")
    );
}

#[tokio::test]
async fn caps_hold_and_are_shown() {
    let Some(fixture) = Fixture::new().await else { return };
    assert_eq!(fixture.backend.resource_limits(fixture.engine_id).await, Ok(None));
    let defaults = ResourceLimits { memory_mb: Some(1_024), cpus: Some(2.0), pids: Some(512) };
    fixture.launch_and_wait(fixture.launch()).await;
    assert_eq!(fixture.backend.resource_limits(fixture.engine_id).await, Ok(Some(defaults)));

    let policy = r#"{"engine_memory_mb": 128, "engine_cpus": 0.5, "engine_pids": 24}"#;
    let limits = ResourceLimits::from_policy(&serde_json::from_str::<Policy>(policy).unwrap());
    let launch = LaunchSpec { limits, ..fixture.launch() };
    let port = launch.placement.host_port().unwrap();
    fixture.launch_and_wait(launch).await;
    assert_eq!(fixture.backend.resource_limits(fixture.engine_id).await, Ok(Some(limits)));
    let output =
        run_inside(port, "for i in $(seq 40); do sleep 5 & done 2>&1; kill $(jobs -p) 2>/dev/null").await;
    assert!(output.contains("fork"), "it has more processes than its limit: {output}");
    let output = run_inside(port, "python3 -c 'print(len(b\"x\" * (512 << 20)))' || echo killed").await;
    assert!(output.contains("killed"), "it has more memory than its limit: {output}");
    fixture.backend.kill(target_of(fixture.engine_id)).await.unwrap();
    assert_eq!(fixture.backend.resource_limits(fixture.engine_id).await, Ok(None));
}
