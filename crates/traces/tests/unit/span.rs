use std::task::Poll;

use super::*;
use crate::w3c::{outgoing_traceparent, stored_traceparent};

/// In this process nothing installs an export.
#[tokio::test]
async fn nothing_is_computed_while_traces_are_not_exported() {
    let details = || -> Details { panic!("the details of a span were computed") };
    for span in [Span::start(Kind::Server, details), Span::start_from(None, Kind::Client, details)] {
        assert!(!span.is_recording());
        span.set("key", || -> i64 { panic!("an attribute was computed") });
        span.fail("some");
        let _attached = span.attach();
        annotate("key", || -> i64 { panic!("an attribute was computed") });
        let ids = [span.traceparent(), span.tracestate(), outgoing_traceparent(), stored_traceparent()];
        assert_eq!(ids, [const { None }; 4]);
        let value =
            in_span(&span, std::future::poll_fn(|_| Poll::Ready(Context::current().has_active_span())));
        assert!(!in_current_span(value).await);
    }
}

#[test]
fn a_span_that_is_nothing_is_small() {
    assert!(size_of::<Span>() <= 32, "{}", size_of::<Span>());
}
