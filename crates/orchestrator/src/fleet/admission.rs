//! Who may do what: callers are identified by their keys, and products are held to their limits.

use std::net::IpAddr;
use std::sync::Arc;

use super::FleetError;
use super::admit_counters::AdmitCounters;
use super::auth_failure_log::AuthFailureLog;
use super::caller::Caller;
use super::products::Products;
use super::rate_limit::{OverLimit, RateLimiter};
use super::shared::Shared;
use super::stream_limiter::StreamLimiter;
use crate::domain::Actor;
use crate::registry::Product;

pub(crate) struct Admission {
    shared: Arc<Shared>,
    products: Arc<Products>,
    rate_limiter: RateLimiter,
    auth_failures: AuthFailureLog,
    stream_limiter: StreamLimiter,
    /// The admits of each product.
    pub(super) counters: Arc<AdmitCounters>,
}

impl Admission {
    pub(super) fn new(shared: Arc<Shared>, products: Arc<Products>) -> Self {
        let counters = Arc::new(AdmitCounters::new(&shared));
        Self {
            shared,
            products,
            rate_limiter: RateLimiter::default(),
            auth_failures: AuthFailureLog::default(),
            stream_limiter: StreamLimiter::new(),
            counters,
        }
    }

    /// Returns the product that has this platform key.
    pub(crate) async fn authenticate(&self, key: &str) -> Result<Option<Arc<Product>>, FleetError> {
        self.products.with_key(key).await
    }

    /// Returns the product that an operator names, also a deleted one; `None` if there is no such product.
    pub(crate) async fn product(&self, product_id: &str) -> Result<Option<Arc<Product>>, FleetError> {
        // An invalid id cannot belong to any product.
        let Ok(product_id) = product_id.parse() else { return Ok(None) };
        Ok(self.shared.registry.product(product_id).await?.map(Arc::new))
    }

    /// Checks that `product` is in use.
    pub(crate) const fn check_in_use(product: &Product) -> Result<(), FleetError> {
        FleetError::check_in_use(product.state)
    }

    /// Records that the key in `header` of the current request was refused.
    pub(crate) fn log_auth_failure(&self, header: &'static str, client: Option<IpAddr>) {
        self.auth_failures.log(header, client, self.shared.clock.monotonic());
    }

    /// Checks that `product` may make a call that does more than read.
    pub(crate) fn check_not_suspended(product: &Product) -> Result<(), FleetError> {
        if product.policy.is_suspended() { Err(FleetError::suspended()) } else { Ok(()) }
    }

    /// Counts an admit against the rate limit of the caller's product, or refuses it. An operator is not held to it,
    /// and takes nothing of it from the product.
    pub(super) fn check_rate(&self, caller: &Caller) -> Result<(), FleetError> {
        let product: &Product = match caller.actor() {
            Actor::Implied => caller,
            Actor::Operator => return Ok(()),
        };
        let (limit, now) = (product.policy.rate_limit_rpm, self.shared.clock.monotonic());
        let checked = self.rate_limiter.check(product.product_id, limit, now);
        checked.map_err(|OverLimit { retry_after_s }| FleetError::RateLimited { retry_after_s })
    }

    /// The limiter of long-lived responses.
    pub(crate) const fn stream_limiter(&self) -> &StreamLimiter {
        &self.stream_limiter
    }
}
