//! Operations under way, observed between two of their steps.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use serde_json::json;
use tokio::sync::oneshot;
use tracing::{Instrument as _, Span};

use crate::domain::EngineOwner;
use crate::domain::lifecycle::Change;
use crate::fleet::Fleet;
use crate::fleet::operation::Operation;
use crate::fleet::request::{OperationError, OperationRequest, OperationResult, RequestKind};
use crate::registry::{Claim, EngineRow};
use crate::testing::TestApp;

/// Counts how often it is woken.
#[derive(Default)]
struct WakeCounter(AtomicUsize);

impl Wake for WakeCounter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Lets a call of `kind` meet `operation`, which is about to complete. The call must wait for it without
/// polling. Returns the result of the call.
async fn wait_for_operation(
    fleet: &Arc<Fleet>,
    operation: Arc<Operation>,
    kind: RequestKind,
) -> OperationResult {
    let request = OperationRequest::new(operation.engine_owner.clone(), kind, "requested");
    let mut caller = Box::pin(fleet.executor.execute(&request));
    let wake_counter = Arc::new(WakeCounter::default());
    let waker = Waker::from(Arc::clone(&wake_counter));
    // If the registry is on a server, the call waits for its response first.
    let until_waiting = async {
        while fleet.executor.operations.waiter_count() == 0 {
            let polled = caller.as_mut().poll(&mut Context::from_waker(&waker));
            assert!(matches!(polled, Poll::Pending), "{polled:?}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), until_waiting).await.expect("the caller never waits");
    wake_counter.0.store(0, Ordering::SeqCst);
    // A future that spins is interrupted by the runtime at some point, and woken again at its next turn.
    tokio::task::yield_now().await;
    assert_eq!(wake_counter.0.load(Ordering::SeqCst), 0, "the caller spins");
    fleet.executor.operations.spawn(operation, async { Err(OperationError::Stale) });
    caller.await.unwrap()
}

/// The row of a running engine of the user `ann`.
async fn running_engine(app: &TestApp) -> EngineRow {
    let product = app.register_product("demo", json!({})).await;
    product.provision("ann").await;
    let mut rows = app.orchestrator.fleet().registry().running_engines().await.unwrap();
    rows.pop().unwrap()
}

fn previous_generation(row: &EngineRow) -> EngineRow {
    EngineRow { generation: row.generation - 1, ..row.clone() }
}

#[tokio::test]
async fn a_caller_rests_until_a_change_that_is_settled_has_landed() {
    let app = TestApp::new().await;
    let fleet = app.orchestrator.fleet();
    let row = running_engine(&app).await;
    let operation =
        fleet.executor.operations.begin_for_row(&previous_generation(&row), Change::Start).ok().unwrap();
    let settled = wait_for_operation(fleet, operation, RequestKind::Stop).await;
    assert!(matches!(settled, OperationResult::NotRunning), "{settled:?}");
}

#[tokio::test]
async fn a_caller_rests_until_a_change_that_left_no_engine_has_landed() {
    let app = TestApp::new().await;
    let fleet = app.orchestrator.fleet();
    let mut row = running_engine(&app).await;
    row.owner = EngineOwner { user_id: api::UserId::new("bob").unwrap(), ..row.owner };
    let operation = fleet.executor.operations.begin_for_row(&row, Change::Destroy).ok().unwrap();
    let settled = wait_for_operation(fleet, operation, RequestKind::Provision(None)).await;
    assert!(matches!(settled, OperationResult::Engine(_)), "{settled:?}");
}

#[tokio::test]
async fn a_caller_rests_while_a_delete_takes_over() {
    let app = TestApp::new().await;
    let fleet = app.orchestrator.fleet();
    let row = running_engine(&app).await;
    let operation = fleet.executor.operations.begin_for_row(&row, Change::Stop).ok().unwrap();
    // The delete holds the row, and has not registered its operation as the active one yet.
    let delete = Claim {
        change: Change::Destroy,
        pending: None,
        image: None,
        for_maintenance: false,
        default_image: row.engine_version.clone(),
        owner: "this process".into(),
        deadline: row.created_at,
        call: None,
    };
    fleet.registry().claim(&row, &delete).await.unwrap().unwrap();
    let settled =
        wait_for_operation(fleet, operation, RequestKind::Admit { provision: true, wake: false }).await;
    assert!(matches!(settled, OperationResult::Engine(engine) if engine.engine_id != row.engine_id));
    app.assert_consistent().await;
}

#[tokio::test]
async fn a_change_is_logged_under_the_request_that_began_it() {
    const SPANS: &str = "a_change_is_logged";
    // Only the spans of this test are enabled; nothing is written.
    http_service::logging::init(http_service::logging::parse_filter(&format!("{SPANS}=info")).unwrap());
    let app = TestApp::new().await;
    let fleet = app.orchestrator.fleet();
    let row = running_engine(&app).await;
    let operation = fleet.executor.operations.begin_for_row(&row, Change::Stop).ok().unwrap();
    let (report, seen) = oneshot::channel();
    let request = tracing::info_span!(target: SPANS, "request");
    let begin = async {
        fleet.executor.operations.spawn(operation, async {
            report.send(Span::current().id()).unwrap();
            Err(OperationError::Stale)
        });
    };
    begin.instrument(request.clone()).await;
    assert!(request.id().is_some());
    assert_eq!(seen.await.unwrap(), request.id());
}
