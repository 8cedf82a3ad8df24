//! The operator changes the master key: `roundhouse rekey`.

use std::collections::BTreeMap;
use std::fs;

use rustix::process::Signal;

use crate::support::turn::assert_completed;
use crate::support::{Fleet, ProgramExit};

const NEW_MASTER_KEY: &str = "BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBA";
const OTHER_MASTER_KEY: &str = "CCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCA";

/// Seals the registry of a deployment under `new`.
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

    let said = rekey(&fleet, OTHER_MASTER_KEY, NEW_MASTER_KEY)
        .await
        .assert_failure(2, &["ORCH_MASTER_KEY_OLD", "nothing was changed"]);
    assert!(
        !said.contains(&old) && !said.contains(NEW_MASTER_KEY) && !said.contains(OTHER_MASTER_KEY),
        "a key is shown: {said}"
    );
    let up = fleet.start_up().await;
    assert_eq!(up.product().engine("ada").await.key, ada.key, "nothing was changed");
    up.signal_and_wait(Signal::TERM).await.assert_success();

    let said = rekey(&fleet, &old, NEW_MASTER_KEY).await.assert_success();
    assert!(said.contains("2 engine(s)"), "{said}");
    let said = rekey(&fleet, &old, NEW_MASTER_KEY).await.assert_success();
    assert!(said.contains("already"), "{said}");
    fleet.run_failing_up().await.assert_failure(2, &["roundhouse rekey", "ORCH_MASTER_KEY_OLD"]);
    fs::write(&file, NEW_MASTER_KEY).unwrap();
    let up = fleet.start_up().await;
    let again = up.product().engine("ada").await;
    assert_eq!(again.key, ada.key);
    assert_completed(&again.execute("task", "Hello!").await.collect().await);
    // The engine's own sealed key came with it: it boots.
    up.product().stop("ada").await.assert_ok("status:text");
    up.product().start("ada").await.assert_ok("status:text url:url");
    up.signal_and_wait(Signal::TERM).await.assert_success();
}

#[tokio::test]
async fn all_that_is_missing_is_named_at_once() {
    let fleet = Fleet::new();
    let ended = fleet.test_env.run(&["rekey"], &BTreeMap::new()).wait().await;
    ended.assert_failure(2, &["ORCH_DATABASE_URL", "ORCH_MASTER_KEY is", "ORCH_MASTER_KEY_OLD is"]);
}
