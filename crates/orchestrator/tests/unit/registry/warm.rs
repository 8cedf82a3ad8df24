//! Warm engines: each becomes the engine of one user, and only if a new one would be launched like it.

use std::collections::BTreeSet;

use super::*;
use crate::domain::warm_pool::WarmState;

const ENVIRONMENT: &str = "the same for all";

impl Fixture {
    fn new_warm_engine(&self) -> NewWarmEngine {
        NewWarmEngine {
            engine_id: EngineId::new(),
            product_id: self.product_id,
            key_hash: EngineKey::generate().unwrap().hash(),
            sealed_key: "warm".into(),
            sealed_secrets_key: "warm, too".into(),
            image: "svc-engine:0.1.0".parse().unwrap(),
            environment: ENVIRONMENT.into(),
            created_at: NOW,
        }
    }

    /// A warm engine that may be claimed.
    async fn warm(&self) -> WarmRow {
        let inserted = self.registry.insert_warm_engine(self.new_warm_engine(), &self.placements).await;
        let (row, placement) = inserted.unwrap().unwrap();
        assert_eq!(placement.host_port(), row.port);
        let instance = Instance::new(row.engine_id.to_string());
        assert!(self.registry.set_warm_engine_ready(&row, &instance, NOW).await.unwrap());
        WarmRow { state: WarmState::Ready, instance: Some(instance), ..row }
    }

    /// Claims an engine for a user who may have any of `warm`.
    async fn claim_of(&self, user: &str, warm: &[&WarmRow], environment: &str) -> EngineRow {
        let candidates = warm.iter().map(|row| row.engine_id).collect();
        let offer = WarmOffer { candidates, environment: environment.into() };
        let engine = NewEngine { warm: Some(offer), ..self.new_engine(user) };
        let claimed =
            self.registry.claim_new_engine(&engine, &claim(Change::Provision), &self.placements).await;
        claimed.unwrap().unwrap().row
    }

    async fn warm_ids(&self) -> BTreeSet<EngineId> {
        let listed = self.registry.warm_engines().await.unwrap();
        listed.into_iter().map(|listed| listed.row.engine_id).collect()
    }
}

#[tokio::test]
async fn a_claimed_warm_engine_keeps_its_id_key_port_and_instance_and_is_none_any_more() {
    let fixture = Fixture::new().await;
    let warm = fixture.warm().await;
    assert!(fixture.registry.is_warm_engine(warm.engine_id).await.unwrap());
    let row = fixture.claim_of("ada", &[&warm], ENVIRONMENT).await;
    assert_eq!((row.engine_id, row.key_hash, row.port), (warm.engine_id, warm.key_hash, warm.port));
    assert_eq!((&row.instance, &row.sealed_key), (&warm.instance, &warm.sealed_key));
    assert_eq!(row.status, EngineStatus::Provisioning);
    let stored = fixture.registry.engine(&row.owner).await.unwrap().unwrap();
    assert_eq!((stored.engine_id, stored.instance, stored.port), (row.engine_id, row.instance, row.port));
    assert!(fixture.warm_ids().await.is_empty());
    // Too late to end it.
    assert!(!fixture.registry.begin_warm_engine_end(&warm, NOW).await.unwrap());
}

#[tokio::test]
async fn regression_o31_provisions_at_once_never_take_the_same_warm_engine() {
    let fixture = Arc::new(Fixture::new().await);
    fixture.limit(Policy { max_engines: Some(100), ..Policy::default() }).await;
    let warm = join_all((0..4).map(|_| fixture.warm())).await;
    let warm = Arc::new(warm);
    let claims = (0..12).map(|user| {
        let (fixture, warm) = (Arc::clone(&fixture), Arc::clone(&warm));
        tokio::spawn(async move {
            let offered: Vec<_> = warm.iter().collect();
            fixture.claim_of(&format!("user-{user}"), &offered, ENVIRONMENT).await
        })
    });
    let rows: Vec<_> = join_all(claims).await.into_iter().map(Result::unwrap).collect();
    let ids: HashSet<_> = rows.iter().map(|row| row.engine_id).collect();
    let ports: HashSet<_> = rows.iter().map(|row| row.port.unwrap()).collect();
    assert_eq!((ids.len(), ports.len()), (12, 12));
    assert_eq!(rows.iter().filter(|row| row.instance.is_some()).count(), 4);
    assert!(fixture.warm_ids().await.is_empty());
}

#[tokio::test]
async fn regression_o31_a_warm_engine_that_a_new_one_would_differ_from_is_not_taken() {
    let fixture = Fixture::new().await;
    fixture.limit(Policy { max_engines: Some(100), ..Policy::default() }).await;
    let warm = fixture.warm().await;
    let taken = |row: &EngineRow| row.engine_id == warm.engine_id;
    assert!(!taken(&fixture.claim_of("of another environment", &[&warm], "another").await));
    let limited = |pids: Option<i64>| Policy {
        max_engines: Some(100),
        engine_pids: pids.map(|pids| pids.try_into().unwrap()),
        ..Policy::default()
    };
    fixture.limit(limited(Some(64))).await;
    assert!(!taken(&fixture.claim_of("with another limit", &[&warm], ENVIRONMENT).await));
    fixture.limit(limited(None)).await;
    let other_image = NewEngine {
        engine_version: "svc-engine:0.2.0".parse().unwrap(),
        warm: Some(WarmOffer { candidates: vec![warm.engine_id], environment: ENVIRONMENT.into() }),
        ..fixture.new_engine("with another image")
    };
    let claimed =
        fixture.registry.claim_new_engine(&other_image, &claim(Change::Provision), &fixture.placements).await;
    assert!(!taken(&claimed.unwrap().unwrap().row));
    let booting = fixture.registry.insert_warm_engine(fixture.new_warm_engine(), &fixture.placements).await;
    let (booting, _) = booting.unwrap().unwrap();
    let row = fixture.claim_of("too early", &[&booting], ENVIRONMENT).await;
    assert_ne!(row.engine_id, booting.engine_id);
    assert!(fixture.registry.begin_warm_engine_end(&booting, NOW).await.unwrap());
    assert!(taken(&fixture.claim_of("as it is", &[&booting, &warm], ENVIRONMENT).await));
}

#[tokio::test]
async fn a_warm_engine_has_a_port_of_its_own_and_takes_none_from_a_stopped_engine() {
    let fixture = Fixture::new().await;
    fixture.limit(Policy { max_engines: Some(100), ..Policy::default() }).await;
    let mut ports = HashSet::new();
    for user in 0..10 {
        ports.insert(fixture.warm().await.port.unwrap());
        let row = fixture.settled(&format!("user-{user}"), EngineStatus::Stopped).await;
        ports.insert(row.port.unwrap());
    }
    assert_eq!(ports.len(), 20, "the range is full");
    let refused = fixture.registry.insert_warm_engine(fixture.new_warm_engine(), &fixture.placements).await;
    assert!(refused.unwrap().is_none(), "no stopped engine gives up its port");
    // One that somebody waits for gets that of a stopped engine, and never that of a warm one.
    let row = fixture.claim_new_engine("late").await.unwrap();
    assert!(ports.contains(&row.port.unwrap()));
    let listed = fixture.registry.warm_engines().await.unwrap();
    assert!(listed.iter().all(|listed| listed.row.port != row.port));
    // What is ended gives its port back.
    let warm = &listed.first().unwrap().row;
    assert!(fixture.registry.begin_warm_engine_end(warm, NOW).await.unwrap());
    fixture.registry.remove_warm_engine(warm).await.unwrap();
    let next = fixture.registry.insert_warm_engine(fixture.new_warm_engine(), &fixture.placements).await;
    assert_eq!(next.unwrap().unwrap().0.port, warm.port);
}

#[tokio::test]
async fn a_product_that_is_out_of_use_gets_no_warm_engine_and_is_not_deleted_before_its_last_is_gone() {
    let fixture = Fixture::new().await;
    let warm = fixture.warm().await;
    fixture.limit(Policy { suspended: Some(true), ..Policy::default() }).await;
    let refused = fixture.registry.insert_warm_engine(fixture.new_warm_engine(), &fixture.placements).await;
    assert!(refused.unwrap().is_none());
    let act = async |act, event| {
        let entry = AuditEntry { engine: None, ..entry(EngineId::new(), event) };
        fixture.registry.act_on_product(fixture.product_id, act, &entry).await.unwrap().unwrap();
    };
    act(crate::domain::product_life::ProductAct::Disable, Event::Disable).await;
    let refused = fixture.registry.insert_warm_engine(fixture.new_warm_engine(), &fixture.placements).await;
    assert!(matches!(refused, Err(RegistryError::ProductDisabled { .. })));
    act(crate::domain::product_life::ProductAct::BeginDeletion, Event::DeleteProduct).await;
    let finish = async || {
        let entry = AuditEntry { engine: None, ..entry(EngineId::new(), Event::ProductDeleted) };
        let nobody = PlatformKey::generate().unwrap().hash();
        fixture.registry.finish_product_deletion(fixture.product_id, nobody, &entry).await.unwrap()
    };
    assert!(finish().await.is_none());
    assert!(fixture.registry.begin_warm_engine_end(&warm, NOW).await.unwrap());
    fixture.registry.remove_warm_engine(&warm).await.unwrap();
    assert!(finish().await.is_some());
}
