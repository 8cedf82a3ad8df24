use std::collections::BTreeSet;

use super::*;

fn all_denied() -> impl Iterator<Item = i64> {
    [EPERM_SYSCALLS, EPERM_SYSCALLS_ARCH, ENOSYS_SYSCALLS, ENOSYS_SYSCALLS_ARCH, EOPNOTSUPP_SYSCALLS]
        .into_iter()
        .flatten()
        .copied()
}

#[test]
fn the_filters_can_be_built_and_are_short_enough() {
    for network in [false, true] {
        let programs = filter_programs(network).unwrap();
        // The kernel accepts 4,096 instructions, and each instruction slows down every system call.
        assert!(programs.iter().map(Vec::len).sum::<usize>() < 1000);
    }
}

#[test]
fn no_call_is_refused_twice_over() {
    let all: Vec<i64> = all_denied().collect();
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
    let conditional: Vec<i64> = denied_syscalls()
        .unwrap()
        .into_iter()
        .filter(|(_, cases)| !cases.is_empty())
        .map(|(call, _)| call)
        .collect();
    assert!(
        conditional.iter().all(|call| !all.contains(call)),
        "a rule would make an unconditional denial conditional"
    );
}

#[test]
fn what_is_listed_is_known() {
    let highest = all_denied().max().unwrap();
    assert!(highest < i64::from(FIRST_UNKNOWN_SYSCALL));
}

#[test]
fn without_the_network_every_socket_is_refused() {
    assert_eq!(socket_rules(false).unwrap().get(&libc::SYS_socket), Some(&Vec::new()));
    assert_eq!(socket_rules(true).unwrap().get(&libc::SYS_socket).map(Vec::len), Some(2));
    assert!(socket_rules(true).unwrap().contains_key(&libc::SYS_socketpair));
}
