//! The decision table of calls with a key, and a model of a call that is made, cut off and made again in any order.

use proptest::prelude::*;

use super::*;

fn product(number: u8) -> ProductId {
    format!("prod_0199a9f00000700080000000000000{number:02x}").parse().unwrap()
}

fn key(text: &str) -> IdempotencyKey {
    IdempotencyKey::parse(text.as_bytes()).unwrap()
}

#[test]
fn a_key_is_1_to_255_visible_ascii_characters() {
    let longest = "x".repeat(MAX_KEY_CHARS);
    for valid in ["a", "8e03978e-40d5-43dd-bc93-6894a57f9324", "\"quoted\"", "!~", &longest] {
        assert!(IdempotencyKey::parse(valid.as_bytes()).is_some(), "{valid}");
    }
    let too_long = "x".repeat(MAX_KEY_CHARS + 1);
    for invalid in [&b""[..], b" ", b"a b", b"a\tb", b"\x7f", "ü".as_bytes(), b"\xff", too_long.as_bytes()] {
        assert!(IdempotencyKey::parse(invalid).is_none(), "{invalid:?}");
    }
}

#[test]
fn calls_are_the_same_only_with_the_same_caller_method_path_and_key() {
    let holders = [
        KeyHolder::Product(product(1)),
        KeyHolder::Product(product(2)),
        KeyHolder::Operator(None),
        KeyHolder::Operator(Some(product(1))),
        KeyHolder::Operator(Some(product(2))),
    ];
    let mut ids = Vec::new();
    for holder in &holders {
        for (method, path, text) in [
            ("POST", "/a", "k"),
            ("PUT", "/a", "k"),
            ("POST", "/ak", "k"),
            ("POST", "/a", "kk"),
            ("POST", "/", "ak"),
        ] {
            ids.push(CallId::new(holder, method, path, &key(text)));
            assert_eq!(ids.last(), Some(&CallId::new(holder, method, path, &key(text))));
        }
    }
    let distinct: std::collections::HashSet<_> = ids.iter().collect();
    assert_eq!(distinct.len(), ids.len());
    assert!(ids.iter().all(|id| id.as_str().len() == 64 && !id.as_str().contains("prod_")));
}

#[test]
fn a_request_is_another_one_with_another_query_or_body() {
    let of = |query, body: &[u8]| Fingerprint::of("POST", "/a", query, body);
    let all = [
        of(None, b""),
        of(Some(""), b""),
        of(Some("x"), b""),
        of(None, b"x"),
        of(Some("x"), b"x"),
        of(None, b"x "),
    ];
    for (number, one) in all.iter().enumerate() {
        assert_eq!(all.iter().position(|other| other == one), Some(number));
    }
}

#[test]
fn what_is_answered_is_kept_unless_nothing_was_done_or_it_failed() {
    for (statuses, end) in [
        (&[200_u16, 201, 204, 403, 404, 409, 422][..], CallEnd::Keep),
        (&[400, 401, 408, 413, 429], CallEnd::Forget),
        (&[500, 502, 503, 504], CallEnd::LeaveOpen),
    ] {
        for status in statuses {
            assert_eq!(CallEnd::of(*status), end, "{status}");
        }
    }
}

/// What happens to a call in the model.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// It is made, and cut off before anything was committed.
    CutOffFirst,
    /// It is made, and cut off after it claimed an engine.
    CutOffClaimed,
    /// It is made, and cut off after its change was committed: with the answer, or without.
    CutOffApplied { with_answer: bool },
    /// It is made, and answered.
    Answered,
    /// It is made, and fails before its change is committed.
    Failed,
    /// Whoever leads ends the claim that is left: by completing the change, or by undoing it.
    Repaired { completes: bool },
    /// Another request is made with its key.
    Other,
}

/// A call in the model: what is stored, and how often its change was made.
struct Model {
    state: CallState<u32>,
    claims: i64,
    /// The claim that nobody has ended.
    claimed: Option<EngineClaim>,
    changes: u32,
    answers: Vec<u32>,
}

impl Model {
    fn new() -> Self {
        Self { state: CallState::Open(None), claims: 0, claimed: None, changes: 0, answers: Vec::new() }
    }

    /// Ends the claim that is left, as the orchestrator does before it decides again.
    fn repair(&mut self, completes: bool) {
        if self.claimed.take().is_some() && completes && matches!(self.state, CallState::Open(_)) {
            self.changes += 1;
            self.state = CallState::Applied(Some(self.changes));
        }
    }

    /// Makes the call, up to the point where `step` cuts it off.
    fn make(&mut self, step: Step) {
        let first = Fingerprint::of("POST", "/a", None, b"first");
        let mut ended = None;
        loop {
            match decide((&first, self.state.clone()), &first, ended) {
                CallStep::AwaitClaim(claim) => {
                    assert_ne!(ended, Some(claim), "it waits for the same claim twice");
                    self.repair(matches!(step, Step::Answered | Step::CutOffFirst));
                    ended = Some(claim);
                }
                CallStep::Execute { applied } => return self.execute(step, applied),
                CallStep::Conclude(answer) | CallStep::Replay(answer) => {
                    self.state = CallState::Answered(answer);
                    return self.answers.push(answer);
                }
                CallStep::Refuse => panic!("it is the same request"),
            }
        }
    }

    fn execute(&mut self, step: Step, applied: bool) {
        assert!(self.claimed.is_none(), "it is executed while an engine is claimed for it");
        match step {
            Step::CutOffClaimed if !applied => {
                self.claims += 1;
                let engine_id = "eng_0199a9f0000070008000000000000001".parse().unwrap();
                let claim = EngineClaim { engine_id, generation: self.claims };
                (self.claimed, self.state) = (Some(claim), CallState::Open(Some(claim)));
            }
            Step::CutOffFirst | Step::CutOffClaimed | Step::Failed => {}
            Step::CutOffApplied { with_answer } => {
                if !applied {
                    self.changes += 1;
                    self.state = CallState::Applied(with_answer.then_some(self.changes));
                }
            }
            Step::Answered => {
                self.changes += u32::from(!applied);
                self.state = CallState::Answered(self.changes);
                self.answers.push(self.changes);
            }
            Step::Repaired { .. } | Step::Other => panic!("that is no call"),
        }
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        Just(Step::CutOffFirst),
        Just(Step::CutOffClaimed),
        any::<bool>().prop_map(|with_answer| Step::CutOffApplied { with_answer }),
        Just(Step::Answered),
        Just(Step::Failed),
        any::<bool>().prop_map(|completes| Step::Repaired { completes }),
        Just(Step::Other),
    ];
    prop::collection::vec(step, 0..12)
}

proptest! {
    #[test]
    fn however_often_a_call_is_cut_off_its_change_is_made_once_and_has_one_answer(steps in steps()) {
        let mut model = Model::new();
        for step in steps {
            match step {
                Step::Repaired { completes } => model.repair(completes),
                Step::Other => {
                    let (first, other) =
                        (Fingerprint::of("POST", "/a", None, b"first"), Fingerprint::of("POST", "/a", None, b"other"));
                    prop_assert_eq!(decide((&first, model.state.clone()), &other, None), CallStep::Refuse);
                }
                step => model.make(step),
            }
            prop_assert!(model.changes <= 1, "{:?}", model.state);
        }
        model.make(Step::Answered);
        prop_assert_eq!(model.changes, 1);
        prop_assert!(model.answers.iter().all(|answer| *answer == 1), "{:?}", model.answers);
    }
}
