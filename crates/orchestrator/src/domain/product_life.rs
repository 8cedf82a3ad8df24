//! The table that decides every transition of a product: current state × act → step. It is pure.

use api::product_state::ProductState;

/// What an operator, or the end of a deletion, does to a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProductAct {
    /// Nobody uses it until it is enabled.
    Disable,
    /// It is in use again.
    Enable,
    /// Its engines are destroyed from now on.
    BeginDeletion,
    /// It has no engine any more.
    FinishDeletion,
}

/// What to do about an act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProductStep {
    /// The product already is as the act leaves it.
    Already,
    /// It goes into this state.
    To(ProductState),
    /// Nothing changes.
    Refuse(ProductRefusal),
}

/// Why an act is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProductRefusal {
    /// There is no such product.
    NotFound,
    /// Only a disabled product is deleted.
    NotDisabled,
    /// It is being deleted, which is not undone.
    Deleting,
}

/// Decides what to do about `act` for a product in `state`.
pub(crate) const fn decide(state: ProductState, act: ProductAct) -> ProductStep {
    use ProductState::{Active, Deleted, Deleting, Disabled};
    match (act, state) {
        (ProductAct::FinishDeletion, Deleted)
        | (ProductAct::Disable, Disabled)
        | (ProductAct::Enable, Active)
        | (ProductAct::BeginDeletion, Deleting) => ProductStep::Already,
        (_, Deleted) => ProductStep::Refuse(ProductRefusal::NotFound),
        (ProductAct::Disable, Active) => ProductStep::To(Disabled),
        (ProductAct::Enable, Disabled) => ProductStep::To(Active),
        (ProductAct::BeginDeletion, Disabled) => ProductStep::To(Deleting),
        (ProductAct::FinishDeletion, Deleting) => ProductStep::To(Deleted),
        (ProductAct::Disable | ProductAct::Enable, Deleting) => ProductStep::Refuse(ProductRefusal::Deleting),
        (ProductAct::BeginDeletion, Active) | (ProductAct::FinishDeletion, Active | Disabled) => {
            ProductStep::Refuse(ProductRefusal::NotDisabled)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_is_deleted_only_once_it_is_disabled_and_never_comes_back() {
        let steps = |act| ProductState::ALL.map(|state| decide(state, act));
        let (already, not_found) = (ProductStep::Already, ProductStep::Refuse(ProductRefusal::NotFound));
        let deleting = ProductStep::Refuse(ProductRefusal::Deleting);
        let not_disabled = ProductStep::Refuse(ProductRefusal::NotDisabled);
        let to = ProductStep::To;
        assert_eq!(steps(ProductAct::Disable), [to(ProductState::Disabled), already, deleting, not_found]);
        assert_eq!(steps(ProductAct::Enable), [already, to(ProductState::Active), deleting, not_found]);
        assert_eq!(
            steps(ProductAct::BeginDeletion),
            [not_disabled, to(ProductState::Deleting), already, not_found]
        );
        assert_eq!(
            steps(ProductAct::FinishDeletion),
            [not_disabled, not_disabled, to(ProductState::Deleted), already]
        );
    }
}
