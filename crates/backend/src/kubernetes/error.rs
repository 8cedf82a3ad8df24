//! Translates the API server's errors into [`BackendError`]s.

use std::time::Duration;

use api::EngineImage;
use resources::text::error_chain;

use super::pod_state::Obstacle;
use crate::BackendError;

/// Why a request to the API server failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClusterError {
    /// The credentials or the address of the cluster are missing or unusable.
    #[error("{0}")]
    Config(String),
    /// There was no answer in time.
    #[error("the Kubernetes API server did not answer within {} s", .0.as_secs())]
    Timeout(Duration),
    /// The API server refused, or could not be reached.
    #[error(transparent)]
    Api(Box<kube::Error>),
}

impl From<kube::Error> for ClusterError {
    fn from(error: kube::Error) -> Self {
        Self::Api(Box::new(error))
    }
}

impl ClusterError {
    /// The HTTP status of the API server's answer, if it refused.
    pub(super) fn status(&self) -> Option<u16> {
        match self {
            Self::Api(error) => match error.as_ref() {
                kube::Error::Api(status) => Some(status.code),
                _ => None,
            },
            Self::Config(_) | Self::Timeout(_) => None,
        }
    }

    /// Whether an object was not created because there is one of its name. A conflict of another kind passes.
    pub(super) fn is_already_exists(&self) -> bool {
        matches!(self, Self::Api(error) if matches!(error.as_ref(), kube::Error::Api(status) if status.is_already_exists()))
    }
}

impl From<ClusterError> for BackendError {
    fn from(error: ClusterError) -> Self {
        match error {
            ClusterError::Config(_) | ClusterError::Timeout(_) => Self::Unreachable(error.to_string()),
            ClusterError::Api(error) => api_backend_error(&error),
        }
    }
}

fn api_backend_error(error: &kube::Error) -> BackendError {
    match error {
        kube::Error::Api(status) => {
            let message = status.message.trim();
            match status.code {
                403 if message.contains("exceeded quota") => BackendError::NoCapacity(message.to_owned()),
                // What is wrong are this orchestrator's credentials or rights, and no engine.
                401 | 403 => {
                    BackendError::Unreachable(format!("the Kubernetes API server refuses: {message}"))
                }
                code @ (409 | 429 | 500..) => {
                    BackendError::Unreachable(format!("the Kubernetes API server answered {code}: {message}"))
                }
                code => BackendError::Failed(format!("the Kubernetes API server answered {code}: {message}")),
            }
        }
        kube::Error::SerdeError(_) | kube::Error::FromUtf8(_) | kube::Error::BuildRequest(_) => {
            BackendError::Failed(format!(
                "the Kubernetes API server's answer is invalid: {}",
                error_chain(error)
            ))
        }
        _ => BackendError::Unreachable(format!(
            "the Kubernetes API server does not answer: {}",
            error_chain(error)
        )),
    }
}

/// Translates what keeps the Pod of a launch from starting.
pub(super) fn obstacle_error(obstacle: &Obstacle, image: &EngineImage) -> BackendError {
    match obstacle {
        Obstacle::Unschedulable(message) => {
            BackendError::NoCapacity(format!("no node can run its Pod: {message}"))
        }
        Obstacle::NoSuchImage(_) => BackendError::NoImage(image.clone()),
        Obstacle::ImageNotPulled(message) => {
            BackendError::Unreachable(format!("the image {image} cannot be pulled: {message}"))
        }
        Obstacle::NotStartable(message) => BackendError::Failed(format!("its Pod does not start: {message}")),
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    fn answer(code: u16, message: &str) -> BackendError {
        ClusterError::from(kube::Error::Api(Status::failure(message, "").with_code(code).boxed())).into()
    }

    #[test]
    fn what_says_nothing_about_an_engine_is_told_from_a_failure() {
        for (code, message) in [
            (401, "Unauthorized"),
            (403, "pods is forbidden: User cannot create resource"),
            (403, "pods \"x\" is forbidden: violates PodSecurity \"restricted:latest\""),
            (409, "Operation cannot be fulfilled on resourcequotas"),
            (429, "too many requests"),
            (500, "etcdserver: request timed out"),
            (503, "the server is currently unable to handle the request"),
        ] {
            let error = answer(code, message);
            assert!(matches!(&error, BackendError::Unreachable(text) if text.contains(message)), "{error}");
        }
        let quota = "pods \"x\" is forbidden: exceeded quota: engines, requested: pods=1, used: pods=5, limited: pods=5";
        assert!(matches!(answer(403, quota), BackendError::NoCapacity(_)));
        assert!(matches!(answer(422, "Pod \"x\" is invalid"), BackendError::Failed(_)));
        let late = BackendError::from(ClusterError::Timeout(Duration::from_secs(15)));
        assert!(matches!(late, BackendError::Unreachable(_)));
    }

    #[test]
    fn what_keeps_a_pod_from_starting_has_an_error_of_its_own() {
        let image: EngineImage = "svc-engine:1.2.3".parse().unwrap();
        let text = || "why".to_owned();
        assert!(matches!(
            obstacle_error(&Obstacle::Unschedulable(text()), &image),
            BackendError::NoCapacity(text) if text.ends_with("why")
        ));
        assert_eq!(
            obstacle_error(&Obstacle::NoSuchImage(text()), &image),
            BackendError::NoImage(image.clone())
        );
        let pull = obstacle_error(&Obstacle::ImageNotPulled(text()), &image);
        assert!(pull.is_host_problem() && pull.to_string().contains("svc-engine:1.2.3"));
        assert!(matches!(obstacle_error(&Obstacle::NotStartable(text()), &image), BackendError::Failed(_)));
    }
}
