//! How a command ends that cannot do what it was asked.

use std::fmt;
use std::process::ExitCode;

/// A failure that a person reads. Exit code 2: what was asked cannot be, and the text says what to change.
/// Exit code 1: it went wrong.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The request or the configuration is at fault.
    Usage(String),
    /// Something failed.
    Failed(anyhow::Error),
}

impl Failure {
    /// A fault in what was asked.
    pub(crate) fn usage(message: impl fmt::Display) -> Self {
        Self::Usage(message.to_string())
    }

    /// A fault in what was asked, with its causes.
    pub(crate) fn usage_with_causes(error: impl Into<anyhow::Error>) -> Self {
        Self::Usage(format!("{:#}", error.into()))
    }

    /// Tells the person, and gives the exit code.
    pub(crate) fn report(self) -> ExitCode {
        let code = match self {
            Self::Usage(_) => 2,
            Self::Failed(_) => 1,
        };
        // Nothing can be done where standard error is closed.
        let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("roundhouse: {self}\n"));
        ExitCode::from(code)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(message) => f.write_str(message),
            // With its causes: they say what the system answered.
            Self::Failed(error) => write!(f, "{error:#}"),
        }
    }
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}
