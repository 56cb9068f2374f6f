//! Which addresses a job may reach: by default those of the public internet and nothing inside.
//!
//! Whoever may enqueue a job chooses its URL. Without a guard that person could read a cloud's metadata or talk to the
//! database next door with this process's network. Names are judged by the addresses that are really connected to, so a
//! name that answers differently the second time gets no further.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Settings of the `http` kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// Lets jobs reach private, loopback and link-local addresses. Off by default.
    pub allow_private: bool,
}

/// The environment variable that says so.
pub const ALLOW_PRIVATE: &str = "FLYBALL_ALLOW_PRIVATE_URLS";

/// An address, or a name's every address, that is not on the public internet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{host} is not an address of the public internet; set {ALLOW_PRIVATE}=true to allow it")]
pub struct Refused {
    /// The host as the URL has it.
    pub host: String,
}

/// Networks of IPv4 that are not the public internet, as address and prefix length.
#[rustfmt::skip]
const INSIDE: &[([u8; 4], u32)] = &[
    ([0, 0, 0, 0], 8),          // this host
    ([10, 0, 0, 0], 8),         // private
    ([100, 64, 0, 0], 10),      // carrier-grade NAT, and Alibaba's metadata
    ([127, 0, 0, 0], 8),        // loopback
    ([168, 63, 129, 16], 32),   // Azure's host
    ([169, 254, 0, 0], 16),     // link-local, and most clouds' metadata
    ([172, 16, 0, 0], 12),      // private
    ([192, 0, 0, 0], 24),       // protocol assignments, and Oracle's metadata
    ([192, 0, 2, 0], 24),       // documentation
    ([192, 88, 99, 0], 24),     // 6to4 relays
    ([192, 168, 0, 0], 16),     // private
    ([198, 18, 0, 0], 15),      // benchmarks
    ([198, 51, 100, 0], 24),    // documentation
    ([203, 0, 113, 0], 24),     // documentation
    ([224, 0, 0, 0], 4),        // multicast
    ([240, 0, 0, 0], 4),        // reserved, and broadcast
];

/// Networks inside 2000::/3 that are not the public internet.
#[rustfmt::skip]
const INSIDE_6: &[(Ipv6Addr, u32)] = &[
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23),      // protocol assignments, Teredo among them
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32),  // documentation
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16),      // 6to4: carries any IPv4 address
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20),      // documentation
];

/// True for an address of the public internet.
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_4(address),
        IpAddr::V6(address) => match address.to_ipv4_mapped() {
            Some(mapped) => is_public_4(mapped),
            None => is_public_6(address),
        },
    }
}

fn is_public_4(address: Ipv4Addr) -> bool {
    let within = |(network, length): &([u8; 4], u32)| {
        let mask = u32::MAX << (32 - length);
        address.to_bits() & mask == Ipv4Addr::from(*network).to_bits() & mask
    };
    !INSIDE.iter().any(within)
}

/// Everything outside 2000::/3 is special: loopback, unique local, link-local, multicast, NAT64.
fn is_public_6(address: Ipv6Addr) -> bool {
    let within = |network: Ipv6Addr, length: u32| {
        let mask = u128::MAX << (128 - length);
        address.to_bits() & mask == network.to_bits() & mask
    };
    within(Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3) && !INSIDE_6.iter().any(|(network, length)| within(*network, *length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_inside_are_refused() {
        let inside = [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "100.100.100.200",
            "127.0.0.1",
            "127.9.9.9",
            "168.63.129.16",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.192",
            "192.168.1.1",
            "198.19.0.1",
            "203.0.113.9",
            "224.0.0.1",
            "239.1.1.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::127.0.0.1",
            "fe80::1",
            "fc00::1",
            "fd00:ec2::254",
            "ff02::1",
            "64:ff9b::7f00:1",
            "2001::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "100::1",
            "3fff::1",
            "5f00::1",
        ];
        for address in inside {
            assert!(!is_public(address.parse().unwrap()), "{address}");
        }
    }

    #[test]
    fn addresses_outside_are_allowed() {
        for address in ["1.1.1.1", "8.8.8.8", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "2a00:1450::1", "::ffff:8.8.8.8"] {
            assert!(is_public(address.parse().unwrap()), "{address}");
        }
    }
}
