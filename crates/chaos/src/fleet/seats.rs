//! What each user was promised: the acknowledged calls of a round, and what must still hold after its kill.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;

/// What is asked for a user.
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

    /// Whether a row of the ledger with this event may come from it.
    pub(crate) const fn writes(self, event: &str) -> bool {
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

/// What came of a call.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    /// It was acknowledged; of the engine where the answer names it.
    Done(Option<String>),
    /// It was refused, or the user not admitted.
    Refused(u16, String),
    /// It never reached the orchestrator.
    Unsent,
    /// Nobody knows.
    Unknown,
}

impl Outcome {
    /// Whether the call may have changed something.
    pub(crate) fn may_have_acted(&self) -> bool {
        match self {
            Self::Done(_) | Self::Unknown => true,
            Self::Unsent => false,
            // What a delete overtook may have been done just before.
            Self::Refused(status, _) => *status >= 500 || *status == 404,
        }
    }
}

/// A call that has come to its end.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) seat: usize,
    pub(crate) op: Op,
    pub(crate) outcome: Outcome,
}

/// What is known of a user's engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    /// Nothing: a call is under way, or was cut off.
    Unknown,
    /// There is none.
    Absent,
    /// There is one, and it is not stopped: it may have crashed or gone to sleep by itself.
    Up(Option<String>),
    /// There is one, and it is stopped.
    Stopped(Option<String>),
}

/// A user of a product. One who belongs to a client is served by that client alone, so what it is told must
/// hold exactly; all clients share the others.
#[derive(Debug)]
pub(crate) struct Seat {
    /// The number of the product.
    pub(crate) product: usize,
    pub(crate) user: String,
    /// Whose it is.
    pub(crate) client: Option<usize>,
    expect: Mutex<Expect>,
}

impl Seat {
    /// A user without an engine.
    pub(crate) fn new(product: usize, user: String, client: Option<usize>) -> Self {
        Self { product, user, client, expect: Mutex::new(Expect::Absent) }
    }

    /// What is known of the engine.
    pub(crate) fn expect(&self) -> Expect {
        self.lock().clone()
    }

    /// Notes what is known.
    pub(crate) fn know(&self, expect: Expect) {
        *self.lock() = expect;
    }

    fn lock(&self) -> MutexGuard<'_, Expect> {
        self.expect.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is known after `call`, of which `before` was known; an error if that makes the answer a lie.
pub(crate) fn after(before: &Expect, op: Op, outcome: &Outcome) -> Result<Expect, String> {
    let lie = |is_lie: bool, then: Expect| {
        if is_lie {
            Err(format!("{op:?} came to {outcome:?}, and what was known is {before:?}"))
        } else {
            Ok(then)
        }
    };
    let is_present = matches!(before, Expect::Up(_) | Expect::Stopped(_));
    let id = match before {
        Expect::Up(id) | Expect::Stopped(id) => id.clone(),
        Expect::Unknown | Expect::Absent => None,
    };
    match (op, outcome) {
        (Op::List, _) | (Op::Get, Outcome::Unknown) | (_, Outcome::Unsent) => Ok(before.clone()),
        (_, Outcome::Unknown) => Ok(Expect::Unknown),
        (Op::Provision, Outcome::Done(new)) => lie(is_present, Expect::Up(new.clone())),
        (Op::Admit { provision, .. }, Outcome::Done(new)) => {
            let other = id.is_some() && id != *new;
            let stopped = matches!(before, Expect::Stopped(_));
            lie(other || stopped || (*before == Expect::Absent && !provision), Expect::Up(new.clone()))
        }
        (Op::Start, Outcome::Done(_)) => lie(*before == Expect::Absent, Expect::Up(id)),
        (Op::Stop | Op::Rotate, Outcome::Done(_)) => {
            let is_lie = matches!(before, Expect::Absent | Expect::Stopped(_));
            lie(is_lie, if op == Op::Stop { Expect::Stopped(id) } else { Expect::Up(id) })
        }
        (Op::Destroy, Outcome::Done(old)) => {
            lie(*before == Expect::Absent || (id.is_some() && id != *old), Expect::Absent)
        }
        (Op::Get, Outcome::Done(found)) => {
            lie(*before == Expect::Absent || (id.is_some() && id != *found), before.clone())
        }
        (_, Outcome::Refused(_, code)) => refused(before, op, code, is_present, lie),
    }
}

fn refused(
    before: &Expect,
    op: Op,
    code: &str,
    is_present: bool,
    lie: impl Fn(bool, Expect) -> Result<Expect, String>,
) -> Result<Expect, String> {
    match code {
        "ENGINE_NOT_FOUND" | "engine_not_found" => lie(is_present, before.clone()),
        "ENGINE_ALREADY_EXISTS" | "ENGINE_NOT_RUNNING" => lie(*before == Expect::Absent, before.clone()),
        "engine_stopped" => lie(matches!(before, Expect::Absent | Expect::Up(_)), before.clone()),
        "ENGINE_ALREADY_RUNNING" | "engine_sleeping" | "engine_unhealthy" => {
            lie(matches!(before, Expect::Absent | Expect::Stopped(_)), before.clone())
        }
        // Nothing was changed.
        "QUOTA_EXCEEDED" | "PORT_EXHAUSTION" => Ok(before.clone()),
        // Of what the database was to keep nobody knows anything.
        "STARTING_UP" => Ok(if op == Op::Get { before.clone() } else { Expect::Unknown }),
        // A first boot that failed leaves nothing; another one leaves what only the registry knows.
        _ if *before == Expect::Absent && matches!(op, Op::Provision | Op::Admit { .. }) => {
            Ok(Expect::Absent)
        }
        _ => Ok(Expect::Unknown),
    }
}

/// The keys that were handed out, by engine.
#[derive(Debug, Default)]
pub(crate) struct Keys(Mutex<HashMap<String, Ring>>);

/// The keys of one engine, by key, with whether an acknowledged rotation has ended them.
pub(crate) type Ring = BTreeMap<String, bool>;

impl Keys {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Ring>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A key of `engine_id` was handed out.
    pub(crate) fn seen(&self, engine_id: &str, key: &str) {
        self.lock().entry(engine_id.to_owned()).or_default().entry(key.to_owned()).or_insert(false);
    }

    /// A rotation was acknowledged: `key` is the only one now.
    pub(crate) fn rotated(&self, engine_id: &str, key: &str) {
        let mut keys = self.lock();
        let ring = keys.entry(engine_id.to_owned()).or_default();
        for ended in ring.values_mut() {
            *ended = true;
        }
        ring.insert(key.to_owned(), false);
    }

    /// The keys of `engine_id`.
    pub(crate) fn of(&self, engine_id: &str) -> Ring {
        self.lock().get(engine_id).cloned().unwrap_or_default()
    }

    /// All keys of all engines.
    pub(crate) fn all(&self) -> Vec<String> {
        self.lock().values().flat_map(|ring| ring.keys().cloned()).collect()
    }
}

/// A text field of an answer.
pub(crate) fn text(body: &Value, pointer: &str) -> Option<String> {
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
        let up = Expect::Up(id.clone());
        let made = after(&Expect::Absent, Op::Provision, &Outcome::Done(id.clone()));
        assert_eq!(made, Ok(up.clone()));
        assert_eq!(after(&up, Op::Stop, &Outcome::Done(None)), Ok(Expect::Stopped(id.clone())));
        assert_eq!(after(&up, Op::Stop, &refused("ENGINE_NOT_RUNNING")), Ok(up.clone()));
        assert_eq!(after(&up, Op::Stop, &Outcome::Unknown), Ok(Expect::Unknown));
        assert_eq!(after(&up, Op::Stop, &Outcome::Unsent), Ok(up.clone()));
        assert_eq!(after(&Expect::Absent, Op::Provision, &refused("STARTING_UP")), Ok(Expect::Unknown));
        assert_eq!(after(&up, Op::Destroy, &Outcome::Done(id)), Ok(Expect::Absent));
    }

    #[test]
    fn an_answer_that_cannot_be_is_a_lie() {
        let (id, other) = (Some("eng_1".to_owned()), Some("eng_2".to_owned()));
        let (up, stopped) = (Expect::Up(id.clone()), Expect::Stopped(id.clone()));
        let admit = Op::Admit { provision: false, wake: true };
        for (before, op, outcome) in [
            (&up, Op::Provision, Outcome::Done(other.clone())),
            (&up, admit, Outcome::Done(other.clone())),
            (&up, Op::Get, Outcome::Done(other)),
            (&up, Op::Get, refused("ENGINE_NOT_FOUND")),
            (&stopped, admit, Outcome::Done(id)),
            (&stopped, Op::Stop, Outcome::Done(None)),
            (&stopped, Op::Start, refused("ENGINE_ALREADY_RUNNING")),
            (&Expect::Absent, Op::Rotate, Outcome::Done(None)),
            (&Expect::Absent, Op::Provision, refused("ENGINE_ALREADY_EXISTS")),
        ] {
            assert!(after(before, op, &outcome).is_err(), "{before:?} {op:?} {outcome:?}");
        }
    }
}
