//! Story 10: each key is stored only in its own file, and the registry stores only hashes.

use std::fs;
use std::path::{Path, PathBuf};

use api::KeyHash;
use rustix::process::Signal;
use serde_json::json;

use crate::support::http::{client, send};
use crate::support::processes::contains;
use crate::support::turn::assert_completed;
use crate::support::{Engine, Fleet, ProgramExit};

/// All files below a folder.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(files_below(&path));
        } else {
            files.push(path);
        }
    }
    files
}

/// Asserts that no file of the deployment contains `secret`, except the allowed ones, nor the output of `up`.
fn assert_stored_only_in(fleet: &Fleet, exit: &ProgramExit, what: &str, secret: &str, allowed: &[&str]) {
    for file in files_below(fleet.folder()) {
        let name = file.file_name().unwrap().to_str().unwrap();
        let found = contains(&fs::read(&file).unwrap(), secret.as_bytes());
        assert!(!found || allowed.contains(&name), "{what} is stored in {}", file.display());
    }
    assert!(!exit.output.contains(secret), "{what} was printed");
}

#[tokio::test]
async fn no_key_stands_anywhere_but_in_its_own_file() {
    let provider = mock_llm::MockProvider::start().await.unwrap();
    let fleet = Fleet::new()
        .with_provider(&provider)
        .with_env("LLM_API_KEY", "the-providers-secret-key")
        .with_env("UNRELATED_SECRET", "not-for-engines");
    let up = fleet.start_up().await;
    let (product, other) = (up.product(), up.register("other", json!({})).await);
    let engine = product.engine("ada").await;
    let deleted = product.engine("bob").await;
    assert_completed(&engine.execute("task", "Hello!").await.collect().await);
    // Errors are where keys leak: a wrong key, a key in a body, a key in a path.
    let mut wrong = engine.clone();
    wrong.key = "sk-svc-a-wrong-key-that-somebody-tried-to-enter-with".to_owned();
    send(wrong.request(reqwest::Method::GET, "/openapi.json")).await.assert_error(401, "INVALID_ENGINE_KEY");
    send(client().get(format!("{}/engines", up.base)).header("x-platform-key", &wrong.key))
        .await
        .assert_error(401, "INVALID_PLATFORM_KEY");
    product.provision("").await.assert_error(400, "INVALID_REQUEST");
    product.delete("bob").await.assert_ok("status:text engine_id:engine");
    let master_key = fs::read_to_string(fleet.folder().join("master.key")).unwrap().trim().to_owned();
    let environment = fs::read(format!("/proc/{}/environ", fleet.engine_process().as_raw_nonzero())).unwrap();
    assert!(!contains(&environment, master_key.as_bytes()) && !contains(&environment, b"ORCH_"));
    assert!(!contains(&environment, b"not-for-engines"), "an engine inherits no environment");
    assert!(!contains(&environment, engine.key.as_bytes()), "an engine knows only the hash of its key");
    let secrets_key = environment
        .split(|byte| *byte == 0)
        .find_map(|variable| variable.strip_prefix(b"AD_ENCRYPTION_KEY="));
    let secrets_key =
        String::from_utf8(secrets_key.expect("each engine has its own secrets key").to_vec()).unwrap();
    let admin_key = up.admin_key();
    // Checked twice: while it runs the write-ahead logs are full, and after its end they are checkpointed.
    let running = ProgramExit { code: None, output: up.program.output() };
    let assert_keys_protected = |exit: &ProgramExit| {
        let files = ["platform.key", "platform.header"];
        assert_stored_only_in(&fleet, exit, "the platform key", &product.key, &files);
        assert_stored_only_in(&fleet, exit, "the admin key", &admin_key, &["admin.key"]);
        assert_stored_only_in(&fleet, exit, "the master key", &master_key, &["master.key"]);
        for (what, key) in [
            ("another product's key", &other.key),
            ("an engine's key", &engine.key),
            ("a deleted engine's key", &deleted.key),
            ("a wrong key", &wrong.key),
            ("an engine's secrets key", &secrets_key),
            ("the provider's key", &"the-providers-secret-key".to_owned()),
        ] {
            assert_stored_only_in(&fleet, exit, what, key, &[]);
        }
    };
    assert_keys_protected(&running);
    let exit = up.signal_and_wait(Signal::TERM).await;
    assert_keys_protected(&exit);

    // Only the registry stores the hashes.
    let registry = ["registry.sqlite", "registry.sqlite-wal"];
    for (what, key) in [("platform", &product.key), ("other platform", &other.key), ("engine", &engine.key)] {
        let hash = KeyHash::of(key).to_hex();
        assert_stored_only_in(&fleet, &exit, &format!("the hash of the {what} key"), &hash, &registry);
    }
    for key in [&admin_key, &master_key] {
        assert_stored_only_in(
            &fleet,
            &exit,
            "the hash of a key of the deployment",
            &KeyHash::of(key).to_hex(),
            &[],
        );
    }
}

#[tokio::test]
async fn only_the_owner_can_read_the_keys() {
    use std::os::unix::fs::PermissionsExt as _;

    let fleet = Fleet::new();
    let _up = fleet.start_up().await;
    for name in ["platform.key", "platform.header", "admin.key", "master.key"] {
        let mode = fs::metadata(fleet.folder().join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

#[tokio::test]
async fn keys_are_made_once() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let keys = |names: [&str; 3]| names.map(|name| fs::read_to_string(fleet.folder().join(name)).unwrap());
    let names = ["platform.key", "admin.key", "master.key"];
    let before = keys(names);
    up.signal_and_wait(Signal::TERM).await.assert_success();
    let up = fleet.start_up().await;
    assert_eq!(keys(names), before);
    // Two engines have different keys.
    let engines: Vec<Engine> = vec![up.product().engine("ada").await, up.product().engine("bob").await];
    assert_ne!(engines[0].key, engines[1].key);
}
