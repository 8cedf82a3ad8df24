//! The collaborators outside the fleet that most of its parts call.

use std::sync::Arc;

use http_service::clock::Clock;

use crate::backend::DeadlineBackend;
use crate::registry::Registry;

pub(crate) struct Shared {
    pub(super) registry: Registry,
    pub(super) backend: DeadlineBackend,
    pub(super) clock: Arc<dyn Clock>,
}
