//! Each kind of difference is found, and what is in order, under way or not to be judged is none.

use api::{ProductId, UserId};
use pretty_assertions::assert_eq;
use proptest::prelude::*;

use super::*;

const DAY_MS: i64 = 24 * 60 * 60 * 1_000;

/// An engine that runs as it should, with its data.
fn sound() -> (EngineId, Observed) {
    let engine_id = EngineId::new();
    let engine = KnownEngine {
        owner: EngineOwner { product_id: ProductId::new(), user_id: UserId::new("ada").unwrap() },
        status: EngineStatus::Running,
        is_claimed: false,
        is_attended: false,
        instance: Some(Instance::new("5")),
        generation: 5,
    };
    let observed = Observed {
        engines: [(engine_id, Registered::Engine(engine))].into(),
        instances: vec![instance(engine_id, "5", 5)],
        data: Some([(engine_id, data(engine_id))].into()),
    };
    (engine_id, observed)
}

fn instance(engine_id: EngineId, name: &str, generation: i64) -> EngineListing {
    EngineListing { engine_id, instance: Instance::new(name), generation, running: true }
}

fn data(engine_id: EngineId) -> DataListing {
    DataListing { engine_id, has_brain: true, changed_at: Timestamp::from_unix_ms(0) }
}

/// The kinds of the differences after `change` of an engine in order.
fn after(change: impl FnOnce(&mut Observed, EngineId)) -> Vec<DriftKind> {
    let (engine_id, mut observed) = sound();
    change(&mut observed, engine_id);
    observed.compare().into_iter().map(|found| found.kind).collect()
}

fn engine(observed: &mut Observed) -> &mut KnownEngine {
    match observed.engines.values_mut().next().unwrap() {
        Registered::Engine(engine) => engine,
        Registered::LeftAlone => panic!("it is left alone"),
    }
}

fn set_status(observed: &mut Observed, status: EngineStatus) {
    let engine = engine(observed);
    (engine.status, engine.instance) = (status, None);
}

#[test]
fn what_is_in_order_differs_in_nothing() {
    assert_eq!(after(|_, _| ()), []);
    for status in [EngineStatus::Sleeping, EngineStatus::Stopped, EngineStatus::Failed] {
        let resting = after(|observed, _| {
            observed.instances.clear();
            set_status(observed, status);
        });
        assert_eq!(resting, [], "{status:?}");
    }
    let remains_of_a_failed_one = after(|observed, _| {
        observed.instances[0].running = false;
        set_status(observed, EngineStatus::Failed);
    });
    assert_eq!(remains_of_a_failed_one, []);
    assert_eq!(after(|observed, _| observed.data = None), [], "unknown data is not missing");
}

#[test]
fn each_difference_is_of_its_kind() {
    use DriftKind::{
        AbandonedOperation, DataWithoutEngine, EngineWithoutData, MissingInstance, OrphanInstance,
        RegistryBehind, SupersededInstance, UnexpectedInstance,
    };
    assert_eq!(after(|observed, _| observed.instances.clear()), [MissingInstance]);
    assert_eq!(after(|observed, _| observed.instances[0].running = false), [MissingInstance]);
    assert_eq!(after(|observed, _| engine(observed).instance = None), [MissingInstance]);
    let stranger = EngineId::new();
    assert_eq!(after(|observed, _| observed.instances.push(instance(stranger, "1", 1))), [OrphanInstance]);
    assert_eq!(after(|observed, _| observed.engines.clear()), [OrphanInstance, DataWithoutEngine]);
    assert_eq!(after(|observed, id| observed.instances.push(instance(id, "4", 4))), [SupersededInstance]);
    for status in [EngineStatus::Sleeping, EngineStatus::Stopped, EngineStatus::Failed] {
        assert_eq!(after(|observed, _| set_status(observed, status)), [UnexpectedInstance]);
    }
    for status in [EngineStatus::Sleeping, EngineStatus::Stopped] {
        let remains = after(|observed, _| {
            observed.instances[0].running = false;
            set_status(observed, status);
        });
        assert_eq!(remains, [UnexpectedInstance]);
    }
    assert_eq!(after(|observed, _| engine(observed).is_claimed = true), [AbandonedOperation]);
    assert_eq!(after(|observed, _| engine(observed).generation = 4), [RegistryBehind]);
    assert_eq!(after(|observed, _| observed.data = Some(BTreeMap::new())), [EngineWithoutData]);
    let empty_folder = after(|observed, id| {
        observed.data.as_mut().unwrap().get_mut(&id).unwrap().has_brain = false;
    });
    assert_eq!(empty_folder, [EngineWithoutData]);
}

#[test]
fn a_finding_names_the_instance_and_the_state_of_the_row() {
    let (engine_id, mut observed) = sound();
    let older = instance(engine_id, "4", 4);
    observed.instances.push(older.clone());
    let found = observed.compare();
    let kind = DriftKind::SupersededInstance;
    assert_eq!(found, [Finding { kind, engine_id, instance: Some(older), generation: Some(5) }]);
}

#[test]
fn data_is_removed_only_if_its_engine_was_destroyed_and_nobody_is_at_it() {
    let lost = LostData { was_destroyed: true, has_instance: false, changed_at: Timestamp::from_unix_ms(7) };
    let now = Timestamp::from_unix_ms(DAY_MS + 7);
    assert_eq!(lost.check(now), Ok(()));
    assert_eq!(lost.check(Timestamp::from_unix_ms(DAY_MS + 6)), Err(DataKept::Recent));
    // The clock was set back.
    assert_eq!(lost.check(Timestamp::from_unix_ms(0)), Err(DataKept::Recent));
    assert_eq!(LostData { was_destroyed: false, ..lost }.check(now), Err(DataKept::Unknown));
    assert_eq!(LostData { has_instance: true, ..lost }.check(now), Err(DataKept::InUse));
}

#[test]
fn each_kind_has_a_repair_or_says_what_a_person_is_to_do() {
    let removable = Some(Ok(()));
    for kind in DriftKind::ALL {
        let has_repair = repair_of(kind, removable).is_ok();
        assert_eq!(has_repair, kind != DriftKind::EngineWithoutData, "{kind:?}");
    }
    let data = DriftKind::DataWithoutEngine;
    assert_eq!(repair_of(data, removable), Ok(DriftRepair::RemoveData));
    for kept in [DataKept::Unknown, DataKept::InUse, DataKept::Recent] {
        assert_eq!(repair_of(data, Some(Err(kept))), Err(kept.advice()));
    }
    assert!(repair_of(data, None).is_err());
}

/// Any state of an engine, whether or not it can come about.
fn any_engine() -> impl Strategy<Value = KnownEngine> {
    let status = prop_oneof![
        Just(EngineStatus::Running),
        Just(EngineStatus::Sleeping),
        Just(EngineStatus::Stopped),
        Just(EngineStatus::Failed),
        Just(EngineStatus::Provisioning),
        Just(EngineStatus::Destroying),
    ];
    let instance = proptest::option::of(0..4_i64);
    (status, any::<bool>(), instance, 0..4_i64).prop_map(|(status, is_claimed, instance, generation)| {
        KnownEngine {
            owner: EngineOwner { product_id: ProductId::new(), user_id: UserId::new("ada").unwrap() },
            status,
            is_claimed,
            is_attended: false,
            instance: instance.map(|name| Instance::new(name.to_string())),
            generation,
        }
    })
}

proptest! {
    #[test]
    fn what_an_operation_is_at_or_is_left_alone_never_differs(
        known in any_engine(),
        instances in proptest::collection::vec((0..4_i64, 0..4_i64, any::<bool>()), 0..4),
        has_data: bool,
        is_left_alone: bool,
    ) {
        let engine_id = EngineId::new();
        let listed = instances.into_iter().map(|(name, generation, running)| {
            EngineListing { running, ..instance(engine_id, &name.to_string(), generation) }
        });
        let mut observed = Observed {
            engines: [(engine_id, Registered::Engine(known.clone()))].into(),
            instances: listed.collect(),
            data: Some(has_data.then(|| (engine_id, data(engine_id))).into_iter().collect()),
        };
        // Whatever is found is about the one engine and its row, and each instance is in one difference at most.
        let found = observed.compare();
        prop_assert!(found.iter().all(|found| found.engine_id == engine_id));
        prop_assert!(found.iter().all(|found| found.generation == Some(known.generation)));
        prop_assert!(found.iter().filter(|found| found.instance.is_some()).count() <= observed.instances.len());
        prop_assert!(!known.is_claimed || found.len() == 1, "a claimed engine is abandoned, and nothing else");
        let busy = KnownEngine { is_attended: true, ..known };
        let registered = if is_left_alone { Registered::LeftAlone } else { Registered::Engine(busy) };
        observed.engines.insert(engine_id, registered);
        prop_assert_eq!(observed.compare(), []);
    }
}
