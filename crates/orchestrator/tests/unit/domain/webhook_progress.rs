//! Every history of answers and kills: each row is settled, and those of a lane in their order.

use std::collections::BTreeSet;

use pretty_assertions::assert_eq;
use proptest::prelude::*;
use serde_json::value::RawValue;

use super::*;

const LANES: [&str; 4] = ["", "ada", "bob", "eve"];

fn at(ms: i64) -> Timestamp {
    Timestamp::from_unix_ms(ms)
}

/// The row `id`, about an engine of one of [`LANES`].
fn row(id: i64, lane: usize) -> AuditRow {
    AuditRow {
        id,
        at: at(id),
        product_id: api::ProductId::new(),
        engine_id: None,
        user_id: (lane > 0).then(|| UserId::new(LANES[lane].to_owned()).unwrap()),
        event: if id % 7 == 3 { "uninteresting" } else { "start" }.into(),
        duration_ms: None,
        detail: RawValue::from_string("{}".to_owned()).unwrap(),
        hash: String::new(),
    }
}

fn is_of_interest(row: &AuditRow) -> bool {
    &*row.event == "start"
}

fn rules() -> WebhookRules {
    WebhookRules { give_up_after: Duration::from_mins(1), ..WebhookRules::default() }
}

fn failure() -> Failure {
    Failure { error: "the receiver answered 500".to_owned(), retry_after: None }
}

/// A worker with its log, its registry and its receiver.
struct World {
    log: Vec<AuditRow>,
    now: Timestamp,
    progress: Progress,
    /// What is under way: the lane, and the row, or how far there is none.
    under_way: Vec<(Lane, Result<AuditRow, i64>)>,
    stored: (i64, Vec<Lagging>),
    /// The rows that were settled for the first time, in this order.
    settled: Vec<i64>,
}

impl World {
    fn new(lanes: &[usize]) -> Self {
        let log = (1_i64..).zip(lanes).map(|(id, lane)| row(id, *lane)).collect();
        let progress = Progress::new(0, Vec::new(), None);
        Self {
            log,
            now: at(0),
            progress,
            under_way: Vec::new(),
            stored: (0, Vec::new()),
            settled: Vec::new(),
        }
    }

    fn read(&mut self) {
        let (end, room) = (self.progress.end(), self.progress.room().min(5));
        let rows = self.log.iter().filter(|row| row.id > end).take(room).cloned().collect();
        self.progress.read(rows, is_of_interest);
    }

    fn begin(&mut self) {
        while let Some(work) = self.progress.next(self.now) {
            let (lane, found) = match work {
                Work::Row(row) => (row.user_id.clone(), Ok(row)),
                Work::Lagging { lane, next, end, .. } => {
                    let found = self.log.iter().find(|row| {
                        row.user_id == lane && (next..=end).contains(&row.id) && is_of_interest(row)
                    });
                    let found = found.cloned().ok_or(end);
                    (lane, found)
                }
            };
            assert!(self.under_way.iter().all(|(other, _)| *other != lane), "one at a time of a lane");
            self.under_way.push((lane, found));
        }
    }

    /// Lets one of the attempts end.
    fn end(&mut self, which: usize, is_accepted: bool) {
        if self.under_way.is_empty() {
            return;
        }
        let (lane, found) = self.under_way.remove(which % self.under_way.len());
        let outcome = match &found {
            Ok(row) if is_accepted => Outcome::Delivered { row: row.id, at: row.at },
            Ok(row) => Outcome::Failed { row: row.id, at: row.at, failure: failure() },
            Err(end) => Outcome::CaughtUp { end: *end },
        };
        let given_up = self.progress.settle(&lane, outcome, self.now, &rules());
        if let Ok(row) = found
            && (is_accepted || given_up.is_some())
        {
            self.settle(&row);
        }
        if given_up.is_some() {
            self.store();
        }
    }

    fn settle(&mut self, row: &AuditRow) {
        if self.settled.contains(&row.id) {
            return;
        }
        for earlier in self.log.iter().filter(|other| other.id < row.id && other.user_id == row.user_id) {
            let is_settled = self.settled.contains(&earlier.id) || !is_of_interest(earlier);
            assert!(is_settled, "{} was overtaken by {}", earlier.id, row.id);
        }
        self.settled.push(row.id);
    }

    fn store(&mut self) {
        self.stored = self.progress.durable();
    }

    fn kill(&mut self) {
        self.under_way.clear();
        // As the registry has it.
        let lagging = serde_json::to_string(&self.stored.1).unwrap();
        self.progress = Progress::new(self.stored.0, serde_json::from_str(&lagging).unwrap(), None);
    }

    fn tick(&mut self, seconds: i64) {
        self.now = at(self.now.unix_ms() + seconds * 1_000);
    }
}

proptest! {
    #[test]
    fn each_row_is_settled_in_the_order_of_its_lane_whatever_fails_and_is_killed(
        lanes in prop::collection::vec(0_usize..4, 1..60),
        steps in prop::collection::vec((0_u8..7, 0_usize..4, any::<bool>()), 0..400),
    ) {
        let mut world = World::new(&lanes);
        for (step, which, flag) in steps {
            match step {
                0 => world.read(),
                1 => world.begin(),
                2 | 3 => world.end(which, flag),
                4 => world.store(),
                5 if flag => world.kill(),
                _ => world.tick(i64::try_from(which).unwrap() * 10),
            }
        }
        // The receiver is well from now on.
        for _ in 0..1_000 {
            world.read();
            world.tick(5);
            world.begin();
            world.end(0, true);
        }
        let mut settled = world.settled.clone();
        settled.sort_unstable();
        let expected: Vec<i64> =
            world.log.iter().filter(|row| is_of_interest(row)).map(|row| row.id).collect();
        prop_assert_eq!(settled, expected);
        prop_assert_eq!(world.progress.durable(), (i64::try_from(lanes.len()).unwrap(), Vec::new()));
    }
}

#[test]
fn a_row_that_fails_holds_its_own_lane_alone() {
    // The third row is of no interest.
    let mut world = World::new(&[2, 1, 0, 1, 2]);
    world.read();
    world.begin();
    world.end(0, true);
    world.end(0, false);
    assert_eq!(world.progress.durable().0, 4);
    world.begin();
    assert_eq!(world.under_way.len(), 1);
    world.end(0, true);
    assert_eq!((world.settled.clone(), world.progress.durable().0), (vec![1, 5], 5));
    let lagging = &world.progress.durable().1;
    assert_eq!((lagging.len(), lagging[0].next, lagging[0].failures), (1, 2, 1));
    world.kill();
    assert_eq!(world.progress.position(), 0, "nothing was stored");
}

#[test]
fn the_delay_doubles_up_to_its_bound_and_then_the_row_is_given_up() {
    let rules = WebhookRules::default();
    let mut progress = Progress::new(0, Vec::new(), None);
    progress.read(vec![row(1, 1), row(2, 1)], is_of_interest);
    let (mut now, mut delays) = (at(0), Vec::new());
    let given_up = loop {
        let lane = match progress.next(now).expect("it is due") {
            Work::Row(row) => row.user_id,
            Work::Lagging { lane, next, .. } => {
                assert_eq!(next, 1);
                lane
            }
        };
        let failed = Outcome::Failed { row: 1, at: at(1), failure: failure() };
        if let Some(given_up) = progress.settle(&lane, failed, now, &rules) {
            break given_up;
        }
        assert!(progress.next(now).is_none(), "it is not due yet");
        let next = progress.next_retry_at().unwrap();
        delays.push(next.unix_ms() - now.unix_ms());
        now = next;
    };
    let near = |delay: i64, seconds: i64| (seconds * 800..=seconds * 1_200).contains(&delay);
    assert!(near(delays[0], 5) && near(delays[1], 10) && near(delays[4], 80), "{delays:?}");
    assert!(delays.iter().all(|delay| *delay <= 4_320_000), "{delays:?}");
    assert_eq!(now, at(24 * 3_600 * 1_000), "it is tried a last time after a day");
    assert_eq!((given_up.row, given_up.attempts), (1, u32::try_from(delays.len()).unwrap() + 1));
    assert!(matches!(progress.next(now), Some(Work::Lagging { next: 2, failures: 0, .. })));
}

#[test]
fn a_receiver_can_ask_for_a_longer_delay_of_at_most_a_day() {
    for (asked, expected) in [(3_600, 3_600), (1_000_000, 86_400)] {
        let mut progress = Progress::new(0, Vec::new(), None);
        progress.read(vec![row(1, 1)], is_of_interest);
        let Some(Work::Row(row)) = progress.next(at(0)) else { panic!("it is due") };
        let failure = Failure { retry_after: Some(Duration::from_secs(asked)), ..failure() };
        let failed = Outcome::Failed { row: 1, at: at(1), failure };
        assert_eq!(progress.settle(&row.user_id, failed, at(0), &WebhookRules::default()), None);
        assert_eq!(progress.next_retry_at(), Some(at(expected * 1_000)));
    }
}

#[test]
fn once_the_receiver_is_back_each_lagging_lane_is_sent_at_once_but_a_bad_row_not_again_and_again() {
    let mut world = World::new(&[1, 2, 0, 0, 0]);
    world.read();
    world.begin();
    for _ in 0..3 {
        world.end(0, false);
    }
    world.begin();
    assert!(world.under_way.is_empty(), "all lanes wait");
    world.tick(5);
    world.tick(1);
    world.begin();
    // One is accepted: those that have waited since before are sent at once.
    let started = world.under_way.len();
    let good = world.under_way.iter().position(|(_, found)| matches!(found, Ok(row) if row.id != 1));
    world.end(good.unwrap(), true);
    world.begin();
    assert!(world.under_way.len() >= started.max(2), "{:?}", world.under_way);
    while !world.under_way.is_empty() {
        let is_bad = matches!(&world.under_way[0].1, Ok(row) if row.id == 1);
        world.end(0, !is_bad);
        world.begin();
    }
    let lagging = world.progress.durable().1;
    assert_eq!((lagging.len(), lagging[0].next), (1, 1));
    assert!(lagging[0].failures <= 3, "{lagging:?}");
}

#[test]
fn with_too_many_lagging_lanes_the_window_waits_and_stays_bounded() {
    let mut progress = Progress::new(0, Vec::new(), None);
    let mut settled = BTreeSet::new();
    let mut next = 1;
    loop {
        let rows = (0..progress.room()).map(|_| {
            let user = AuditRow { user_id: UserId::new(format!("user-{next}")).ok(), ..row(next * 7, 1) };
            next += 1;
            user
        });
        let rows = rows.collect();
        progress.read(rows, is_of_interest);
        let Some(Work::Row(row)) = progress.next(at(0)) else { break };
        let failed = Outcome::Failed { row: row.id, at: row.at, failure: failure() };
        assert_eq!(progress.settle(&row.user_id, failed, at(0), &rules()), None);
        settled.insert(row.id);
    }
    assert_eq!((settled.len(), progress.durable().1.len(), progress.room()), (MAX_LAGGING, MAX_LAGGING, 0));
    // A clock that is set back by a week does not hold them for a week.
    assert!(matches!(progress.next(at(-7 * 86_400_000)), Some(Work::Lagging { .. })));
}
