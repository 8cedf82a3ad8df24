//! The IP ranges that are not on the public internet, with their purposes.
//!
//! Sources: IANA's IPv4 and IPv6 Special-Purpose Address Registries, its registries of multicast addresses and of
//! global unicast IPv6 allocations (all of them in `2000::/3`), and the cloud vendors' documentation of the
//! addresses of their metadata services. Every range of the special-purpose registries counts as not public, even
//! the few that are globally reachable: no page is served there.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A block of addresses: those that share its first `prefix` bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CidrBlock {
    network: IpAddr,
    prefix: u8,
}

impl CidrBlock {
    /// Creates a block; `None` if the prefix is too long, or if the address has bits beyond it.
    pub(super) fn new(network: IpAddr, prefix: u8) -> Option<Self> {
        let block = Self { network, prefix };
        (prefix <= width(network) && bits(network) & !block.mask() == 0).then_some(block)
    }

    /// Returns the block that contains only this address.
    pub(super) const fn single(address: IpAddr) -> Self {
        Self { network: address, prefix: width(address) }
    }

    /// Whether an address is in the block. An IPv4 address is never in an IPv6 block, nor the other way round.
    pub(super) fn contains(self, address: IpAddr) -> bool {
        self.network.is_ipv4() == address.is_ipv4() && bits(address) & self.mask() == bits(self.network)
    }

    /// Returns the mask of the bits that all addresses of the block share.
    fn mask(self) -> u128 {
        let free = u32::from(width(self.network).saturating_sub(self.prefix));
        u128::MAX.checked_shl(free).unwrap_or(0)
    }
}

/// Writes the block as it is configured: a single address without its prefix.
impl fmt::Display for CidrBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { network, prefix } = self;
        if *prefix == width(*network) { write!(f, "{network}") } else { write!(f, "{network}/{prefix}") }
    }
}

const fn width(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

const fn v4(a: u8, b: u8, c: u8, d: u8, prefix: u8) -> CidrBlock {
    CidrBlock { network: IpAddr::V4(Ipv4Addr::new(a, b, c, d)), prefix }
}

const fn v6(start: [u16; 4], prefix: u8) -> CidrBlock {
    let [a, b, c, d] = start;
    CidrBlock { network: IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0)), prefix }
}

/// The IPv4 ranges that are not public, with their purposes. The first match gives the reason.
const SPECIAL_V4: &[(CidrBlock, &str)] = &[
    // Metadata services: of most clouds, of Alibaba, of Oracle, of Azure. Only Azure's is otherwise a public
    // address.
    (v4(169, 254, 169, 254, 32), "a cloud's metadata service"),
    (v4(100, 100, 100, 200, 32), "a cloud's metadata service"),
    (v4(192, 0, 0, 192, 32), "a cloud's metadata service"),
    (v4(168, 63, 129, 16, 32), "a cloud's metadata service"),
    (v4(0, 0, 0, 0, 8), "this host"),                       // RFC 791
    (v4(10, 0, 0, 0, 8), "a private network"),              // RFC 1918
    (v4(100, 64, 0, 0, 10), "a provider's shared network"), // RFC 6598
    (v4(127, 0, 0, 0, 8), "loopback"),                      // RFC 1122
    (v4(169, 254, 0, 0, 16), "link-local"),                 // RFC 3927
    (v4(172, 16, 0, 0, 12), "a private network"),           // RFC 1918
    (v4(192, 0, 0, 0, 24), "protocol assignments"),         // RFC 6890
    (v4(192, 0, 2, 0, 24), "documentation"),                // RFC 5737
    (v4(192, 31, 196, 0, 24), "AS112"),                     // RFC 7535
    (v4(192, 52, 193, 0, 24), "multicast relays"),          // RFC 7450
    (v4(192, 88, 99, 0, 24), "6to4 relays"),                // RFC 7526
    (v4(192, 168, 0, 0, 16), "a private network"),          // RFC 1918
    (v4(192, 175, 48, 0, 24), "AS112"),                     // RFC 7534
    (v4(198, 18, 0, 0, 15), "benchmarks"),                  // RFC 2544
    (v4(198, 51, 100, 0, 24), "documentation"),             // RFC 5737
    (v4(203, 0, 113, 0, 24), "documentation"),              // RFC 5737
    (v4(224, 0, 0, 0, 4), "multicast"),                     // RFC 5771
    (v4(255, 255, 255, 255, 32), "broadcast"),              // RFC 919
    (v4(240, 0, 0, 0, 4), "reserved"),                      // RFC 1112
];

/// The ranges of IPv6 global unicast addresses that are not public.
const SPECIAL_GLOBAL_V6: &[(CidrBlock, &str)] = &[
    // Teredo, benchmarks, multicast relays, AS112, ORCHID and drones' tags among them: RFC 2928.
    (v6([0x2001, 0, 0, 0], 23), "protocol assignments (Teredo, ORCHID and others)"),
    (v6([0x2001, 0xdb8, 0, 0], 32), "documentation"), // RFC 3849
    (v6([0x2002, 0, 0, 0], 16), "6to4"),              // RFC 3056
    (v6([0x2620, 0x4f, 0x8000, 0], 48), "AS112"),     // RFC 7534
    (v6([0x3fff, 0, 0, 0], 20), "documentation"),     // RFC 9637
];

/// The range from which global unicast addresses are allocated.
const GLOBAL_V6: CidrBlock = v6([0x2000, 0, 0, 0], 3);

/// Names of ranges outside it; a range without a name is reserved.
const NOT_GLOBAL_V6: &[(CidrBlock, &str)] = &[
    (CidrBlock::single(IpAddr::V6(Ipv6Addr::UNSPECIFIED)), "this host"),
    (CidrBlock::single(IpAddr::V6(Ipv6Addr::LOCALHOST)), "loopback"),
    (v6([0, 0, 0, 0], 96), "IPv4-compatible"), // RFC 4291
    (v6([0x64, 0xff9b, 1, 0], 48), "a network's own NAT64"), // RFC 8215
    (v6([0x100, 0, 0, 0], 64), "discarded"),   // RFC 6666
    (v6([0x5f00, 0, 0, 0], 16), "segment routing"), // RFC 9602
    (v6([0xfc00, 0, 0, 0], 7), "a private network"), // RFC 4193
    (v6([0xfe80, 0, 0, 0], 10), "link-local"), // RFC 4291
    (v6([0xfec0, 0, 0, 0], 10), "site-local"), // RFC 3879
    (v6([0xff00, 0, 0, 0], 8), "multicast"),   // RFC 4291
];

/// The well-known prefix of NAT64 (RFC 6052): a translator connects to the IPv4 address in the last 32 bits.
const NAT64: CidrBlock = v6([0x64, 0xff9b, 0, 0], 96);

/// Returns the purpose of an address that is not on the public internet. An IPv6 address that stands for an IPv4
/// address is judged as the latter.
pub fn special_purpose(address: IpAddr) -> Option<&'static str> {
    let address = canonical_address(address);
    let named = |blocks: &[(CidrBlock, &'static str)]| {
        blocks.iter().find(|(block, _)| block.contains(address)).map(|(_, what)| *what)
    };
    match address {
        IpAddr::V4(_) => named(SPECIAL_V4),
        IpAddr::V6(_) if GLOBAL_V6.contains(address) => named(SPECIAL_GLOBAL_V6),
        IpAddr::V6(_) => named(NOT_GLOBAL_V6).or(Some("reserved")),
    }
}

/// Returns the IPv4 address that an IPv6 address stands for, mapped or behind NAT64; else the address itself.
pub(super) fn canonical_address(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else { return address };
    if !NAT64.contains(address) {
        return address.to_canonical();
    }
    let [.., a, b, c, d] = v6.octets();
    IpAddr::V4(Ipv4Addr::new(a, b, c, d))
}

#[cfg(test)]
#[path = "../tests/unit/ip_ranges.rs"]
mod tests;
