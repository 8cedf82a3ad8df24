use api::product_state::ProductState;
use api::{ProductId, Slug};
use pretty_assertions::assert_eq;

use super::*;

#[test]
fn the_products_without_a_label_of_their_own_share_one() {
    let totals = UsageTotals::default();
    let mut products: Vec<_> = (0..=MAX_PRODUCTS)
        .map(|at| ProductCounts {
            product_id: ProductId::new(),
            slug: Slug::new(format!("p{at}")).unwrap(),
            state: ProductState::Active,
            by_status: Vec::new(),
        })
        .collect();
    products.sort_by_key(|product| product.product_id.to_string());
    let turns = |turns| UsageCounts { turns, ..UsageCounts::default() };
    let (first, last) = (&products[0], &products[MAX_PRODUCTS]);
    totals.set_labels(&products);
    totals.add(first.product_id, turns(2));
    totals.add(first.product_id, turns(3));
    totals.add(last.product_id, turns(7));
    // One that was deleted meanwhile.
    totals.add(ProductId::new(), turns(10));
    let expected = [(OTHER.to_owned(), turns(17)), (first.slug.as_str().to_owned(), turns(5))];
    assert_eq!(totals.by_label(), expected.into());
}
