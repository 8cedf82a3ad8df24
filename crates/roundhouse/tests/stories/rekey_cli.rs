//! `roundhouse rekey`: the operator changes the master key.

use std::collections::BTreeMap;
use std::fs;

use rustix::process::Signal;

use crate::support::turn::assert_completed;
use crate::support::{Fleet, ProgramExit};

const NEW_MASTER_KEY: &str = "BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBA";
const OTHER_MASTER_KEY: &str = "CCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCA";

/// Runs `roundhouse rekey`, which encrypts the deployment's secrets under the master key `new`.
async fn rekey(fleet: &Fleet, old: &str, new: &str) -> ProgramExit {
    let variables = BTreeMap::from([
        (
            "ORCH_DATABASE_URL".to_owned(),
            format!("sqlite:{}", fleet.folder().join("registry.sqlite").display()),
        ),
        ("ORCH_MASTER_KEY".to_owned(), new.to_owned()),
        ("ORCH_MASTER_KEY_OLD".to_owned(), old.to_owned()),
    ]);
    fleet.test_env.run(&["rekey"], &variables).wait().await
}

#[tokio::test]
async fn after_a_rekey_the_new_key_opens_everything_and_the_old_one_nothing() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let holder = up.program.pid().as_raw_nonzero().to_string();
    let (ada, _) = (up.product().engine("ada").await, up.product().engine("bob").await);
    let file = fleet.folder().join("master.key");
    let old = fs::read_to_string(&file).unwrap().trim().to_owned();
    // Not while an orchestrator holds the registry.
    rekey(&fleet, &old, NEW_MASTER_KEY).await.assert_failure(2, &["registry.sqlite", &holder]);
    up.signal_and_wait(Signal::TERM).await.assert_success();

    let output = rekey(&fleet, OTHER_MASTER_KEY, NEW_MASTER_KEY)
        .await
        .assert_failure(2, &["ORCH_MASTER_KEY_OLD", "nothing was changed"]);
    assert!(
        !output.contains(&old) && !output.contains(NEW_MASTER_KEY) && !output.contains(OTHER_MASTER_KEY),
        "the output shows a key: {output}"
    );
    let up = fleet.start_up().await;
    assert_eq!(up.product().engine("ada").await.key, ada.key, "nothing was changed");
    up.signal_and_wait(Signal::TERM).await.assert_success();

    let output = rekey(&fleet, &old, NEW_MASTER_KEY).await.assert_success();
    assert!(output.contains("2 engine(s)"), "{output}");
    let output = rekey(&fleet, &old, NEW_MASTER_KEY).await.assert_success();
    assert!(output.contains("already"), "{output}");
    fleet.run_failing_up().await.assert_failure(2, &["roundhouse rekey", "ORCH_MASTER_KEY_OLD"]);
    fs::write(&file, NEW_MASTER_KEY).unwrap();
    let up = fleet.start_up().await;
    let restarted_engine = up.product().engine("ada").await;
    assert_eq!(restarted_engine.key, ada.key);
    assert_completed(&restarted_engine.execute("task", "Hello!").await.collect().await);
    // The engine's encrypted secrets were converted too: it boots.
    up.product().stop("ada").await.assert_ok("status:text");
    up.product().start("ada").await.assert_ok("status:text url:url");
    up.signal_and_wait(Signal::TERM).await.assert_success();
}

#[tokio::test]
async fn all_that_is_missing_is_named_at_once() {
    let fleet = Fleet::new();
    let exit = fleet.test_env.run(&["rekey"], &BTreeMap::new()).wait().await;
    exit.assert_failure(2, &["ORCH_DATABASE_URL", "ORCH_MASTER_KEY is", "ORCH_MASTER_KEY_OLD is"]);
}
