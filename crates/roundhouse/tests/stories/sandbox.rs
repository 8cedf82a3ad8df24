//! Story 42 (lesson e09): programs that the agent runs reach only what they were given, and end with their engine.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use reqwest::Method;
use rustix::process::Signal;
use serde_json::json;

use crate::support::engine_calls::direct_message;
use crate::support::http::send;
use crate::support::tool_programs::{
    LINGERING_PROGRAM_COUNT, LINGERING_PROGRAMS, done_reply, shell_reply, tool_reply, tool_results,
    write_catalog_file,
};
use crate::support::turn::{assert_cancelled, assert_completed};
use crate::support::{
    Engine, EngineFixture, EventStream, Fleet, StandaloneEngine, eventually, is_installed, processes, skip,
};

/// The processes of [`LINGERING_PROGRAMS`] in this workspace.
fn lingering_processes(workspace: &Path) -> Vec<rustix::process::Pid> {
    // `/proc/PID/cmdline` separates arguments by null bytes.
    let mark = format!("clings\0{}\0", workspace.display());
    processes::with_command_line_text(mark.as_ref())
}

/// Starts a turn and waits until all of [`LINGERING_PROGRAMS`] run.
async fn start_lingering_programs(fixture: &EngineFixture) -> EventStream {
    let stream = fixture.engine.execute_with(&direct_message("task", "Stay.")).await;
    let workspace = fixture.setup.workspace();
    eventually("the programs run", async || {
        (lingering_processes(&workspace).len() == LINGERING_PROGRAM_COUNT).then_some(())
    })
    .await;
    stream
}

/// The response to a shell command that is run without a turn, also if it fails.
async fn shell_output(engine: &Engine, command: &str) -> String {
    let body = json!({"method": "tool.shell", "params": {"command": command, "timeout_s": 20}});
    engine.post("/rpc", &body).await.body.to_string()
}

/// The confinement that the engine reports for its programs.
async fn confinement(engine: &Engine) -> String {
    engine.activity().await["confinement"].as_str().unwrap().to_owned()
}

/// Whether programs are confined; otherwise logs that the test is skipped.
pub(crate) async fn is_confined(engine: &Engine) -> bool {
    let level = confinement(engine).await;
    let confined = level.contains("landlock");
    if !confined {
        skip(&format!("a kernel that confines programs: {level}"));
    }
    confined
}

#[tokio::test]
async fn regression_e09_an_engine_that_is_killed_leaves_no_program_behind() {
    if !is_installed("perl") {
        return;
    }
    let fixture = EngineFixture::allowing_all_tools([shell_reply(LINGERING_PROGRAMS), done_reply()]).await;
    let stream = start_lingering_programs(&fixture).await;
    let fixture = fixture.kill_and_start().await;
    drop(stream.collect_until_broken().await);
    let workspace = fixture.setup.workspace();
    eventually("the programs are gone", async || lingering_processes(&workspace).is_empty().then_some(()))
        .await;
    // The turn continues; the command's outcome is unknown, and it is not run again.
    let events = fixture.engine.replay("task", 0).await.collect().await;
    assert_eq!(assert_completed(&events), "Done.");
    assert!(tool_results(&events)[0].unwrap_err().contains("unknown"), "{events:#?}");
    assert_eq!(lingering_processes(&workspace), []);
}

#[tokio::test]
async fn an_engine_that_is_stopped_leaves_no_program_behind() {
    if !is_installed("perl") {
        return;
    }
    let fixture = EngineFixture::allowing_all_tools([shell_reply(LINGERING_PROGRAMS), done_reply()]).await;
    let _stream = start_lingering_programs(&fixture).await;
    let workspace = fixture.setup.workspace();
    fixture.program.signal_and_wait(Signal::TERM).await.assert_success();
    // The kernel may still be taking down what was killed.
    eventually("the programs are gone", async || lingering_processes(&workspace).is_empty().then_some(()))
        .await;
}

#[tokio::test]
async fn a_turn_that_is_cancelled_leaves_no_program_behind() {
    if !is_installed("perl") {
        return;
    }
    let fixture = EngineFixture::allowing_all_tools([shell_reply(LINGERING_PROGRAMS), done_reply()]).await;
    let stream = start_lingering_programs(&fixture).await;
    let start = Instant::now();
    let answer = fixture.engine.cancel("task").await;
    let elapsed = start.elapsed();
    let remaining = lingering_processes(&fixture.setup.workspace());
    eprintln!("cancelled within {elapsed:?}");
    answer.assert_ok("status:text turn_id:turn");
    assert_eq!(remaining, [], "no program is left when the cancel is answered");
    // The guarantee is 250 ms; a busy machine may need longer.
    assert!(elapsed < Duration::from_secs(1), "it took {elapsed:?}");
    assert_cancelled(&stream.collect().await);
    fixture.provider.take_refusals();
    assert_eq!(fixture.engine.health().await["status"], "ok");
}

#[tokio::test]
async fn a_caller_who_goes_leaves_no_program_behind() {
    if !is_installed("perl") {
        return;
    }
    let fixture = EngineFixture::allowing_unconfined([]).await;
    let body = json!({"method": "tool.shell", "params": {"command": LINGERING_PROGRAMS}});
    let calling = tokio::spawn(fixture.engine.request(Method::POST, "/rpc").json(&body).send());
    let workspace = fixture.setup.workspace();
    eventually("the programs run", async || {
        (lingering_processes(&workspace).len() == LINGERING_PROGRAM_COUNT).then_some(())
    })
    .await;
    calling.abort();
    eventually("the programs are gone", async || lingering_processes(&workspace).is_empty().then_some(()))
        .await;
    assert!(shell_output(&fixture.engine, "echo well").await.contains("well"));
}

#[tokio::test]
async fn a_command_that_ends_leaves_no_program_behind() {
    if !is_installed("perl") {
        return;
    }
    let daemon = "perl -MPOSIX -e 'exit if fork; POSIX::setsid(); sleep 600' clings \"$PWD\"; echo ended";
    let fixture = EngineFixture::allowing_all_tools([shell_reply(daemon), done_reply()]).await;
    let events = fixture.engine.run_turn("task", "Leave one behind.").await;
    assert!(tool_results(&events)[0].unwrap().contains("ended"));
    assert_eq!(lingering_processes(&fixture.setup.workspace()), []);
}

#[tokio::test]
async fn a_command_sees_neither_the_engine_nor_what_is_its_own() {
    let fixture = EngineFixture::allowing_all_tools([]).await;
    if !is_confined(&fixture.engine).await {
        return;
    }
    let (brain, home) = (fixture.setup.brain(), fixture.setup.test_env.path().to_owned());
    let engine = fixture.program.pid().as_raw_nonzero();
    fs::write(home.join("diary"), "a secret beside the brain").unwrap();
    let own = fs::read(format!("/proc/{engine}/environ")).unwrap();
    let hash = fixture.setup.variables["ENGINE_KEY_HASH"].clone();
    assert!(processes::contains(&own, b"provider-key") && processes::contains(&own, hash.as_bytes()));

    let environment = shell_output(&fixture.engine, "env").await;
    assert!(environment.contains("HOME=") && environment.contains("TMPDIR="), "{environment}");
    for secret in ["provider-key", hash.as_str(), "ENGINE_", "LLM_", "SQLITE_DB_PATH"] {
        assert!(!environment.contains(secret), "{secret:?} is in its environment: {environment}");
    }
    let brain = brain.display();
    let home = home.display();
    for command in [
        format!("head -c 16 {brain}"),
        "cat ../diary".to_owned(),
        "ln -s .. up && cat up/diary".to_owned(),
        format!("cp {brain} stolen"),
        format!("ln {brain} linked"),
        format!("echo x >> {brain}"),
        format!("rm {brain}"),
        format!("mv {brain} moved"),
        format!("ls {home}"),
        format!("touch {home}/written"),
        format!("cat {home}/catalog/../diary"),
        "cat /etc/shadow".to_owned(),
        "ls /etc".to_owned(),
        "ls /root".to_owned(),
        "ls /tmp".to_owned(),
        "touch /tmp/written-by-a-story".to_owned(),
        "ls /proc".to_owned(),
        format!("cat /proc/{engine}/environ"),
        format!("cat /proc/{engine}/cmdline"),
        format!("ls /proc/{engine}/fd"),
        "cat /proc/self/environ".to_owned(),
        "cat /proc/$PPID/environ".to_owned(),
        format!("kill -KILL {engine}"),
        format!("kill -STOP {engine}"),
        "kill -KILL $PPID".to_owned(),
        format!("touch {home}/catalog/planted"),
    ] {
        let output = shell_output(&fixture.engine, &format!("({command}) && echo it was let")).await;
        assert!(!output.contains("it was let\\n") && !output.contains("a secret"), "{command}: {output}");
        assert!(output.contains("exit code"), "it was tried: {command}: {output}");
    }
    assert_eq!(
        fs::read_to_string(fixture.setup.test_env.path().join("diary")).unwrap(),
        "a secret beside the brain"
    );
    assert_eq!(fixture.engine.health().await["status"], "ok");
    fixture.engine.run_turn("task", "Are you there?").await;
}

/// Sandboxed programs get no file notifications (inotify), which would reveal what other users do.
#[tokio::test]
async fn a_program_that_waits_for_a_file_to_change_looks_for_itself() {
    let fixture = EngineFixture::allowing_all_tools([]).await;
    if !is_confined(&fixture.engine).await {
        return;
    }
    let follow = "touch log; timeout 9 tail -f log > seen & sleep 0.2; echo news >> log; \
                  until grep news seen; do sleep 0.05; done; kill $!";
    let output = shell_output(&fixture.engine, follow).await;
    assert!(output.contains("news"), "{output}");
    if Path::new("/usr/bin/node").exists() {
        let script = "const fs = require('fs'); fs.writeFileSync('a', 'a'); \
                      try { fs.watch('a') } catch (error) { console.log(error.code) } \
                      fs.watchFile('a', {interval: 20}, () => { console.log('seen'); process.exit() }); \
                      setTimeout(() => fs.writeFileSync('a', 'longer'), 100)";
        let output = shell_output(&fixture.engine, &format!("node -e \"{script}\"")).await;
        assert!(output.contains("ENOSYS") && output.contains("seen"), "{output}");
    }
}

#[tokio::test]
async fn a_command_has_what_it_needs() {
    if !is_installed("perl") {
        return;
    }
    let fixture = EngineFixture::allowing_all_tools([]).await;
    for (command, expected) in [
        ("pwd", "/workspace"),
        ("echo kept > $TMPDIR/x && cat $TMPDIR/x", "kept"),
        ("f=$(mktemp) && echo made > $f && cat $f", "made"),
        ("echo '#!/bin/sh\necho it runs' > run.sh && chmod +x run.sh && ./run.sh", "it runs"),
        ("cat $HOME/run.sh", "it runs"),
        ("echo gone > /dev/null && head -c 4 /dev/zero | wc -c", "4"),
        ("id -u", "0"),
        ("getent passwd root | cut -d: -f1", "root"),
        ("date -u +%Z", "UTC"),
        ("perl -e 'print 6 * 7'", "42"),
        ("seq 3 | xargs -P 3 -n 1 echo | sort | tr -d '\\n'", "123"),
    ] {
        if command.starts_with("id ") && !rustix::process::getuid().is_root() {
            continue;
        }
        let output = shell_output(&fixture.engine, command).await;
        assert!(output.contains(expected) && output.contains("exit code 0"), "{command}: {output}");
    }
}

#[tokio::test]
async fn under_up_a_users_commands_see_nothing_of_other_users_and_of_the_fleet() {
    if !is_installed("perl") {
        return;
    }
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let product = up.product();
    let (ada, bob) = (product.engine("ada").await, product.engine("bob").await);
    if !is_confined(&ada).await {
        return;
    }
    bob.run_turn("task", "I am bob.").await;
    shell_output(&bob, "echo mine > diary").await;
    let folder = fleet.folder();
    let bobs_folder = fleet.engine_folder(&bob.id);
    assert!(bobs_folder.join("workspace/diary").exists(), "there is a file to protect");
    let bobs_pid = processes::engines_in_folder(&bobs_folder)[0].as_raw_nonzero();
    let orchestrator = up.program.pid().as_raw_nonzero();
    let port: u16 = bob.url.rsplit(':').next().unwrap().parse().unwrap();
    let (folder, bobs_folder) = (folder.display(), bobs_folder.display());
    for command in [
        format!("cat {bobs_folder}/workspace/diary"),
        format!("ls {bobs_folder}"),
        format!("head -c 16 {bobs_folder}/brain.sqlite"),
        format!("cat ../../{}/workspace/diary", bob.id),
        format!("ls {folder}/engines"),
        format!("cat {folder}/admin.key"),
        format!("cat {folder}/master.key"),
        format!("cat {folder}/platform.key"),
        format!("head -c 16 {folder}/registry.sqlite"),
        format!("kill -KILL {bobs_pid}"),
        format!("kill -KILL {orchestrator}"),
        format!("cat /proc/{bobs_pid}/environ"),
        format!("perl -MIO::Socket::INET -e 'IO::Socket::INET->new(\"127.0.0.1:{port}\") or exit 1'"),
    ] {
        let output = shell_output(&ada, &format!("({command}) && echo it was let")).await;
        assert!(!output.contains("it was let\\n") && !output.contains("mine"), "{command}: {output}");
        assert!(output.contains("exit code"), "it was tried: {command}: {output}");
    }
    let environment = shell_output(&ada, "env").await;
    for secret in [ada.key.as_str(), product.key.as_str(), &up.admin_key(), "ENGINE_KEY_HASH", "ORCH_"] {
        assert!(!environment.contains(secret), "{environment}");
    }
    bob.run_turn("task", "I am here.").await;
}

#[tokio::test]
async fn where_programs_cannot_be_confined_the_agent_runs_none() {
    if !is_installed("python3") {
        return;
    }
    let tool = r#"{"description": "Runs a program.", "command": ["true"]}"#;
    let skill = "---\nname: counting\ndescription: Counts.\n---\n\nCount.\n";
    let configure = |setup: StandaloneEngine| {
        setup
            .without_landlock()
            .with_catalog_file("permissions.json", r#"{"default": "allow"}"#)
            .with_catalog_file("tools/program.json", tool)
            .with_catalog_file("skills/counting/SKILL.md", skill)
            .with_catalog_file("skills/counting/scripts/count.sh", "touch ran")
    };
    let script = json!({"skill": "counting", "script": "count.sh"});
    let replies = [
        shell_reply("touch ran"),
        tool_reply("program", json!({})),
        tool_reply("run_skill_script", script),
        done_reply(),
    ];
    let fixture = EngineFixture::with_setup("anthropic", replies, configure).await;
    let events = fixture.engine.run_turn("task", "Run them.").await;
    assert!(tool_results(&events).iter().all(Result::is_err), "{events:#?}");
    assert!(!fixture.setup.workspace().join("ran").exists());
    let offered = fixture.offered_tools();
    for tool in ["shell", "run_skill_script", "program"] {
        assert!(!offered.iter().any(|name| name == tool), "{offered:?}");
    }
    assert!(offered.iter().any(|name| name == "write_file"), "the other tools are offered: {offered:?}");
    let body = json!({"method": "tool.shell", "params": {"command": "touch ran"}});
    fixture.engine.post("/rpc", &body).await.assert_flat_error(404, "METHOD_NOT_FOUND");
    assert!(!confinement(&fixture.engine).await.contains("landlock,"));
    let output = fixture.program.output();
    assert!(output.contains("ENGINE_ALLOW_UNCONFINED"), "the log names the setting: {output}");
    assert_eq!(fixture.engine.health().await["status"], "ok");
}

#[tokio::test]
async fn programs_run_unconfined_where_that_is_said() {
    if !["python3", "perl"].into_iter().all(is_installed) {
        return;
    }
    let configure = |setup: StandaloneEngine| setup.without_landlock().allowing_all_tools();
    let fixture = EngineFixture::with_setup(
        "anthropic",
        [shell_reply("cat ../brain.sqlite | head -c 15; env"), done_reply()],
        configure,
    )
    .await;
    let events = fixture.engine.run_turn("task", "Look.").await;
    let output = tool_results(&events)[0].unwrap();
    // They reach everything that the engine can, but still start with a clean environment.
    assert!(output.contains("SQLite format 3") && !output.contains("provider-key"), "{output}");
    let level = confinement(&fixture.engine).await;
    assert!(level.contains("unconfined"), "{level}");
    assert!(fixture.program.output().contains("WARN"), "{}", fixture.program.output());
    // And they still end with their engine.
    fixture.provider.enqueue_all([shell_reply(LINGERING_PROGRAMS), done_reply()]);
    let _stream = start_lingering_programs(&fixture).await;
    let workspace = fixture.setup.workspace();
    fixture.program.signal_and_wait(Signal::KILL).await;
    eventually("the programs are gone", async || lingering_processes(&workspace).is_empty().then_some(()))
        .await;
}

#[tokio::test]
async fn saying_that_they_may_run_unconfined_confines_no_less_where_that_is_possible() {
    let (_program, plain) = {
        let setup = StandaloneEngine::new();
        let (program, engine) = setup.start().await;
        ((program, setup), confinement(&engine).await)
    };
    if !plain.contains("landlock, ") {
        skip(&format!("a kernel that confines programs: {plain}"));
        return;
    }
    let setup = StandaloneEngine::new().allowing_unconfined();
    let (_other, engine) = setup.start().await;
    assert_eq!(confinement(&engine).await, plain);
    let output = shell_output(&engine, "cat ../brain.sqlite").await;
    assert!(!output.contains("SQLite format"), "{output}");
}

#[tokio::test]
async fn files_with_keys_are_read_by_no_program_and_a_tools_own_program_runs() {
    let tool = r#"{"description": "Says hello.", "command": ["/bin/sh", "tools/hello.sh"]}"#;
    let configure = |setup: StandaloneEngine| {
        setup
            .allowing_all_tools()
            .with_catalog_file("tools/hello.sh", "cat \"$(dirname \"$0\")/greeting.txt\"")
            .with_catalog_file("tools/greeting.txt", "hello from the catalog")
            .with_catalog_file("tools/hello.json", tool)
            .with_catalog_file("mcp.json", r#"{"mcpServers": {}}"#)
    };
    let fixture = EngineFixture::with_setup("anthropic", [], configure).await;
    if !is_confined(&fixture.engine).await {
        return;
    }
    assert!(fixture.engine.tool_output("hello", json!({})).await.contains("hello from the catalog"));
    let catalog = &fixture.setup.variables["CATALOG_DIR"];
    for file in ["mcp.json", "tools/hello.json"] {
        let command = format!(
            "cat {catalog}/{file}; ln -s {catalog}/{file} link; cat link; rm link; cat {catalog}/tools/hello.sh"
        );
        let output = fixture.engine.tool_output("shell", json!({"command": command})).await;
        assert_eq!(output.matches("Permission denied").count(), 2, "{output}");
        assert!(output.contains("dirname") && !output.contains("mcpServers"), "{output}");
    }
}

#[tokio::test]
async fn programs_run_from_folders_that_the_catalog_names() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("hello");
    fs::write(&program, "#!/bin/sh\necho hello from elsewhere").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let tool = json!({"description": "Says hello.", "command": [program]}).to_string();
    let fixture = EngineFixture::with_setup("anthropic", [], |setup| {
        setup.allowing_all_tools().with_catalog_file("tools/hello.json", &tool)
    })
    .await;
    if !is_confined(&fixture.engine).await {
        return;
    }
    let refused = fixture.engine.call_tool("hello", json!({})).await.body.to_string();
    assert!(refused.contains("programs can be run that lie") && refused.contains("/usr"), "{refused}");
    let data = fixture.setup.test_env.path();
    let link = folder.path().with_extension("link");
    std::os::unix::fs::symlink(data, &link).unwrap();
    let permissions = json!({"default": "allow", "executable": [folder.path(), data, link, "relative", "/"]});
    write_catalog_file(
        Path::new(&fixture.setup.variables["CATALOG_DIR"]),
        "permissions.json",
        &permissions.to_string(),
    );
    let reloaded = send(fixture.engine.request(Method::POST, "/admin/reload-catalog")).await.body;
    assert_eq!(reloaded["warnings"].as_array().unwrap().len(), 2, "{reloaded}");
    assert!(fixture.engine.tool_output("hello", json!({})).await.contains("hello from elsewhere"));
    let command = json!({"command": format!("cat {}", fixture.setup.brain().display())});
    let output = fixture.engine.call_tool("shell", command).await.body.to_string();
    fs::remove_file(&link).unwrap();
    assert!(output.contains("Permission denied"), "the engine's data cannot be read: {output}");
}
