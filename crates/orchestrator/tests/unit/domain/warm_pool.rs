use proptest::prelude::*;

use super::*;

const SIZE: PoolSize = PoolSize { per_product: 2, total: 3 };

fn view(product_id: ProductId, state: WarmState, attended: bool, usable: bool) -> WarmView {
    WarmView { engine_id: EngineId::new(), product_id, state, attended, usable }
}

fn ready(product_id: ProductId) -> WarmView {
    view(product_id, WarmState::Ready, false, true)
}

#[test]
fn each_product_gets_one_before_any_gets_two_and_all_together_no_more_than_the_total() {
    let products = [ProductId::new(), ProductId::new()];
    let [first, second] = products;
    assert_eq!(plan(PoolMode::Fill, SIZE, &products, &[]).boot, [first, second, first]);
    let engines = [ready(first), view(second, WarmState::Booting, true, false)];
    assert_eq!(
        plan(PoolMode::Fill, SIZE, &products, &engines),
        PoolPlan { boot: vec![first], end: Vec::new() }
    );
}

#[test]
fn what_cannot_be_claimed_is_replaced_and_what_nobody_is_at_is_ended() {
    let product = ProductId::new();
    let unusable = view(product, WarmState::Ready, false, false);
    let abandoned = view(product, WarmState::Booting, false, false);
    let half_ended = view(product, WarmState::Ending, false, false);
    let being_ended = view(product, WarmState::Ending, true, false);
    let planned = plan(PoolMode::Fill, SIZE, &[product], &[unusable, abandoned, half_ended, being_ended]);
    assert_eq!(planned.boot, [product, product]);
    let mut expected = [unusable.engine_id, abandoned.engine_id, half_ended.engine_id];
    let mut ended = planned.end;
    expected.sort();
    ended.sort();
    assert_eq!(ended, expected);
}

#[test]
fn a_drain_empties_the_pool_and_a_maintenance_leaves_it_alone() {
    let product = ProductId::new();
    let engines = [ready(product), view(product, WarmState::Ready, false, false)];
    assert_eq!(plan(PoolMode::Hold, SIZE, &[product], &engines), PoolPlan::default());
    let drained = plan(PoolMode::Empty, SIZE, &[product], &engines);
    assert_eq!((drained.boot.len(), drained.end.len()), (0, 2));
}

#[test]
fn a_product_that_is_out_of_use_loses_its_engines() {
    let (active, disabled) = (ProductId::new(), ProductId::new());
    let gone = ready(disabled);
    let planned = plan(PoolMode::Fill, SIZE, &[active], &[gone, ready(active)]);
    assert_eq!(planned, PoolPlan { boot: vec![active], end: vec![gone.engine_id] });
}

#[test]
fn a_launch_that_would_differ_has_other_settings() {
    let policy = |json: &str| serde_json::from_str::<Policy>(json).unwrap();
    let plain = launch_settings(&policy("{}"), None, "env");
    assert_eq!(plain, launch_settings(&policy("{\"max_engines\": 3}"), Some("[]"), "env"));
    let others = [
        launch_settings(&policy("{\"engine_memory_mb\": 512}"), None, "env"),
        launch_settings(&policy("{\"engine_cpus\": 0.5}"), None, "env"),
        launch_settings(&policy("{\"engine_pids\": 64}"), None, "env"),
        launch_settings(&policy("{\"oauth_redirect_base_url\": \"https://a.example\"}"), None, "env"),
        launch_settings(&policy("{}"), Some("[\"https://shop.example\"]"), "env"),
        launch_settings(&policy("{}"), None, "another"),
    ];
    for other in others {
        assert_ne!(plain, other);
    }
}

/// The state of the pool after `plan`, if each boot succeeds and each end is done.
fn apply(engines: &[WarmView], plan: &PoolPlan) -> Vec<WarmView> {
    let kept = engines.iter().filter(|engine| !plan.end.contains(&engine.engine_id)).copied();
    let kept = kept.filter(|engine| engine.state != WarmState::Ending).map(|engine| WarmView {
        state: WarmState::Ready,
        attended: false,
        usable: engine.usable || engine.state == WarmState::Booting,
        ..engine
    });
    kept.chain(plan.boot.iter().map(|product| ready(*product))).collect()
}

proptest! {
    #[test]
    fn whatever_the_pool_is_like_it_is_at_its_size_soon_and_no_usable_engine_is_ended_for_another(
        shapes in prop::collection::vec((0_usize..4, 0_usize..3, any::<bool>(), any::<bool>()), 0..12),
        in_use in 0_usize..4,
        per_product in 0_usize..4,
        total in 0_usize..6,
    ) {
        let products: Vec<_> = (0..4).map(|_| ProductId::new()).collect();
        let size = PoolSize { per_product, total };
        let engines: Vec<_> = shapes
            .iter()
            .map(|(product, state, attended, usable)| {
                view(products[*product], WarmState::ALL[*state], *attended, *usable)
            })
            .collect();
        let in_use = &products[..in_use];
        let first = plan(PoolMode::Fill, size, in_use, &engines);
        let attended_boots = engines.iter().filter(|e| e.state == WarmState::Booting && e.attended).count();
        let kept_ready = engines
            .iter()
            .filter(|e| e.state == WarmState::Ready && !first.end.contains(&e.engine_id))
            .count();
        prop_assert!(first.boot.is_empty() || first.boot.len() + attended_boots + kept_ready <= total);
        for product in in_use {
            let count = |ended: bool| engines
                .iter()
                .filter(|e| e.product_id == *product && e.state == WarmState::Ready && e.usable)
                .filter(|e| first.end.contains(&e.engine_id) == ended)
                .count();
            // A usable one is ended only if there are enough without it.
            prop_assert!(count(true) == 0 || !first.boot.contains(product));
        }
        // What boots attended now is ready then, and may be one too many; after that nothing is left to do.
        let mut pool = engines;
        for _ in 0..2 {
            let planned = plan(PoolMode::Fill, size, in_use, &pool);
            pool = apply(&pool, &planned);
        }
        prop_assert_eq!(plan(PoolMode::Fill, size, in_use, &pool), PoolPlan::default());
        prop_assert_eq!(pool.len(), total.min(per_product * in_use.len()));
    }
}
