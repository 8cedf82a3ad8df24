use pretty_assertions::assert_eq;
use proptest::prelude::*;
use store::testing::due_delivery;

use super::*;

const NOW: i64 = 1_700_000_000_000;

fn now() -> Timestamp {
    Timestamp::from_unix_ms(NOW)
}

fn status(status: u16, retry_after: Option<u64>) -> Result<(), SendError> {
    judge(StatusCode::from_u16(status).unwrap(), retry_after.map(Duration::from_secs))
}

/// The delays until the next attempt and of other events, in seconds.
fn delays(attempts: u32, sent: Result<(), SendError>) -> Option<(i64, Option<i64>)> {
    match decide(&due_delivery(attempts, Timestamp::from_unix_ms(i64::MAX)), sent, now()) {
        AttemptOutcome::Retry { at, others_at, .. } => {
            let seconds = |at: Timestamp| (at.unix_ms() - NOW) / 1_000;
            Some((seconds(at), others_at.map(seconds)))
        }
        AttemptOutcome::Delivered | AttemptOutcome::Failed { .. } | AttemptOutcome::Obsolete => None,
    }
}

#[test]
fn what_is_accepted_is_delivered() {
    for accepted in [200, 201, 202, 204, 299] {
        let outcome = decide(&due_delivery(3, now()), status(accepted, Some(9)), now());
        assert_eq!(outcome, AttemptOutcome::Delivered, "{accepted}");
    }
}

#[test]
fn what_is_not_accepted_is_sent_again_as_the_answer_says() {
    // The receiver is at fault: other events wait a little.
    for at_fault in [500, 502, 503, 429, 408, 401, 403, 404, 301, 307] {
        let (next, others) = delays(0, status(at_fault, None)).unwrap();
        assert_eq!((next, others), (5, Some(5)), "{at_fault}");
        let (next, others) = delays(3, status(at_fault, None)).unwrap();
        assert!((7_200..=7_920).contains(&next) && others == Some(300), "{at_fault}: {next}");
    }
    // The event is at fault.
    for refused in [400, 409, 413, 422] {
        assert_eq!(delays(0, status(refused, None)).unwrap().1, None, "{refused}");
    }
    let gone = decide(&due_delivery(0, now()), status(410, None), now());
    assert!(matches!(gone, AttemptOutcome::Failed { error } if error.contains("410")));
    let moved = status(302, None).unwrap_err().reason;
    assert_eq!(moved, "the receiver answered 302; redirects are not followed");
}

#[test]
fn a_receiver_can_ask_for_a_delay() {
    assert_eq!(delays(0, status(503, Some(600))), Some((600, Some(600))));
    // Not for none, and not forever.
    assert_eq!(delays(1, status(429, Some(0))).unwrap().1, Some(300));
    assert_eq!(delays(0, status(429, Some(u64::MAX / 2_000))), Some((86_400, Some(86_400))));
}

#[test]
fn the_time_begins_with_the_first_attempt() {
    let stopped_for_days = due_delivery(0, Timestamp::from_unix_ms(NOW - 86_400_000));
    let AttemptOutcome::Retry { give_up_at, .. } = decide(&stopped_for_days, status(500, None), now()) else {
        panic!("it is tried again")
    };
    assert_eq!(give_up_at.unix_ms(), NOW + 3 * 86_400_000);
}

#[test]
fn after_its_time_a_delivery_is_given_up() {
    let last = Timestamp::from_unix_ms(NOW + 60_000);
    let AttemptOutcome::Retry { at, .. } = decide(&due_delivery(8, last), status(500, None), now()) else {
        panic!("there is a last attempt")
    };
    assert_eq!(at, last);
    let AttemptOutcome::Failed { error } = decide(&due_delivery(9, now()), status(500, None), now()) else {
        panic!("it is given up")
    };
    assert_eq!(error, "the receiver answered 500; it was tried for long enough");
}

proptest! {
    /// Each delivery ends after a bounded number of attempts, at times that increase.
    #[test]
    fn a_delivery_ends(statuses in prop::collection::vec(400_u16..600, 64), asked in prop::option::of(0_u64..200_000)) {
        let give_up_at = Timestamp::from_unix_ms(NOW + 3 * 86_400_000);
        let (mut attempts, mut at) = (0, now());
        loop {
            let sent = status(statuses[attempts as usize], asked);
            match decide(&due_delivery(attempts, give_up_at), sent, at) {
                AttemptOutcome::Retry { at: next, others_at, give_up_at: later, .. } => {
                    prop_assert!(later == give_up_at && next > at && next <= give_up_at);
                    prop_assert!(others_at.is_none_or(|others_at| others_at > at && others_at <= next));
                    at = next;
                }
                AttemptOutcome::Failed { .. } => break,
                outcome => prop_assert!(false, "{outcome:?}"),
            }
            attempts += 1;
            prop_assert!(attempts < 12);
        }
    }
}
