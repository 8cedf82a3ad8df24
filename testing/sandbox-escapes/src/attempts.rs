//! The attempts, grouped by target.

mod files;
mod kernel;
mod limits;
mod processes;
mod sockets;

use crate::{Attempt, AttemptError, Control, Mechanism, Target};

/// Returns the attempts of all groups.
pub fn all_attempts() -> Vec<Attempt> {
    [files::ALL, processes::ALL, sockets::ALL, kernel::ALL, limits::ALL].concat()
}

/// The code of an attempt. Returns what it obtained.
type AttemptFn = fn(&Target) -> Result<String, AttemptError>;

/// An attempt with the usual settings: it succeeds without a sandbox, and runs with the network off and the
/// default limits.
const fn attempt(
    name: &'static str,
    description: &'static str,
    mechanism: Mechanism,
    run: AttemptFn,
) -> Attempt {
    Attempt {
        name,
        description,
        mechanism,
        control: Control::Succeeds,
        needs_network: false,
        limits: None,
        run,
    }
}

impl Attempt {
    const fn with_control(mut self, control: Control) -> Self {
        self.control = control;
        self
    }

    const fn with_network(mut self) -> Self {
        self.needs_network = true;
        self
    }

    const fn with_limits(mut self, limits: fn(&mut sandbox::Limits)) -> Self {
        self.limits = Some(limits);
        self
    }
}
