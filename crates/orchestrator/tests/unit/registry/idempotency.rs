//! Calls with a key in the registry: they are marked in the transaction of their change, or not at all.

use api::EngineId;
use api::orchestrator::EngineStatus;

use super::*;
use crate::domain::idempotency::{
    CallId, CallState, Fingerprint, IdempotencyKey, KEPT_MS, KeyHolder, MAX_CALLS_OF_CALLER,
};

fn call_id(key: &str) -> CallId {
    let key = IdempotencyKey::parse(key.as_bytes()).unwrap();
    CallId::new(&KeyHolder::Operator(None), "POST", "/a", &key)
}

fn new_call(fixture: &Fixture, key: &str) -> NewCall {
    NewCall {
        call_id: call_id(key),
        caller: "caller".to_owned(),
        product_id: Some(fixture.product_id),
        fingerprint: Fingerprint::of("POST", "/a", None, b""),
    }
}

fn later(ms: i64) -> Timestamp {
    Timestamp::from_unix_ms(NOW.unix_ms() + ms)
}

fn applied(key: &str, answer: Option<&str>) -> CallMark {
    let sealed_answer = answer.map(str::to_owned);
    CallMark::Applied { call_id: call_id(key), sealed_answer, product_id: None }
}

async fn state(fixture: &Fixture, key: &str) -> Option<CallState<StoredAnswer>> {
    fixture.registry.call(&call_id(key), NOW).await.unwrap().map(|call| call.state)
}

fn answer(status: u16, body: &str) -> StoredAnswer {
    StoredAnswer { status, sealed_body: body.to_owned() }
}

#[tokio::test]
async fn a_call_is_marked_with_its_change_or_not_at_all() {
    let fixture = Fixture::new().await;
    let registry = &fixture.registry;
    for key in ["register", "refused", "policy", "meta"] {
        assert_eq!(state(&fixture, key).await, None);
        registry.begin_call(&new_call(&fixture, key), NOW).await.unwrap();
        assert_eq!(state(&fixture, key).await, Some(CallState::Open(None)));
    }
    let entry = AuditEntry { engine: None, ..entry(EngineId::new(), Event::Register) };
    let other = product("other");
    let mark = CallMark::Applied {
        call_id: call_id("register"),
        sealed_answer: Some("sealed".to_owned()),
        product_id: Some(other.product_id),
    };
    assert!(registry.register(&other, &entry.clone().of_call(Some(mark))).await.unwrap());
    assert_eq!(state(&fixture, "register").await, Some(CallState::Applied(Some(answer(200, "sealed")))));
    let stored = registry.call(&call_id("register"), NOW).await.unwrap().unwrap();
    assert_eq!(stored.product_id, Some(other.product_id));

    // The slug is taken: nothing is changed.
    let same = Product { product_id: ProductId::new(), ..other };
    let refused = entry.clone().of_call(Some(applied("refused", None)));
    assert!(!registry.register(&same, &refused).await.unwrap());
    assert_eq!(state(&fixture, "refused").await, Some(CallState::Open(None)));

    let marked = entry.of_call(Some(applied("policy", None)));
    let policy = Policy::default();
    let replaced = registry.replace_policy(fixture.product_id, &policy, NOW, |_, _| Ok(marked)).await;
    assert!(replaced.unwrap().is_some());
    assert_eq!(state(&fixture, "policy").await, Some(CallState::Applied(None)));
    registry.replace_meta("name", Some("value"), Some((&applied("meta", None), NOW))).await.unwrap();
    assert_eq!(state(&fixture, "meta").await, Some(CallState::Applied(None)));
}

#[tokio::test]
async fn the_first_answer_stays_and_what_nothing_was_done_for_is_forgotten() {
    let fixture = Fixture::new().await;
    let registry = &fixture.registry;
    for key in ["answered", "forgotten", "applied"] {
        registry.begin_call(&new_call(&fixture, key), NOW).await.unwrap();
    }
    registry.answer_call(&call_id("answered"), &answer(409, "first"), NOW).await.unwrap();
    registry.answer_call(&call_id("answered"), &answer(200, "second"), NOW).await.unwrap();
    registry.replace_meta("name", None, Some((&applied("applied", Some("x")), NOW))).await.unwrap();
    for key in ["answered", "forgotten", "applied"] {
        registry.forget_call(&call_id(key)).await.unwrap();
    }
    let first = CallState::Answered(answer(409, "first"));
    assert_eq!(state(&fixture, "answered").await, Some(first.clone()));
    assert_eq!(state(&fixture, "forgotten").await, None);
    assert_eq!(state(&fixture, "applied").await, Some(CallState::Applied(Some(answer(200, "x")))));
    // Whoever makes it again finds it, with its first fingerprint.
    let other = Fingerprint::of("POST", "/a", None, b"other");
    let again = NewCall { fingerprint: other, ..new_call(&fixture, "answered") };
    let found = registry.begin_call(&again, NOW).await.unwrap();
    assert_eq!((found.state, found.fingerprint), (first, new_call(&fixture, "answered").fingerprint));
}

#[tokio::test]
async fn whoever_completes_a_claim_marks_the_call_that_made_it() {
    let fixture = Fixture::new().await;
    let registry = &fixture.registry;
    let row = fixture.settled("ann", EngineStatus::Running).await;
    for key in ["stop", "delete"] {
        registry.begin_call(&new_call(&fixture, key), NOW).await.unwrap();
    }
    let claiming = |key: &str, change| Claim {
        call: Some(ClaimingCall { call_id: call_id(key), sealed_answer: Some("prepared".to_owned()) }),
        ..claim(change)
    };
    let stopping = registry.claim(&row, &claiming("stop", Change::Stop)).await.unwrap().unwrap();
    assert_eq!(state(&fixture, "stop").await, Some(CallState::Open(Some(stopping.claimed()))));
    // The delete takes the engine over: the stop is never completed.
    let deleting = registry.claim(&stopping, &claiming("delete", Change::Destroy)).await.unwrap().unwrap();
    let destroyed = entry(row.engine_id, Event::Destroy);
    let mark = |row: &EngineRow| Some(CallMark::ClaimFulfilled(row.claimed()));
    let too_late = destroyed.clone().of_call(mark(&stopping));
    let lost = registry.settle(&stopping, NextState::Removed, Some(&too_late)).await;
    assert!(matches!(lost, Err(RegistryError::ClaimLost { .. })));
    assert_eq!(state(&fixture, "stop").await, Some(CallState::Open(Some(stopping.claimed()))));
    let in_time = destroyed.of_call(mark(&deleting));
    let settled = registry.settle(&deleting, NextState::Removed, Some(&in_time)).await;
    assert!(settled.unwrap().is_none());
    assert_eq!(state(&fixture, "delete").await, Some(CallState::Applied(Some(answer(200, "prepared")))));
    assert_eq!(state(&fixture, "stop").await, Some(CallState::Open(Some(stopping.claimed()))));
}

#[tokio::test]
async fn a_call_is_kept_for_a_day_and_only_the_latest_of_a_caller() {
    let fixture = Fixture::new().await;
    let registry = &fixture.registry;
    let call = new_call(&fixture, "call");
    registry.begin_call(&call, NOW).await.unwrap();
    registry.answer_call(&call.call_id, &answer(200, "x"), NOW).await.unwrap();
    let kept = async |ms| registry.call(&call.call_id, later(ms)).await.unwrap().is_some();
    assert!(kept(KEPT_MS - 1).await);
    assert!(!kept(KEPT_MS).await);
    assert_eq!(registry.forget_expired_calls(later(KEPT_MS - 1)).await.unwrap(), 0);
    // Made again after a day, it is another call.
    let again = registry.begin_call(&call, later(KEPT_MS)).await.unwrap();
    assert_eq!(again.state, CallState::Open(None));
    assert_eq!(registry.forget_expired_calls(later(2 * KEPT_MS)).await.unwrap(), 1);

    let pool = fixture.pool().await;
    let fill = format!(
        "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {MAX_CALLS_OF_CALLER}) \
         INSERT INTO idempotent_calls (call_id, caller, fingerprint, created_at, attempts) \
         SELECT CAST(n AS TEXT), 'caller', '', {} + n, 1 FROM numbers",
        NOW.unix_ms()
    );
    sqlx::query(sqlx::AssertSqlSafe(fill)).execute(&pool).await.unwrap();
    for key in ["one", "two"] {
        registry.begin_call(&new_call(&fixture, key), later(MAX_CALLS_OF_CALLER + 1)).await.unwrap();
    }
    registry
        .begin_call(&NewCall { caller: "another".to_owned(), ..new_call(&fixture, "three") }, NOW)
        .await
        .unwrap();
    let counts = sqlx::query(
        "SELECT COUNT(*), MIN(created_at) FROM idempotent_calls GROUP BY caller ORDER BY COUNT(*) DESC",
    );
    let counts: Vec<(i64, i64)> =
        counts.fetch_all(&pool).await.unwrap().iter().map(|row| (row.get(0), row.get(1))).collect();
    // The two oldest had to go.
    assert_eq!(counts, [(MAX_CALLS_OF_CALLER, NOW.unix_ms() + 3), (1, NOW.unix_ms())]);
    pool.close().await;
}
