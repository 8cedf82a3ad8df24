//! The operator changes the master key: `roundhouse rekey`.

use std::collections::BTreeMap;
use std::fs;

use rustix::process::Signal;

use crate::support::turn::completed;
use crate::support::{Ended, Fleet};

const NEW: &str = "BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBA";
const OTHER: &str = "CCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCA";

/// Seals the registry of a deployment under `new`.
async fn rekey(fleet: &Fleet, old: &str, new: &str) -> Ended {
    let variables = BTreeMap::from([
        (
            "ORCH_DATABASE_URL".to_owned(),
            format!("sqlite:{}", fleet.folder().join("registry.sqlite").display()),
        ),
        ("ORCH_MASTER_KEY".to_owned(), new.to_owned()),
        ("ORCH_MASTER_KEY_OLD".to_owned(), old.to_owned()),
    ]);
    fleet.home.run(&["rekey"], &variables).ended().await
}

#[tokio::test]
async fn after_a_rekey_the_new_key_opens_everything_and_the_old_one_nothing() {
    let fleet = Fleet::new();
    let up = fleet.up().await;
    let holder = up.program.pid().as_raw_nonzero().to_string();
    let (ada, _) = (up.product().engine("ada").await, up.product().engine("bob").await);
    let file = fleet.folder().join("master.key");
    let old = fs::read_to_string(&file).unwrap().trim().to_owned();
    // Not while an orchestrator holds the registry.
    rekey(&fleet, &old, NEW).await.refused(2, &["registry.sqlite", &holder]);
    up.end(Signal::TERM).await.well();

    let said = rekey(&fleet, OTHER, NEW).await.refused(2, &["ORCH_MASTER_KEY_OLD", "nothing was changed"]);
    assert!(!said.contains(&old) && !said.contains(NEW) && !said.contains(OTHER), "a key is shown: {said}");
    let up = fleet.up().await;
    assert_eq!(up.product().engine("ada").await.key, ada.key, "nothing was changed");
    up.end(Signal::TERM).await.well();

    let said = rekey(&fleet, &old, NEW).await.well();
    assert!(said.contains("2 engine(s)"), "{said}");
    let said = rekey(&fleet, &old, NEW).await.well();
    assert!(said.contains("already"), "{said}");
    fleet.failing_up().await.refused(2, &["roundhouse rekey", "ORCH_MASTER_KEY_OLD"]);
    fs::write(&file, NEW).unwrap();
    let up = fleet.up().await;
    let again = up.product().engine("ada").await;
    assert_eq!(again.key, ada.key);
    completed(&again.execute("task", "Hello!").await.rest().await);
    // The engine's own sealed key came with it: it boots.
    up.product().stop("ada").await.ok("status:text");
    up.product().start("ada").await.ok("status:text url:url");
    up.end(Signal::TERM).await.well();
}

#[tokio::test]
async fn all_that_is_missing_is_named_at_once() {
    let fleet = Fleet::new();
    let ended = fleet.home.run(&["rekey"], &BTreeMap::new()).ended().await;
    ended.refused(2, &["ORCH_DATABASE_URL", "ORCH_MASTER_KEY is", "ORCH_MASTER_KEY_OLD is"]);
}
