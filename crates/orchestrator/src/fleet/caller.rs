//! Who makes a call for a product.

use std::ops::Deref;
use std::sync::Arc;

use super::idempotency::Call;
use super::stream_limiter::StreamHolder;
use crate::domain::Actor;
use crate::registry::Product;

/// The product that a call is about, and who makes it: whatever only needs the product takes it from here.
#[derive(Clone)]
pub(crate) struct Caller {
    product: Arc<Product>,
    actor: Actor,
    /// The call that is made, if it has an `Idempotency-Key`.
    call: Option<Call>,
}

impl Caller {
    /// The product itself.
    pub(crate) const fn product(product: Arc<Product>) -> Self {
        Self { product, actor: Actor::Implied, call: None }
    }

    /// The operator, who acts for `product`.
    pub(crate) const fn operator(product: Arc<Product>) -> Self {
        Self { product, actor: Actor::Operator, call: None }
    }

    /// The same caller, who makes `call`.
    #[must_use]
    pub(crate) fn making(self, call: Option<Call>) -> Self {
        Self { call, ..self }
    }

    pub(super) const fn call(&self) -> Option<&Call> {
        self.call.as_ref()
    }

    /// Whether the change of the call that is made is committed already.
    pub(super) fn is_applied(&self) -> bool {
        self.call.as_ref().is_some_and(Call::is_applied)
    }

    pub(super) const fn actor(&self) -> Actor {
        self.actor
    }

    /// Whether the operator makes it.
    pub(crate) const fn is_operator(&self) -> bool {
        matches!(self.actor, Actor::Operator)
    }

    /// Who holds a long-lived response of this caller.
    pub(crate) fn stream_holder(&self) -> StreamHolder {
        match self.actor {
            Actor::Implied => StreamHolder::Product(self.product.product_id),
            Actor::Operator => StreamHolder::Operator,
        }
    }
}

impl Deref for Caller {
    type Target = Product;

    fn deref(&self) -> &Product {
        &self.product
    }
}
