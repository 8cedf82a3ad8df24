//! The attempts, by what they aim at.

mod files;
mod kernel;
mod limits;
mod processes;
mod sockets;

use crate::{Attempt, AttemptError, Control, Mechanism, Target};

/// All of them.
pub fn all_attempts() -> Vec<Attempt> {
    [files::ALL, processes::ALL, sockets::ALL, kernel::ALL, limits::ALL].concat()
}

/// What an attempt does.
type AttemptFn = fn(&Target) -> Result<String, AttemptError>;

/// An attempt as most are.
const fn attempt(name: &'static str, tries: &'static str, mechanism: Mechanism, run: AttemptFn) -> Attempt {
    Attempt {
        name,
        description: tries,
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
