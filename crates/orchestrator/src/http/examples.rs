//! The examples of the OpenAPI document: a file for each tag, and the events. Running services have answered most of
//! them.

/// The texts, for `http_service::http::openapi::add_examples`.
pub(super) const EXAMPLES: [&str; 10] = [
    include_str!("examples/audit.json"),
    include_str!("examples/browser.json"),
    include_str!("examples/engines.json"),
    include_str!("examples/events.json"),
    include_str!("examples/fleet.json"),
    include_str!("examples/inbox.json"),
    include_str!("examples/metrics.json"),
    include_str!("examples/products.json"),
    include_str!("examples/service.json"),
    include_str!("examples/webhooks.json"),
];
