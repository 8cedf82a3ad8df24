//! Who makes a call for a product.

use std::ops::Deref;
use std::sync::Arc;

use super::stream_limiter::StreamHolder;
use crate::domain::Actor;
use crate::registry::Product;

/// The product that a call is about, and who makes it: whatever only needs the product takes it from here.
#[derive(Clone)]
pub(crate) struct Caller {
    product: Arc<Product>,
    actor: Actor,
}

impl Caller {
    /// The product itself.
    pub(crate) const fn product(product: Arc<Product>) -> Self {
        Self { product, actor: Actor::Implied }
    }

    /// The operator, who acts for `product`.
    pub(crate) const fn operator(product: Arc<Product>) -> Self {
        Self { product, actor: Actor::Operator }
    }

    pub(super) const fn actor(&self) -> Actor {
        self.actor
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
