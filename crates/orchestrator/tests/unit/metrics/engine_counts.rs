use api::{ProductId, Slug};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

use super::*;

#[test]
fn the_engines_of_too_many_products_share_a_label_also_with_a_product_of_its_name() {
    let product = |slug: String, engines| ProductCounts {
        product_id: ProductId::new(),
        slug: Slug::new(slug).unwrap(),
        state: api::product_state::ProductState::Active,
        by_status: vec![(EngineStatus::Running, engines)],
    };
    let mut products = vec![product("other".to_owned(), 5)];
    products.extend((1..MAX_PRODUCTS + 2).map(|at| product(format!("p{at}"), 1)));
    let counts = EngineCounts::default();
    counts.set(&products);
    let mut registry = Registry::default();
    registry.register("engines", "Engines", counts);
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    let lines: Vec<_> = text.lines().filter(|line| line.contains("state=\"running\"")).collect();
    assert_eq!(lines.len(), MAX_PRODUCTS, "{text}");
    assert!(lines.contains(&"engines{product=\"other\",state=\"running\"} 7"), "{text}");
    assert!(lines.contains(&"engines{product=\"p199\",state=\"running\"} 1"), "{text}");
}
