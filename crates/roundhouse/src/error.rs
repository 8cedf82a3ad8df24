//! The errors with which a command exits.

use std::fmt;
use std::io;
use std::process::ExitCode;

use http_service::signals::ShutdownSignal;

/// A failure reported to the person who ran the command.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The request or the configuration is at fault; the text says what to change. Exit code 2.
    Usage(String),
    /// What the request names does not exist. Exit code 3.
    NotFound(String),
    /// The service refuses the request: because of the key, the policy, or a state. Exit code 4.
    Refused(String),
    /// The service cannot be reached or is not ready. Exit code 5.
    Unavailable(String),
    /// A signal ended the command. Exit code as of a shell: 128 and the signal's number.
    Interrupted(ShutdownSignal),
    /// Whoever read the output wants no more of it, as `head` does. No failure: exit code 0.
    OutputClosed,
    /// Something failed while running. Exit code 1.
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

    /// The failure to write to the standard output.
    pub(crate) fn of_output(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::OutputClosed,
            _ => Self::Failed(anyhow::Error::new(error).context("the output cannot be written")),
        }
    }

    const fn exit_code(&self) -> u8 {
        match self {
            Self::OutputClosed => 0,
            Self::Failed(_) => 1,
            Self::Usage(_) => 2,
            Self::NotFound(_) => 3,
            Self::Refused(_) => 4,
            Self::Unavailable(_) => 5,
            Self::Interrupted(ShutdownSignal::Hangup) => 128 + 1,
            Self::Interrupted(ShutdownSignal::Interrupt) => 128 + 2,
            Self::Interrupted(ShutdownSignal::Terminate) => 128 + 15,
        }
    }

    /// Prints the failure and returns the exit code.
    pub(crate) fn report(self) -> ExitCode {
        let text = self.to_string();
        if !text.is_empty() {
            // If standard error is closed, there is nowhere to report it.
            let _ = io::Write::write_fmt(&mut io::stderr(), format_args!("roundhouse: {text}\n"));
        }
        ExitCode::from(self.exit_code())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(message)
            | Self::NotFound(message)
            | Self::Refused(message)
            | Self::Unavailable(message) => f.write_str(message),
            // Whoever sent a signal, or closed the output, knows.
            Self::Interrupted(_) | Self::OutputClosed => Ok(()),
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
