//! Tests of the distribution of permits and of eviction.

use super::*;

fn address(last: u8) -> IpAddr {
    [10, 0, 0, last].into()
}

/// Acquires as many regular permits as possible for `address`, all of connections that are in a request.
fn fill_permits(limiter: &Arc<ConnectionLimiter>, address: IpAddr) -> Vec<ConnectionPermit> {
    std::iter::from_fn(|| limiter.try_acquire(address).filter(|permit| !permit.is_overflow))
        .inspect(|permit| permit.connection_state.request_started())
        .collect()
}

#[test]
fn one_address_may_have_nearly_all_places_and_never_the_last_ones() {
    let limiter = ConnectionLimiter::new(900);
    let first = fill_permits(&limiter, address(1));
    assert_eq!(first.len(), 800);
    let second = fill_permits(&limiter, address(2));
    assert_eq!(second.len(), 89, "eight ninths of what was left");
    for other in 3..=9 {
        assert!(!limiter.try_acquire(address(other)).unwrap().is_overflow, "{other}");
    }
    assert!(limiter.try_acquire(address(1)).unwrap().is_overflow);
    drop(first);
    assert!(fill_permits(&limiter, address(2)).len() > 600);
}

#[test]
fn even_the_least_room_has_a_place_for_one() {
    for max_connections in 1..4 {
        let limiter = ConnectionLimiter::new(max_connections);
        assert_eq!(fill_permits(&limiter, address(1)).len(), max_connections);
    }
}

#[test]
fn who_stands_takes_no_place_and_cannot_keep_others_from_standing() {
    let limiter = ConnectionLimiter::new(1);
    let _busy = fill_permits(&limiter, address(1));
    let overflow: Vec<_> = std::iter::from_fn(|| limiter.try_acquire(address(1))).collect();
    assert!(overflow.iter().all(|permit| permit.is_overflow));
    assert!((200..MAX_OVERFLOW).contains(&overflow.len()), "{}", overflow.len());
    assert!(limiter.try_acquire(address(2)).unwrap().is_overflow);
}

#[test]
fn the_longest_idle_of_who_has_most_makes_room() {
    let limiter = ConnectionLimiter::new(18);
    let small = limiter.try_acquire(address(2)).unwrap();
    let large: Vec<_> = (0..16).map(|_| limiter.try_acquire(address(1)).unwrap()).collect();
    for permit in &large {
        permit.connection_state.request_started();
    }
    // Two connections are idle: the one of the small client, for longest, and this one of the large client.
    let idle = &large[3];
    let since = small.connection_state.idle_since().unwrap();
    while limiter.epoch.elapsed() <= since + Duration::from_millis(1) {
        std::thread::yield_now();
    }
    drop(Arc::clone(&idle.connection_state).track_response(axum::response::Response::default()));
    idle.connection_state.response_flushed();
    let newcomer = limiter.try_acquire(address(1)).unwrap();
    assert!(!newcomer.is_overflow);
    let evicted = large.iter().chain([&small]).filter(|permit| permit.evicted.is_cancelled()).count();
    assert!(idle.evicted.is_cancelled() && evicted == 1, "{evicted}");
    // Its permit is released only once.
    drop(large);
    assert_eq!(limiter.state.lock().permits.in_use, 2);
}

#[test]
fn an_address_at_its_limit_closes_its_own_idle_connections_while_places_are_free() {
    let limiter = ConnectionLimiter::new(18);
    let _busy = fill_permits(&limiter, address(1));
    // An idle connection of another address, which the first address must not evict.
    let idle = limiter.try_acquire(address(2)).unwrap();
    assert!(!idle.is_overflow);
    // As if the last unsuccessful search was long ago.
    limiter.state.lock().last_failed_eviction = None;
    assert!(limiter.try_acquire(address(1)).unwrap().is_overflow);
    assert!(!idle.evicted.is_cancelled());
    // When all permits are in use, idle connections are evicted for any newcomer.
    let _others: Vec<_> = (3..)
        .map_while(|other| {
            let permit = limiter.try_acquire(address(other)).unwrap();
            permit.connection_state.request_started();
            (!idle.evicted.is_cancelled()).then_some(permit)
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
