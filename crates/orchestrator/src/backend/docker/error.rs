//! What the daemon's errors mean.

use std::error::Error as _;

use bollard::errors::Error;

use crate::backend::{BackendError, LaunchSpec};

/// What the daemon says when the host, or the network, has no room for another container.
const NO_CAPACITY_MESSAGES: [&str; 9] = [
    "no available IPv4 addresses",
    "no available ip addresses",
    "non-overlapping IPv4 address pool",
    "exchange full",
    "no space left on device",
    "disk quota exceeded",
    "cannot allocate memory",
    "resource temporarily unavailable",
    "too many open files",
];

/// What it says when a port is somebody else's.
const PORT_TAKEN_MESSAGES: [&str; 3] =
    ["port is already allocated", "address already in use", "ports are not available"];

/// What an error means, whatever was asked.
pub(super) fn docker_backend_error(error: &Error) -> BackendError {
    match error {
        Error::DockerResponseServerError { message, .. } if contains_any(message, &NO_CAPACITY_MESSAGES) => {
            BackendError::NoCapacity(message.clone())
        }
        Error::DockerResponseServerError { status_code, message } => {
            BackendError::Failed(format!("the Docker daemon answered {status_code}: {message}"))
        }
        Error::SocketNotFoundError(socket) => {
            BackendError::Unreachable(format!("there is no socket of a Docker daemon at {socket}"))
        }
        Error::RequestTimeoutError => {
            BackendError::Unreachable("the Docker daemon does not answer in time".to_owned())
        }
        Error::IOError { .. } | Error::HyperResponseError { .. } | Error::HyperLegacyError { .. } => {
            BackendError::Unreachable(format!("the Docker daemon does not answer: {}", with_causes(error)))
        }
        _ => BackendError::Failed(format!("the Docker daemon is not understood: {}", with_causes(error))),
    }
}

/// What an error means that a launch met with.
pub(super) fn launch_error(error: &Error, launch: &LaunchSpec) -> BackendError {
    match error {
        Error::DockerResponseServerError { status_code: 404, message }
            if contains_any(message, &["no such image"]) =>
        {
            BackendError::NoImage(launch.image.clone())
        }
        Error::DockerResponseServerError { message, .. } if contains_any(message, &PORT_TAKEN_MESSAGES) => {
            BackendError::PortTaken(launch.port)
        }
        _ => docker_backend_error(error),
    }
}

/// Whether the daemon answered with this status.
pub(super) fn is_status(error: &Error, status: u16) -> bool {
    matches!(error, Error::DockerResponseServerError { status_code, .. } if *status_code == status)
}

/// Whether a container could not begin because its network is not there any more.
pub(super) fn is_network_gone(error: &Error) -> bool {
    matches!(
        error,
        Error::DockerResponseServerError { status_code: 404, message }
            if contains_any(message, &["network"]) && !contains_any(message, &["no such container"])
    )
}

fn contains_any(message: &str, phrases: &[&str]) -> bool {
    let message = message.to_lowercase();
    phrases.iter().any(|phrase| message.contains(&phrase.to_lowercase()))
}

/// An error with its causes.
fn with_causes(error: &Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        next = cause.source();
    }
    text
}
