//! Who gets a place.

use super::*;

fn address(last: u8) -> IpAddr {
    [10, 0, 0, last].into()
}

/// Places for connections from `address` that are all at work, as many as there are.
fn fill_permits(room: &Arc<ConnectionLimiter>, address: IpAddr) -> Vec<ConnectionPermit> {
    std::iter::from_fn(|| room.try_acquire(address).filter(|place| !place.is_overflow))
        .inspect(|place| place.connection_state.request_started())
        .collect()
}

#[test]
fn one_address_may_have_nearly_all_places_and_never_the_last_ones() {
    let room = ConnectionLimiter::new(900);
    let first = fill_permits(&room, address(1));
    assert_eq!(first.len(), 800);
    let second = fill_permits(&room, address(2));
    assert_eq!(second.len(), 89, "eight ninths of what was left");
    for other in 3..=9 {
        assert!(!room.try_acquire(address(other)).unwrap().is_overflow, "{other}");
    }
    assert!(room.try_acquire(address(1)).unwrap().is_overflow);
    drop(first);
    assert!(fill_permits(&room, address(2)).len() > 600);
}

#[test]
fn even_the_least_room_has_a_place_for_one() {
    for places in 1..4 {
        let room = ConnectionLimiter::new(places);
        assert_eq!(fill_permits(&room, address(1)).len(), places);
    }
}

#[test]
fn who_stands_takes_no_place_and_cannot_keep_others_from_standing() {
    let room = ConnectionLimiter::new(1);
    let _at_work = fill_permits(&room, address(1));
    let standing: Vec<_> = std::iter::from_fn(|| room.try_acquire(address(1))).collect();
    assert!(standing.iter().all(|place| place.is_overflow));
    assert!((200..MAX_OVERFLOW).contains(&standing.len()), "{}", standing.len());
    assert!(room.try_acquire(address(2)).unwrap().is_overflow);
}

#[test]
fn the_longest_idle_of_who_has_most_makes_room() {
    let room = ConnectionLimiter::new(18);
    let small = room.try_acquire(address(2)).unwrap();
    let large: Vec<_> = (0..16).map(|_| room.try_acquire(address(1)).unwrap()).collect();
    for place in &large {
        place.connection_state.request_started();
    }
    // Idle are the small one, for longest, and of the large ones this, since later.
    let idle = &large[3];
    let since = small.connection_state.idle_since().unwrap();
    while room.epoch.elapsed() <= since + Duration::from_millis(1) {
        std::thread::yield_now();
    }
    drop(Arc::clone(&idle.connection_state).track_response(axum::response::Response::default()));
    idle.connection_state.response_flushed();
    let newcomer = room.try_acquire(address(1)).unwrap();
    assert!(!newcomer.is_overflow);
    let given_up = large.iter().chain([&small]).filter(|place| place.evicted.is_cancelled()).count();
    assert!(idle.evicted.is_cancelled() && given_up == 1, "{given_up}");
    // Its place is given back once only.
    drop(large);
    assert_eq!(room.state.lock().unwrap().permits.in_use, 2);
}

#[test]
fn an_address_at_its_limit_closes_its_own_idle_connections_while_places_are_free() {
    let room = ConnectionLimiter::new(18);
    let _at_work = fill_permits(&room, address(1));
    // One that is idle, of another address: the first one has no claim to it.
    let idle = room.try_acquire(address(2)).unwrap();
    assert!(!idle.is_overflow);
    // As if it were long ago that none was found.
    room.state.lock().unwrap().last_failed_eviction = None;
    assert!(room.try_acquire(address(1)).unwrap().is_overflow);
    assert!(!idle.evicted.is_cancelled());
    // When all places are taken, idle ones make room for whoever comes.
    let _others: Vec<_> = (3..)
        .map_while(|other| {
            let place = room.try_acquire(address(other)).unwrap();
            place.connection_state.request_started();
            (!idle.evicted.is_cancelled()).then_some(place)
        })
        .collect();
    assert!(idle.evicted.is_cancelled());
}

#[test]
fn a_network_of_ipv6_is_one_party() {
    let same = ["2001:db8::1", "2001:db8::ffff:1:2:3"].map(|text| client_key(text.parse().unwrap()));
    assert_eq!(same[0], same[1]);
    assert_ne!(same[0], client_key("2001:db8:0:1::1".parse().unwrap()));
    assert_eq!(client_key("::ffff:10.0.0.1".parse().unwrap()), address(1));
}
