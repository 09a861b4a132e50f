//! Addresses and networks: parsed from every spelling that proxies and logs use, cut to the prefix
//! that identifies a client, and written as text.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::fmt;

use ipnet::{IpNet, Ipv4Net};
use prefix_trie::joint::JointPrefixMap;

mod text;

pub use text::AddressText;

/// Parses `203.0.113.7`, `203.0.113.7:80`, `2001:db8::1`, `[2001:db8::1]:80` or `fe80::1%eth0`. An
/// IPv4-mapped address becomes the IPv4 address.
///
/// ```
/// use spillgate_core::ip::address;
/// assert_eq!(address(b"[::ffff:203.0.113.7]:80"), "203.0.113.7".parse().ok());
/// assert_eq!(address(b"203.0.113.256"), None);
/// ```
pub fn address(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?;
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']')?;
            (host, if port.is_empty() { None } else { Some(port.strip_prefix(':')?) })
        }
        None => match text.split_once(':') {
            Some((host, port)) if !port.contains(':') => (host, Some(port)),
            _ => (text, None),
        },
    };
    if !port.is_none_or(is_port) {
        return None;
    }
    let without_zone = host.split_once('%').filter(|(host, _)| host.contains(':'));
    let host = without_zone.map_or(host, |(host, _)| host);
    host.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}

/// Returns whether a text is a port number, or hidden as `_name`.
fn is_port(port: &str) -> bool {
    match port.strip_prefix('_') {
        Some(name) => {
            name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
        }
        None => port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok(),
    }
}

/// Some addresses with the same leading bits; all other bits are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Network(IpNet);

impl Network {
    /// Parses `10.0.0.0/8`, `2001:db8::/32`, or one address. Bits after the prefix are ignored. A
    /// network of IPv4-mapped addresses becomes the IPv4 network.
    ///
    /// ```
    /// use spillgate_core::ip::Network;
    /// assert_eq!(Network::parse("10.1.2.3/8").unwrap().to_string(), "10.0.0.0/8");
    /// assert_eq!(Network::parse("::ffff:10.0.0.0/104"), Network::parse("10.0.0.0/8"));
    /// assert_eq!(Network::parse("10.0.0.0/33"), None);
    /// ```
    pub fn parse(text: &str) -> Option<Network> {
        let network = match text.contains('/') {
            true => text.parse::<IpNet>().ok()?,
            false => IpNet::from(address(text.as_bytes())?),
        };
        let network = Network(network.trunc());
        Some(network.embedded(|address| address.to_ipv4_mapped()).unwrap_or(network))
    }

    /// Parses the value of an attribute of type ip, as [`Network::parse`] does. A network within `64:ff9b::/96` becomes
    /// the IPv4 network, because subjects behind a NAT64 gateway are IPv4 addresses.
    ///
    /// ```
    /// use spillgate_core::ip::Network;
    /// assert_eq!(Network::of_value(b"64:ff9b::10.0.0.0/104"), Network::parse("10.0.0.0/8"));
    /// ```
    #[doc(hidden)]
    pub fn of_value(value: &[u8]) -> Option<Network> {
        let network = Network::parse(std::str::from_utf8(value).ok()?)?;
        Some(network.embedded(behind_nat64).unwrap_or(network))
    }

    /// Returns the IPv4 network that is embedded in an IPv6 one of at least 96 bits. `ipv4_in` returns the IPv4 address
    /// that is embedded in an address.
    fn embedded(self, ipv4_in: fn(Ipv6Addr) -> Option<Ipv4Addr>) -> Option<Network> {
        let IpNet::V6(network) = self.0 else { return None };
        let prefix = network.prefix_len().checked_sub(EMBEDDING_PREFIX)?;
        let network = Ipv4Net::new(ipv4_in(network.addr())?, prefix).ok()?;
        Some(Network(network.trunc().into()))
    }

    /// Returns whether this network has all addresses of the other.
    pub fn contains(self, other: Network) -> bool {
        self.0.contains(&other.0)
    }

    /// Returns whether this network has the address.
    #[doc(hidden)]
    pub fn has(self, address: IpAddr) -> bool {
        self.0.contains(&address)
    }

    /// Returns the number of leading bits that its addresses share.
    #[doc(hidden)]
    pub fn prefix(self) -> u8 {
        self.0.prefix_len()
    }

    /// Returns its text without allocating: `10.0.0.0/8`, or the address if it has only one.
    pub fn text(self) -> AddressText {
        let prefix = Some(self.prefix()).filter(|prefix| *prefix < self.0.max_prefix_len());
        AddressText::new(self.0.addr(), prefix)
    }
}

impl From<IpAddr> for Network {
    /// Makes the network of one address.
    fn from(address: IpAddr) -> Network {
        Network(address.to_canonical().into())
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text().as_str())
    }
}

/// The leading bits of an address that identify a client: for IPv6 usually the /64 that one home or
/// machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubjectPrefix {
    v4: u8,
    v6: u8,
}

impl SubjectPrefix {
    /// Makes a prefix of `v4` bits of IPv4 and `v6` bits of IPv6 addresses, or `None` if an address
    /// has fewer.
    pub fn new(v4: u8, v6: u8) -> Option<SubjectPrefix> {
        (v4 <= V4_BITS && v6 <= V6_BITS).then_some(SubjectPrefix { v4, v6 })
    }

    /// Returns the subject of an address: the address, or the network that counts as one client. A NAT64 gateway gives
    /// all IPv4 clients one prefix, so the IPv4 address within counts.
    pub fn subject(self, address: IpAddr) -> Network {
        let address = match address.to_canonical() {
            IpAddr::V6(v6) => behind_nat64(v6).map_or(IpAddr::V6(v6), IpAddr::V4),
            address => address,
        };
        self.cut(address)
    }

    /// Returns the network of an address that has the bits of this prefix.
    fn cut(self, address: IpAddr) -> Network {
        let prefix = match address {
            IpAddr::V4(_) => self.v4,
            IpAddr::V6(_) => self.v6,
        };
        Network(IpNet::new_assert(address, prefix).trunc())
    }

    /// Returns whether a value is surely the text of its subject: an IPv4 address that is not cut,
    /// since it has only one spelling.
    pub fn is_own_text(self, value: &[u8]) -> bool {
        self.v4 == V4_BITS
            && std::str::from_utf8(value).is_ok_and(|text| text.parse::<Ipv4Addr>().is_ok())
    }

    /// Returns the subject that has a network, which may be a part of it. Returns `None` if the
    /// network has several subjects.
    pub fn subject_with(self, network: Network) -> Option<Network> {
        // Not `subject`: the first address of `64:ff9b::/64` is also that of the NAT64 prefix, which is a part of it.
        let subject = self.cut(network.0.addr());
        subject.contains(network).then_some(subject)
    }
}

impl Default for SubjectPrefix {
    /// Every IPv4 address is a client, and every /64 of IPv6.
    fn default() -> SubjectPrefix {
        SubjectPrefix { v4: V4_BITS, v6: 64 }
    }
}

/// A map of networks, in which the networks around another are found in a time that does not depend
/// on their number. An empty one takes the room of a pointer.
#[derive(Clone, Debug)]
pub struct Networks<T>(Option<Box<JointPrefixMap<IpNet, T>>>);

impl<T> Networks<T> {
    /// Returns the number of networks.
    pub fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |map| map.len())
    }

    /// Returns whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Adds a network, and returns the value that it had.
    pub fn insert(&mut self, network: Network, value: T) -> Option<T> {
        self.map().insert(network.0, value)
    }

    /// Returns the smallest network around this one, with its value.
    pub fn around(&self, network: Network) -> Option<(Network, &T)> {
        let (found, value) = self.0.as_ref()?.get_lpm(&network.0)?;
        Some((Network(found), value))
    }

    /// Returns the values of all networks around this one.
    pub fn all_around(&self, network: Network) -> impl Iterator<Item = &T> {
        self.0.iter().flat_map(move |map| map.cover_values(&network.0))
    }

    /// Returns all networks with their values.
    pub fn iter(&self) -> impl Iterator<Item = (Network, &T)> {
        let all = self.0.iter().flat_map(|map| map.iter());
        all.map(|(network, value)| (Network(network), value))
    }

    fn map(&mut self) -> &mut JointPrefixMap<IpNet, T> {
        self.0.get_or_insert_with(|| Box::new(JointPrefixMap::new()))
    }
}

impl<T: Default> Networks<T> {
    /// Returns the value of a network, which is added if it is new.
    pub fn entry(&mut self, network: Network) -> &mut T {
        self.map().entry(network.0).or_default()
    }
}

impl<T> Default for Networks<T> {
    fn default() -> Networks<T> {
        Networks(None)
    }
}

/// Returns the IPv4 address that an address in [`NAT64`] stands for.
fn behind_nat64(address: Ipv6Addr) -> Option<Ipv4Addr> {
    (address.segments()[..6] == NAT64).then(|| Ipv4Addr::from_bits(address.to_bits() as u32))
}

const V4_BITS: u8 = 32;
const V6_BITS: u8 = 128;
/// The first 96 bits of `64:ff9b::/96`, whose addresses stand for IPv4 addresses behind a NAT64 gateway (RFC 6052). Only
/// subjects and values of attributes are mapped to IPv4. The networks of trusted proxies are not: one in this prefix
/// would make proxies of IPv4 clients.
const NAT64: [u16; 6] = [0x64, 0xff9b, 0, 0, 0, 0];
/// The bits before an embedded IPv4 address, in `::ffff:0:0/96` and in `64:ff9b::/96`.
const EMBEDDING_PREFIX: u8 = 96;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Network {
        Network::parse(text).unwrap()
    }

    #[test]
    fn addresses_have_one_spelling() {
        let spelled = |prefix: SubjectPrefix, text: &str| {
            prefix.subject(address(text.as_bytes()).unwrap()).to_string()
        };
        let usual = SubjectPrefix::default();
        let cut = |v4, v6| SubjectPrefix::new(v4, v6).unwrap();
        assert_eq!(spelled(usual, "203.0.113.7"), "203.0.113.7");
        assert_eq!(spelled(usual, "203.0.113.7:4711"), "203.0.113.7");
        assert_eq!(spelled(usual, "::ffff:203.0.113.7"), "203.0.113.7");
        assert_eq!(spelled(usual, "64:ff9b::203.0.113.7"), "203.0.113.7");
        assert_eq!(spelled(usual, "[64:ff9b::cb00:7108]:443"), "203.0.113.8");
        assert_eq!(spelled(usual, "64:ff9b:1::203.0.113.7"), "64:ff9b:1::/64");
        assert_eq!(spelled(usual, "2001:DB8:1:2:3:4:5:6"), "2001:db8:1:2::/64");
        assert_eq!(spelled(usual, "fe80::1%eth0"), "fe80::/64");
        assert_eq!(spelled(cut(32, 48), "2001:db8:1:2::1"), "2001:db8:1::/48");
        assert_eq!(spelled(cut(32, 128), "[2001:db8::1]:80"), "2001:db8::1");
        assert_eq!(spelled(cut(32, 0), "2001:db8::1"), "::/0");
        assert_eq!(spelled(cut(24, 64), "203.0.113.7"), "203.0.113.0/24");
        assert_eq!(spelled(cut(0, 64), "203.0.113.7"), "0.0.0.0/0");
        assert_eq!((SubjectPrefix::new(33, 64), SubjectPrefix::new(32, 129)), (None, None));
    }

    #[test]
    fn a_network_of_ipv6_never_has_an_ipv4_address() {
        assert!(!parse("::/0").contains(parse("203.0.113.7")));
        assert!(parse("0.0.0.0/0").contains(parse("::ffff:203.0.113.7")));
        for wrong in ["", "10.0.0.0/33", "10.0.0", "localhost", "10.0.0.1/8/8", "::/129"] {
            assert_eq!(Network::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_network_behind_nat64_is_ipv4_as_a_value_and_ipv6_as_a_proxy() {
        let value = |text: &str| Network::of_value(text.as_bytes()).unwrap().to_string();
        assert_eq!(value("64:ff9b::203.0.113.9/120"), "203.0.113.0/24");
        assert_eq!(value("64:ff9b::203.0.113.7"), "203.0.113.7");
        assert_eq!(value("64:ff9b::/96"), "0.0.0.0/0");
        assert_eq!(value("64:ff9b::/95"), "64:ff9b::/95");
        assert_eq!(value("64:ff9b:1::203.0.113.0/120"), "64:ff9b:1::cb00:7100/120");
        assert!(!parse("64:ff9b::/96").has("203.0.113.7".parse().unwrap()));
        // A subject is its own, also beside the NAT64 prefix.
        let usual = SubjectPrefix::default();
        let beside = usual.subject("64:ff9b::1:0:0:1".parse().unwrap());
        assert_eq!(beside.to_string(), "64:ff9b::/64");
        assert_eq!(usual.subject_with(beside), Some(beside));
    }

    fn network() -> impl Strategy<Value = Network> {
        // Few bits differ, so that networks often contain each other.
        let v4 = (0u32..16, 0u8..=32).prop_map(|(bits, prefix)| {
            IpNet::new_assert(IpAddr::V4((bits << 28 | bits).into()), prefix)
        });
        let v6 = (0u128..16, 0u8..=128).prop_map(|(bits, prefix)| {
            IpNet::new_assert(IpAddr::V6(Ipv6Addr::from_bits(bits << 124 | bits << 62)), prefix)
        });
        prop_oneof![v4, v6].prop_map(|network| Network(network.trunc()))
    }

    proptest! {
        #[test]
        fn the_smallest_network_around_another_is_the_one_that_a_search_finds(
            known in prop::collection::vec(network(), 0..20), asked in network(),
        ) {
            let mut networks = Networks::default();
            for network in &known {
                networks.insert(*network, *network);
            }
            let around = || known.iter().copied().filter(|known| known.contains(asked));
            let smallest = around().max_by_key(|known| known.prefix());
            prop_assert_eq!(networks.around(asked).map(|(found, _)| found), smallest);
            let mut all: Vec<Network> = around().collect();
            all.sort_unstable();
            all.dedup();
            let mut found: Vec<Network> = networks.all_around(asked).copied().collect();
            found.sort_unstable();
            prop_assert_eq!(found, all);
        }

        #[test]
        fn a_network_is_read_as_it_is_written(network in network()) {
            prop_assert_eq!(Network::parse(&network.to_string()), Some(network));
        }
    }
}
