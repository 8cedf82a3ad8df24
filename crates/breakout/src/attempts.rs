//! The attempts, by what they aim at.

mod files;
mod kernel;
mod limits;
mod processes;
mod sockets;

use crate::{Attempt, By, Control, Stopped, Target};

/// All of them.
pub fn all() -> Vec<Attempt> {
    [files::ALL, processes::ALL, sockets::ALL, kernel::ALL, limits::ALL].concat()
}

/// What an attempt does.
type Run = fn(&Target) -> Result<String, Stopped>;

/// An attempt as most are.
const fn attempt(name: &'static str, tries: &'static str, stopped_by: By, run: Run) -> Attempt {
    Attempt { name, tries, stopped_by, control: Control::Succeeds, network: false, limits: None, run }
}

impl Attempt {
    const fn control(mut self, control: Control) -> Self {
        self.control = control;
        self
    }

    const fn online(mut self) -> Self {
        self.network = true;
        self
    }

    const fn limits(mut self, limits: fn(&mut leash::Limits)) -> Self {
        self.limits = Some(limits);
        self
    }
}
