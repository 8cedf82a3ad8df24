//! Story 2: a user has one engine, however many callers ask for it at the same time.

use std::collections::BTreeSet;

use futures::future::join_all;

use crate::support::schema::{ENGINE_RECORD, PROVISIONED};
use crate::support::{Engine, Fleet, assert_fields};

#[tokio::test]
async fn fifty_admits_of_a_new_user_at_once_share_one_engine() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let product = up.product();

    let admissions = join_all((0..50).map(|_| product.admit("ada"))).await;
    let mut bodies = admissions.into_iter().map(|answer| answer.assert_ok("admitted:bool engine:object"));
    let first = bodies.next().unwrap();
    assert_eq!((&first["admitted"], &first["engine"]["status"]), (&true.into(), &"running".into()));
    assert_fields(&first["engine"], ENGINE_RECORD);
    for body in bodies {
        assert_eq!(body, first, "every caller gets the same answer");
    }

    assert_eq!(product.list("").await.1, 1);
    assert_eq!(fleet.engine_processes().len(), 1);
    let provisions = fleet.audit_rows("provision");
    assert_eq!(provisions.len(), 1, "{provisions:?}");
    assert_eq!((provisions[0].0.as_str(), &provisions[0].1["reason"]), ("ada", &"auto_provision".into()));
    assert_eq!(fleet.audit_rows("wake"), []);
    Engine::new(&first["engine"]).health().await;
}

#[tokio::test]
async fn provisions_among_the_admits_win_once_or_not_at_all() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let product = up.product();

    for round in 0..3 {
        let user = format!("user-{round}");
        // The order of admits and provisions alternates.
        let admits = join_all((0..20).map(|_| product.admit(&user)));
        let provisions = join_all((0..20).map(|_| product.provision(&user)));
        let (admits, provisions) = if round % 2 == 0 {
            futures::join!(admits, provisions)
        } else {
            let (provisions, admits) = futures::join!(provisions, admits);
            (admits, provisions)
        };

        let mut seen = BTreeSet::new();
        let mut provisioned_count = 0;
        for answer in provisions {
            if answer.status == 200 {
                provisioned_count += 1;
                let provisioned = answer.assert_ok(PROVISIONED);
                assert_eq!(
                    (&provisioned["user_id"], &provisioned["status"]),
                    (&user.as_str().into(), &"running".into())
                );
                seen.insert((provisioned["engine_id"].to_string(), provisioned["api_key"].to_string()));
            } else {
                answer.assert_error(409, "ENGINE_ALREADY_EXISTS");
            }
        }
        for answer in admits {
            let engine = &answer.assert_ok("admitted:bool engine:object")["engine"];
            seen.insert((engine["engine_id"].to_string(), engine["api_key"].to_string()));
        }
        assert_eq!(seen.len(), 1, "one engine for all callers: {seen:?}");
        assert!(provisioned_count <= 1, "{provisioned_count} provisions of one user succeeded");
        let reasons: Vec<_> = fleet.audit_rows("provision").into_iter().filter(|row| row.0 == user).collect();
        assert_eq!(reasons.len(), 1, "{reasons:?}");
        assert_eq!(
            reasons[0].1["reason"],
            if provisioned_count == 1 { "requested" } else { "auto_provision" }
        );
    }
    assert_eq!(product.list("").await.1, 3);
    assert_eq!(fleet.engine_processes().len(), 3);
}

#[tokio::test]
async fn admits_of_a_sleeping_engine_at_once_wake_it_once() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let before = up.product().engine("ada").await;
    up.signal_and_wait(rustix::process::Signal::TERM).await.assert_success();

    let up = fleet.start_up().await;
    let product = up.product();
    let admissions = join_all((0..20).map(|_| product.admit("ada"))).await;
    for answer in admissions {
        let engine = Engine::new(&answer.assert_ok("admitted:bool engine:object")["engine"]);
        assert_eq!((&engine.id, &engine.key), (&before.id, &before.key));
    }
    assert_eq!(fleet.engine_processes().len(), 1);
    assert_eq!(fleet.audit_rows("wake").len(), 1, "a call that shares another's outcome writes nothing");
}
