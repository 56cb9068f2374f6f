//! Restricts the addresses that jobs may reach: by default the public internet and no internal
//! address.
//!
//! The user who enqueues a job chooses its URL. Without a guard that user could read a cloud's
//! metadata or connect to the database beside this process. Names are judged by the
//! addresses that are really connected to, so a name that resolves differently the second time
//! gains nothing.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The environment variable that lets jobs reach any internal address.
pub const ALLOW_PRIVATE: &str = "FLYBALL_ALLOW_PRIVATE_URLS";

/// The environment variable that lets jobs reach some internal names and networks.
pub const ALLOW: &str = "FLYBALL_ALLOW_URLS";

/// The addresses that jobs may reach besides the public internet; by default none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Guard {
    is_open: bool,
    names: BTreeSet<String>,
    networks: Vec<(IpAddr, u8)>,
}

impl Guard {
    /// Returns a guard that allows every address.
    pub fn open() -> Self {
        Self {
            is_open: true,
            ..Self::default()
        }
    }

    /// Returns a guard that also allows these entries: names regardless of their addresses,
    /// addresses, and networks such as `10.1.0.0/16`.
    ///
    /// # Errors
    ///
    /// Fails with the first entry that is none of them.
    pub fn allowing<S: AsRef<str>>(
        entries: impl IntoIterator<Item = S>,
    ) -> Result<Self, InvalidAllowEntry> {
        let mut guard = Self::default();
        for entry in entries {
            let entry = entry.as_ref().trim();
            match network(entry) {
                Some(network) => guard.networks.push(network),
                None if is_name(entry) => _ = guard.names.insert(plain(entry)),
                None => return Err(InvalidAllowEntry(entry.chars().take(64).collect())),
            }
        }
        Ok(guard)
    }

    /// Returns true if every address of this host is allowed.
    pub fn allows_name(&self, host: &str) -> bool {
        self.is_open || self.names.contains(&plain(host))
    }

    /// Returns true if the address is allowed for any host.
    pub fn allows_address(&self, address: IpAddr) -> bool {
        self.is_open
            || is_public(address)
            || self
                .networks
                .iter()
                .any(|(network, length)| in_network(address, *network, *length))
    }
}

/// An entry of the list that is neither a name nor an address nor a network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a host name, an address or a network such as 10.1.0.0/16")]
pub struct InvalidAllowEntry(String);

/// A refused host: an internal address, or a name with internal addresses only.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{host} is not an address of the public internet; set {ALLOW_PRIVATE}=true to allow it, or name it in {ALLOW}"
)]
pub struct BlockedAddress {
    /// The host as in the URL.
    pub host: String,
}

/// Parses a network as an address and a prefix length; an address is a network of one.
fn network(entry: &str) -> Option<(IpAddr, u8)> {
    let (address, length) = entry.split_once('/').unwrap_or((entry, ""));
    let address: IpAddr = address.parse().ok()?;
    let longest = if address.is_ipv4() { 32 } else { 128 };
    let length = match length {
        "" if entry.contains('/') => return None,
        "" => longest,
        digits => digits.parse().ok().filter(|length| *length <= longest)?,
    };
    Some((address, length))
}

fn in_network(address: IpAddr, network: IpAddr, length: u8) -> bool {
    match (address, network) {
        (IpAddr::V4(address), IpAddr::V4(network)) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
            address.to_bits() & mask == network.to_bits() & mask
        }
        (IpAddr::V6(address), IpAddr::V6(network)) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
            address.to_bits() & mask == network.to_bits() & mask
        }
        // An IPv4-mapped IPv6 address is the same machine.
        (IpAddr::V6(address), IpAddr::V4(_)) => address
            .to_ipv4_mapped()
            .is_some_and(|mapped| in_network(IpAddr::V4(mapped), network, length)),
        (IpAddr::V4(_), IpAddr::V6(_)) => false,
    }
}

fn is_name(entry: &str) -> bool {
    let is_label = |label: &str| {
        !label.is_empty()
            && label
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
    };
    entry
        .strip_suffix('.')
        .unwrap_or(entry)
        .split('.')
        .all(is_label)
}

fn plain(host: &str) -> String {
    host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase()
}

/// IPv4 networks that are not the public internet, as address and prefix length.
#[rustfmt::skip]
const INSIDE: &[([u8; 4], u8)] = &[
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
const INSIDE_6: &[(Ipv6Addr, u8)] = &[
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23),      // protocol assignments, Teredo among them
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32),  // documentation
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16),      // 6to4: carries any IPv4 address
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20),      // documentation
];

/// Returns true for an address of the public internet.
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
    !INSIDE.iter().any(|(network, length)| {
        in_network(address.into(), Ipv4Addr::from(*network).into(), *length)
    })
}

/// Returns true inside 2000::/3. Everything outside is special: loopback, unique local, link-local,
/// multicast, NAT64.
fn is_public_6(address: Ipv6Addr) -> bool {
    let is_in = |network: Ipv6Addr, length: u8| in_network(address.into(), network.into(), length);
    is_in(Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3)
        && !INSIDE_6
            .iter()
            .any(|(network, length)| is_in(*network, *length))
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
        for address in [
            "1.1.1.1",
            "8.8.8.8",
            "172.32.0.1",
            "100.128.0.1",
            "2606:4700::1111",
            "2a00:1450::1",
            "::ffff:8.8.8.8",
        ] {
            assert!(is_public(address.parse().unwrap()), "{address}");
        }
    }

    #[test]
    fn names_addresses_and_networks_are_let_through_and_nothing_beside_them() {
        let guard = Guard::allowing([
            "Intranet.example.",
            " 10.1.0.0/16",
            "fd00::/8",
            "192.168.7.7",
            "::1",
        ])
        .unwrap();
        let allows = |address: &str| guard.allows_address(address.parse().unwrap());

        assert!(
            guard.allows_name("intranet.EXAMPLE") && !guard.allows_name("sub.intranet.example")
        );
        for address in [
            "10.1.2.3",
            "10.1.255.255",
            "fd12::9",
            "192.168.7.7",
            "::1",
            "::ffff:10.1.0.1",
            "1.1.1.1",
        ] {
            assert!(allows(address), "{address}");
        }
        for address in [
            "10.2.0.1",
            "10.0.255.255",
            "fc00::1",
            "192.168.7.8",
            "127.0.0.1",
            "169.254.169.254",
            "::2",
        ] {
            assert!(!allows(address), "{address}");
        }
        assert!(!Guard::default().allows_address("10.1.2.3".parse().unwrap()));
        assert!(
            Guard::open().allows_address("127.0.0.1".parse().unwrap())
                && Guard::open().allows_name("any")
        );
    }

    #[test]
    fn a_network_of_length_zero_is_everything_of_its_family() {
        let guard = Guard::allowing(["0.0.0.0/0"]).unwrap();
        assert!(
            guard.allows_address("127.0.0.1".parse().unwrap())
                && !guard.allows_address("::1".parse().unwrap())
        );
    }

    #[test]
    fn what_is_neither_name_nor_address_nor_network_is_refused() {
        for entry in [
            "",
            "http://intranet",
            "10.0.0.0/33",
            "10.0.0.0/",
            "10.0.0.0/x",
            "a..b",
            "*.example",
            "fd00::/129",
            "a/8",
            "[::1]",
        ] {
            let error = Guard::allowing(["ok.example", entry])
                .unwrap_err()
                .to_string();
            assert!(
                error.contains("not a host name, an address or a network"),
                "{entry}: {error}"
            );
        }
    }
}
