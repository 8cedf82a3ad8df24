//! Translates the daemon's errors into [`BackendError`]s.
//!
//! The daemon reports many conditions only in the text of its messages, so they are recognized by phrases.

use bollard::errors::Error;
use resources::text::error_chain;

use crate::{BackendError, LaunchSpec};

/// Phrases of the daemon's messages when the host or the network has no capacity for another container.
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

/// Phrases of the daemon's messages when a port is in use.
const PORT_TAKEN_MESSAGES: [&str; 3] =
    ["port is already allocated", "address already in use", "ports are not available"];

/// Translates an error of any request.
pub(super) fn docker_backend_error(error: &Error) -> BackendError {
    match error {
        Error::DockerResponseServerError { message, .. } if contains_any(message, &NO_CAPACITY_MESSAGES) => {
            BackendError::NoCapacity(message.clone())
        }
        Error::DockerResponseServerError { status_code, message } => {
            BackendError::Failed(format!("the Docker daemon answered {status_code}: {message}"))
        }
        Error::SocketNotFoundError(socket) => {
            BackendError::Unreachable(format!("the Docker daemon's socket {socket} does not exist"))
        }
        Error::RequestTimeoutError => {
            BackendError::Unreachable("the Docker daemon did not answer in time".to_owned())
        }
        Error::IOError { .. } | Error::HyperResponseError { .. } | Error::HyperLegacyError { .. } => {
            BackendError::Unreachable(format!("the Docker daemon does not answer: {}", error_chain(error)))
        }
        _ => BackendError::Failed(format!("the Docker daemon's answer is invalid: {}", error_chain(error))),
    }
}

/// Translates an error of a launch.
pub(super) fn launch_error(error: &Error, launch: &LaunchSpec) -> BackendError {
    match error {
        Error::DockerResponseServerError { status_code: 404, message }
            if contains_any(message, &["no such image"]) =>
        {
            BackendError::NoImage(launch.image.clone())
        }
        Error::DockerResponseServerError { message, .. }
            if let Some(port) = launch.placement.host_port()
                && contains_any(message, &PORT_TAKEN_MESSAGES) =>
        {
            BackendError::PortTaken(port)
        }
        _ => docker_backend_error(error),
    }
}

/// Whether the daemon answered with this status.
pub(super) fn is_status(error: &Error, status: u16) -> bool {
    matches!(error, Error::DockerResponseServerError { status_code, .. } if *status_code == status)
}

/// Whether a container could not start because its network does not exist any more.
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
