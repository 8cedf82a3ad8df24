//! The expected state of each user's engine: the acknowledged calls of a round, and what must still hold after its
//! kill.

use std::collections::{BTreeMap, HashMap};

use parking_lot::{Mutex, MutexGuard};
use serde_json::Value;

/// An operation that a client requests for a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Provision,
    Admit { provision: bool, wake: bool },
    Start,
    Stop,
    Destroy,
    Rotate,
    Get,
    List,
}

impl Op {
    /// Its name, as aims and tables have it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Provision => "provision",
            Self::Admit { .. } => "admit",
            Self::Start => "start",
            Self::Stop => "stop",
            Self::Destroy => "destroy",
            Self::Rotate => "rotate",
            Self::Get => "get",
            Self::List => "list",
        }
    }

    /// Whether a row of the audit log with this event may result from it.
    pub(crate) const fn may_write(self, event: &str) -> bool {
        match self {
            Self::Provision => matches!(event.as_bytes(), b"provision" | b"provision_failed"),
            Self::Admit { provision, wake } => {
                (provision && matches!(event.as_bytes(), b"provision" | b"provision_failed"))
                    || (wake && matches!(event.as_bytes(), b"wake"))
            }
            Self::Start => matches!(event.as_bytes(), b"start"),
            Self::Stop => matches!(event.as_bytes(), b"stop"),
            Self::Destroy => matches!(event.as_bytes(), b"destroy"),
            Self::Rotate => matches!(event.as_bytes(), b"rotate_key"),
            Self::Get | Self::List => false,
        }
    }
}

/// The outcome of a call.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    /// Acknowledged; with the engine's id if the response names it.
    Acknowledged(Option<String>),
    /// It was refused, or the user not admitted.
    Refused(u16, String),
    /// It never reached the orchestrator.
    NotSent,
    /// The outcome is unknown.
    Unknown,
}

impl Outcome {
    /// Whether the call may have changed something.
    pub(crate) fn may_have_acted(&self) -> bool {
        match self {
            Self::Acknowledged(_) | Self::Unknown => true,
            Self::NotSent => false,
            // A call overtaken by a delete may have taken effect just before.
            Self::Refused(status, _) => *status >= 500 || *status == 404,
        }
    }
}

/// A call that has ended.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) user_index: usize,
    pub(crate) op: Op,
    pub(crate) outcome: Outcome,
}

/// The known state of a user's engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ExpectedState {
    /// Unknown: a call is in progress, or was interrupted.
    Unknown,
    /// There is none.
    Absent,
    /// There is one, and it is not stopped: it may have crashed or gone to sleep by itself.
    Up(Option<String>),
    /// There is one, and it is stopped.
    Stopped(Option<String>),
}

/// A user of a product. A client's own user is served by that client alone, so its responses must hold exactly;
/// all clients share the others.
#[derive(Debug)]
pub(crate) struct TenantUser {
    /// The number of the product.
    pub(crate) product: usize,
    pub(crate) user: String,
    /// The client that owns the user; `None` if shared.
    pub(crate) client: Option<usize>,
    expected: Mutex<ExpectedState>,
}

impl TenantUser {
    /// A user without an engine.
    pub(crate) fn new(product: usize, user: String, client: Option<usize>) -> Self {
        Self { product, user, client, expected: Mutex::new(ExpectedState::Absent) }
    }

    /// What is known of the engine.
    pub(crate) fn expected(&self) -> ExpectedState {
        self.lock().clone()
    }

    /// Notes what is known.
    pub(crate) fn set_expected(&self, expect: ExpectedState) {
        *self.lock() = expect;
    }

    fn lock(&self) -> MutexGuard<'_, ExpectedState> {
        self.expected.lock()
    }
}

/// Returns the expected state after `call`, given the one `before`; an error if the response contradicts it.
pub(crate) fn expected_after(
    before: &ExpectedState,
    op: Op,
    outcome: &Outcome,
) -> Result<ExpectedState, String> {
    let accept_unless = |is_contradiction: bool, then: ExpectedState| {
        if is_contradiction {
            Err(format!("{op:?} returned {outcome:?}, which contradicts {before:?}"))
        } else {
            Ok(then)
        }
    };
    let is_present = matches!(before, ExpectedState::Up(_) | ExpectedState::Stopped(_));
    let id = match before {
        ExpectedState::Up(id) | ExpectedState::Stopped(id) => id.clone(),
        ExpectedState::Unknown | ExpectedState::Absent => None,
    };
    match (op, outcome) {
        (Op::List, _) | (Op::Get, Outcome::Unknown) | (_, Outcome::NotSent) => Ok(before.clone()),
        (_, Outcome::Unknown) => Ok(ExpectedState::Unknown),
        (Op::Provision, Outcome::Acknowledged(new)) => {
            accept_unless(is_present, ExpectedState::Up(new.clone()))
        }
        (Op::Admit { provision, .. }, Outcome::Acknowledged(new)) => {
            let other = id.is_some() && id != *new;
            let stopped = matches!(before, ExpectedState::Stopped(_));
            accept_unless(
                other || stopped || (*before == ExpectedState::Absent && !provision),
                ExpectedState::Up(new.clone()),
            )
        }
        (Op::Start, Outcome::Acknowledged(_)) => {
            accept_unless(*before == ExpectedState::Absent, ExpectedState::Up(id))
        }
        (Op::Stop | Op::Rotate, Outcome::Acknowledged(_)) => {
            let is_contradiction = matches!(before, ExpectedState::Absent | ExpectedState::Stopped(_));
            accept_unless(
                is_contradiction,
                if op == Op::Stop { ExpectedState::Stopped(id) } else { ExpectedState::Up(id) },
            )
        }
        (Op::Destroy, Outcome::Acknowledged(old)) => accept_unless(
            *before == ExpectedState::Absent || (id.is_some() && id != *old),
            ExpectedState::Absent,
        ),
        (Op::Get, Outcome::Acknowledged(found)) => {
            accept_unless(*before == ExpectedState::Absent || (id.is_some() && id != *found), before.clone())
        }
        (_, Outcome::Refused(_, code)) => {
            expected_after_rejection(before, op, code, is_present, accept_unless)
        }
    }
}

fn expected_after_rejection(
    before: &ExpectedState,
    op: Op,
    code: &str,
    is_present: bool,
    accept_unless: impl Fn(bool, ExpectedState) -> Result<ExpectedState, String>,
) -> Result<ExpectedState, String> {
    match code {
        "ENGINE_NOT_FOUND" | "engine_not_found" => accept_unless(is_present, before.clone()),
        "ENGINE_ALREADY_EXISTS" | "ENGINE_NOT_RUNNING" => {
            accept_unless(*before == ExpectedState::Absent, before.clone())
        }
        "engine_stopped" => {
            accept_unless(matches!(before, ExpectedState::Absent | ExpectedState::Up(_)), before.clone())
        }
        "ENGINE_ALREADY_RUNNING" | "engine_sleeping" | "engine_unhealthy" => {
            accept_unless(matches!(before, ExpectedState::Absent | ExpectedState::Stopped(_)), before.clone())
        }
        // Nothing was changed.
        "QUOTA_EXCEEDED" | "PORT_EXHAUSTION" => Ok(before.clone()),
        // The outcome of a database write is unknown.
        "STARTING_UP" => Ok(if op == Op::Get { before.clone() } else { ExpectedState::Unknown }),
        // A failed first boot leaves nothing; any other leaves a state that only the registry knows.
        _ if *before == ExpectedState::Absent && matches!(op, Op::Provision | Op::Admit { .. }) => {
            Ok(ExpectedState::Absent)
        }
        _ => Ok(ExpectedState::Unknown),
    }
}

/// The keys that were handed out, by engine.
#[derive(Debug, Default)]
pub(crate) struct IssuedKeys(Mutex<HashMap<String, EngineKeys>>);

/// The keys of one engine, by key, with whether an acknowledged rotation has ended them.
pub(crate) type EngineKeys = BTreeMap<String, bool>;

impl IssuedKeys {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, EngineKeys>> {
        self.0.lock()
    }

    /// A key of `engine_id` was handed out.
    pub(crate) fn record_issued(&self, engine_id: &str, key: &str) {
        self.lock().entry(engine_id.to_owned()).or_default().entry(key.to_owned()).or_insert(false);
    }

    /// A rotation was acknowledged: `key` is the only one now.
    pub(crate) fn record_rotated(&self, engine_id: &str, key: &str) {
        let mut keys = self.lock();
        let engine_keys = keys.entry(engine_id.to_owned()).or_default();
        for ended in engine_keys.values_mut() {
            *ended = true;
        }
        engine_keys.insert(key.to_owned(), false);
    }

    /// The keys of `engine_id`.
    pub(crate) fn for_engine(&self, engine_id: &str) -> EngineKeys {
        self.lock().get(engine_id).cloned().unwrap_or_default()
    }

    /// All keys of all engines.
    pub(crate) fn all(&self) -> Vec<String> {
        self.lock().values().flat_map(|engine_keys| engine_keys.keys().cloned()).collect()
    }
}

/// A text field of an answer.
pub(crate) fn text_field(body: &Value, pointer: &str) -> Option<String> {
    body.pointer(pointer).and_then(Value::as_str).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: &str) -> Outcome {
        Outcome::Refused(409, code.to_owned())
    }

    #[test]
    fn what_was_acknowledged_is_known_and_what_was_cut_off_is_not() {
        let id = Some("eng_1".to_owned());
        let up = ExpectedState::Up(id.clone());
        let provisioned =
            expected_after(&ExpectedState::Absent, Op::Provision, &Outcome::Acknowledged(id.clone()));
        assert_eq!(provisioned, Ok(up.clone()));
        assert_eq!(
            expected_after(&up, Op::Stop, &Outcome::Acknowledged(None)),
            Ok(ExpectedState::Stopped(id.clone()))
        );
        assert_eq!(expected_after(&up, Op::Stop, &refused("ENGINE_NOT_RUNNING")), Ok(up.clone()));
        assert_eq!(expected_after(&up, Op::Stop, &Outcome::Unknown), Ok(ExpectedState::Unknown));
        assert_eq!(expected_after(&up, Op::Stop, &Outcome::NotSent), Ok(up.clone()));
        assert_eq!(
            expected_after(&ExpectedState::Absent, Op::Provision, &refused("STARTING_UP")),
            Ok(ExpectedState::Unknown)
        );
        assert_eq!(expected_after(&up, Op::Destroy, &Outcome::Acknowledged(id)), Ok(ExpectedState::Absent));
    }

    #[test]
    fn an_answer_that_cannot_be_is_a_lie() {
        let (id, other) = (Some("eng_1".to_owned()), Some("eng_2".to_owned()));
        let (up, stopped) = (ExpectedState::Up(id.clone()), ExpectedState::Stopped(id.clone()));
        let admit = Op::Admit { provision: false, wake: true };
        for (before, op, outcome) in [
            (&up, Op::Provision, Outcome::Acknowledged(other.clone())),
            (&up, admit, Outcome::Acknowledged(other.clone())),
            (&up, Op::Get, Outcome::Acknowledged(other)),
            (&up, Op::Get, refused("ENGINE_NOT_FOUND")),
            (&stopped, admit, Outcome::Acknowledged(id)),
            (&stopped, Op::Stop, Outcome::Acknowledged(None)),
            (&stopped, Op::Start, refused("ENGINE_ALREADY_RUNNING")),
            (&ExpectedState::Absent, Op::Rotate, Outcome::Acknowledged(None)),
            (&ExpectedState::Absent, Op::Provision, refused("ENGINE_ALREADY_EXISTS")),
        ] {
            assert!(expected_after(before, op, &outcome).is_err(), "{before:?} {op:?} {outcome:?}");
        }
    }
}
