use api::product_state::ProductState;
use api::usage_days::FirstDeltas;
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

#[test]
fn first_texts_are_a_histogram_with_cumulated_buckets() {
    let totals = UsageTotals::default();
    let first_deltas = FirstDeltas { turns: [1, 0, 2, 0, 0, 0, 0, 0, 0, 4], total_ms: 250_500 };
    totals.add(ProductId::new(), UsageCounts { first_deltas, ..UsageCounts::default() });
    let mut registry = prometheus_client::registry::Registry::default();
    registry.register("first_delta", "help", FirstDeltaFamily(totals));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    let bucket =
        |to: &str, turns: u64| format!("first_delta_bucket{{le=\"{to}\",product=\"other\"}} {turns}");
    for expected in [
        "first_delta_sum{product=\"other\"} 250.5".to_owned(),
        "first_delta_count{product=\"other\"} 7".to_owned(),
        bucket("0.1", 1),
        bucket("0.25", 1),
        bucket("0.5", 3),
        bucket("60.0", 3),
        bucket("+Inf", 7),
    ] {
        assert!(text.contains(&expected), "{expected} in: {text}");
    }
}
