//! The errors with which a command exits.

use std::fmt;
use std::process::ExitCode;

/// A failure reported to the person who ran the command. Exit code 2: the request or configuration is wrong, and
/// the text says what to change. Exit code 1: something failed while running.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The request or the configuration is at fault.
    Usage(String),
    /// Something failed.
    Failed(anyhow::Error),
}

impl Failure {
    /// Creates a usage error.
    pub(crate) fn usage(message: impl fmt::Display) -> Self {
        Self::Usage(message.to_string())
    }

    /// Creates a usage error whose message includes the causes.
    pub(crate) fn usage_with_causes(error: impl Into<anyhow::Error>) -> Self {
        Self::Usage(format!("{:#}", error.into()))
    }

    /// Prints the failure and returns the exit code.
    pub(crate) fn report(self) -> ExitCode {
        let code = match self {
            Self::Usage(_) => 2,
            Self::Failed(_) => 1,
        };
        // If standard error is closed, there is nowhere to report it.
        let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("roundhouse: {self}\n"));
        ExitCode::from(code)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(message) => f.write_str(message),
            // With its causes, which contain the system's error.
            Self::Failed(error) => write!(f, "{error:#}"),
        }
    }
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}
