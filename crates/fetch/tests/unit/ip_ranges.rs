//! Checks the table against a second formulation: the first and last addresses of the ranges, as numbers, and the
//! standard library's own predicates.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::*;

/// The first and last address of each IPv4 range that is not public.
const RANGES_V4: &[(&str, &str)] = &[
    ("0.0.0.0", "0.255.255.255"),
    ("10.0.0.0", "10.255.255.255"),
    ("100.64.0.0", "100.127.255.255"),
    ("127.0.0.0", "127.255.255.255"),
    ("168.63.129.16", "168.63.129.16"),
    ("169.254.0.0", "169.254.255.255"),
    ("172.16.0.0", "172.31.255.255"),
    ("192.0.0.0", "192.0.0.255"),
    ("192.0.2.0", "192.0.2.255"),
    ("192.31.196.0", "192.31.196.255"),
    ("192.52.193.0", "192.52.193.255"),
    ("192.88.99.0", "192.88.99.255"),
    ("192.168.0.0", "192.168.255.255"),
    ("192.175.48.0", "192.175.48.255"),
    ("198.18.0.0", "198.19.255.255"),
    ("198.51.100.0", "198.51.100.255"),
    ("203.0.113.0", "203.0.113.255"),
    ("224.0.0.0", "255.255.255.255"),
];

/// The first and last address of the IPv6 range that may be public, apart from the exceptions within it.
const PUBLIC_V6: (&str, &str) = ("2000::", "3fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff");
const SPECIAL_RANGES_V6: &[(&str, &str)] = &[
    ("2001::", "2001:1ff:ffff:ffff:ffff:ffff:ffff:ffff"),
    ("2001:db8::", "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff"),
    ("2002::", "2002:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
    ("2620:4f:8000::", "2620:4f:8000:ffff:ffff:ffff:ffff:ffff"),
    ("3fff::", "3fff:0fff:ffff:ffff:ffff:ffff:ffff:ffff"),
];

fn within<T: std::str::FromStr + PartialOrd>(address: &T, (first, last): (&str, &str)) -> bool {
    let parse = |text: &str| text.parse::<T>().ok().unwrap();
    parse(first) <= *address && *address <= parse(last)
}

fn public_v4(address: Ipv4Addr) -> bool {
    !RANGES_V4.iter().any(|range| within(&address, *range))
}

fn public_v6(address: Ipv6Addr) -> bool {
    let embedded = |prefix: &str| {
        let last = Ipv6Addr::from_bits(prefix.parse::<Ipv6Addr>().unwrap().to_bits() | 0xffff_ffff);
        within(&address, (prefix, &last.to_string()))
    };
    if embedded("64:ff9b::") || embedded("::ffff:0:0") {
        let [.., high, low] = address.segments();
        return public_v4(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)));
    }
    within(&address, PUBLIC_V6) && !SPECIAL_RANGES_V6.iter().any(|range| within(&address, *range))
}

fn is_public(address: &str) -> bool {
    special_purpose(address.parse().unwrap()).is_none()
}

/// Random addresses, and addresses near the ends of ranges.
fn any_v4() -> impl Strategy<Value = Ipv4Addr> {
    let ends = RANGES_V4.iter().flat_map(|(first, last)| [*first, *last]).collect::<Vec<_>>();
    let near_end = (proptest::sample::select(ends), -2i32..=2).prop_map(|(end, step)| {
        Ipv4Addr::from_bits(end.parse::<Ipv4Addr>().unwrap().to_bits().wrapping_add_signed(step))
    });
    prop_oneof![any::<u32>().prop_map(Ipv4Addr::from_bits), near_end]
}

fn any_v6() -> impl Strategy<Value = Ipv6Addr> {
    let special = SPECIAL_RANGES_V6.iter().chain([&PUBLIC_V6]);
    let mut ends: Vec<&str> = special.flat_map(|(first, last)| [*first, *last]).collect();
    ends.extend(["::", "64:ff9b::", "64:ff9b::ffff:ffff", "64:ff9b:1::", "::ffff:0:0", "::ffff:ffff:ffff"]);
    ends.extend(["100::", "5f00::", "fc00::", "fe80::", "fec0::", "ff00::"]);
    let near_end = (proptest::sample::select(ends), -2i128..=2).prop_map(|(end, step)| {
        Ipv6Addr::from_bits(end.parse::<Ipv6Addr>().unwrap().to_bits().wrapping_add_signed(step))
    });
    let global = any::<u128>().prop_map(|bits| Ipv6Addr::from_bits(bits >> 3 | 0x2 << 124));
    let embedding = (any_v4(), proptest::sample::select(vec![0u128, 0xffff << 32, 0x64_ff9b << 96]))
        .prop_map(|(v4, prefix)| Ipv6Addr::from_bits(prefix | u128::from(v4.to_bits())));
    prop_oneof![any::<u128>().prop_map(Ipv6Addr::from_bits), near_end, global, embedding]
}

proptest! {
    #[test]
    fn ipv4_is_judged_as_the_registry_says(address in any_v4()) {
        prop_assert_eq!(special_purpose(IpAddr::V4(address)).is_none(), public_v4(address));
    }

    #[test]
    fn ipv6_is_judged_as_the_registry_says(address in any_v6()) {
        prop_assert_eq!(special_purpose(IpAddr::V6(address)).is_none(), public_v6(address));
    }

    #[test]
    fn what_the_standard_library_calls_special_is_never_public(v4 in any_v4(), v6 in any_v6()) {
        let special_v4 = v4.is_private() || v4.is_loopback() || v4.is_link_local() || v4.is_multicast()
            || v4.is_broadcast() || v4.is_documentation() || v4.is_unspecified();
        let special_v6 = v6.is_loopback() || v6.is_unspecified() || v6.is_multicast() || v6.is_unique_local()
            || v6.is_unicast_link_local();
        prop_assert!(!special_v4 || special_purpose(IpAddr::V4(v4)).is_some());
        prop_assert!(!special_v6 || special_purpose(IpAddr::V6(v6)).is_some());
    }

    #[test]
    fn a_block_has_its_first_and_last_address_and_none_beside_them(address: u32, prefix in 1u8..=32) {
        let free = 32 - u32::from(prefix);
        let first = u32::MAX.checked_shl(free).unwrap_or(0) & address;
        let last = first | u32::MAX.checked_shr(u32::from(prefix)).unwrap_or(0);
        let at = |bits: u32| IpAddr::V4(Ipv4Addr::from_bits(bits));
        let block = CidrBlock::new(at(first), prefix).unwrap();
        prop_assert!(block.contains(at(first)) && block.contains(at(last)) && block.contains(at(address)));
        prop_assert!(first == 0 || !block.contains(at(first - 1)));
        prop_assert!(last == u32::MAX || !block.contains(at(last + 1)));
        prop_assert!(first == address || CidrBlock::new(at(address), prefix).is_none());
    }
}

#[test]
fn known_addresses() {
    for address in
        ["1.1.1.1", "8.8.8.8", "93.184.216.34", "2606:4700::1111", "2a00:1450::1", "64:ff9b::808:808"]
    {
        assert!(is_public(address), "{address}");
    }
    let special = [
        "169.254.169.254",
        "fd00:ec2::254",
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.192",
        "fd20:ce::254",
        "::1",
        "::",
        "::127.0.0.1",
        "::ffff:10.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b:1::808:808",
        "2002:7f00:1::1",
        "2001:0:1::1",
        "2001:20::1",
        "100::1",
        "5f00::1",
        "fec0::1",
        "fe80::1",
        "ff02::1",
        "255.255.255.255",
        "4000::1",
        "::ffff:0:127.0.0.1",
    ];
    for address in special {
        assert!(!is_public(address), "{address}");
    }
}
