//! Determines the client of a request by address: the rightmost hop that is not a trusted proxy,
//! shortened to a prefix.
//!
//! Everything left of that hop can be forged by the client, and is ignored.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::HeaderMap;
use http::header::{FORWARDED, HeaderName};
use ipnet::{IpNet, Ipv4Net};

mod hops;
mod text;

use hops::{forwarded, x_forwarded_for};
pub(crate) use text::AddressText;

/// Determines the client's address, as the value of an attribute.
///
/// Without trusted proxies it is the peer's. With them, the hops that they report are followed from
/// the right, over all lines of `X-Forwarded-For`, up to the first that is not trusted. A hop
/// without an address (`unknown`, `_hidden`, junk) ends the search at the proxy that reported it.
///
/// An IPv6 client is identified by its /64, which one home or machine usually has. An IPv4-mapped
/// address counts as the IPv4 address.
///
/// ```
/// use http::HeaderMap;
/// use spillgate::http::ByIp;
///
/// let by_ip = ByIp::trusting(["10.0.0.0/8"]);
/// let mut headers = HeaderMap::new();
/// headers.append("x-forwarded-for", "6.6.6.6, 2001:db8::7".parse()?);
/// headers.append("x-forwarded-for", "10.0.0.9".parse()?);
///
/// let client = by_ip.client("10.0.0.1".parse()?, &headers);
/// assert_eq!(by_ip.attribute(client), "2001:db8::/64");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ByIp {
    trusted: Vec<IpNet>,
    field: HeaderName,
    ipv4_prefix: u8,
    ipv6_prefix: u8,
}

impl ByIp {
    /// Uses the address of the peer. No proxy is trusted.
    pub fn direct() -> ByIp {
        ByIp { trusted: Vec::new(), field: X_FORWARDED_FOR, ipv4_prefix: 32, ipv6_prefix: 64 }
    }

    /// Trusts the `X-Forwarded-For` of proxies in these networks: `10.0.0.0/8`, `2001:db8::/32`, or
    /// one address.
    ///
    /// # Panics
    /// If one of them is not a network. [`ByIp::try_trusting`] returns an error instead.
    #[track_caller]
    pub fn trusting<C: AsRef<str>>(networks: impl IntoIterator<Item = C>) -> ByIp {
        match ByIp::try_trusting(networks) {
            Ok(by_ip) => by_ip,
            Err(error) => panic!("{error}"),
        }
    }

    /// Trusts proxies like [`ByIp::trusting`], or returns an error if one of the texts is not a
    /// network.
    ///
    /// ```
    /// # use spillgate::http::ByIp;
    /// let error = ByIp::try_trusting(["10.0.0.0/33"]).unwrap_err().to_string();
    /// assert!(error.starts_with("\"10.0.0.0/33\" is no network; write"), "{error}");
    /// ```
    pub fn try_trusting<C: AsRef<str>>(
        networks: impl IntoIterator<Item = C>,
    ) -> Result<ByIp, CidrError> {
        let trusted: Result<_, _> =
            networks.into_iter().map(|text| network(text.as_ref())).collect();
        Ok(ByIp { trusted: trusted?, ..ByIp::direct() })
    }

    /// Reads `Forwarded` (RFC 7239) instead of `X-Forwarded-For`. Reading both would let a client
    /// choose one.
    pub fn by_forwarded(self) -> ByIp {
        ByIp { field: FORWARDED, ..self }
    }

    /// Sets the number of leading bits that identify an IPv6 client, 64 by default. Use 56 or 48 if
    /// clients get more than a /64, and 128 for single addresses.
    ///
    /// # Panics
    /// If `bits` is above 128.
    #[track_caller]
    pub fn ipv6_prefix(self, bits: u8) -> ByIp {
        assert!(bits <= 128, "an IPv6 address has 128 bits, got {bits}");
        ByIp { ipv6_prefix: bits, ..self }
    }

    /// Sets the number of leading bits that identify an IPv4 client, 32 by default.
    ///
    /// # Panics
    /// If `bits` is above 32.
    #[track_caller]
    pub fn ipv4_prefix(self, bits: u8) -> ByIp {
        assert!(bits <= 32, "an IPv4 address has 32 bits, got {bits}");
        ByIp { ipv4_prefix: bits, ..self }
    }

    /// Returns whether an address is a trusted proxy.
    pub fn trusts(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.trusted.iter().any(|network| network.contains(&address))
    }

    /// Returns whether no proxy is trusted.
    #[cfg(feature = "tower")]
    pub(crate) fn is_direct(&self) -> bool {
        self.trusted.is_empty()
    }

    /// Returns whether every address is a trusted proxy. Then a client can forge its address.
    #[cfg(feature = "tower")]
    pub(crate) fn trusts_everyone(&self) -> bool {
        self.trusted.iter().any(|network| network.prefix_len() == 0)
    }

    /// Returns the name of the header field that is read.
    #[cfg(feature = "tower")]
    pub(crate) fn field(&self) -> &HeaderName {
        &self.field
    }

    /// Returns the client's full address. An IPv4-mapped address is returned as IPv4.
    pub fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let peer = peer.to_canonical();
        if !self.trusts(peer) {
            return peer;
        }
        if self.field == FORWARDED {
            self.follow(peer, forwarded(headers))
        } else {
            self.follow(peer, x_forwarded_for(headers))
        }
    }

    /// Returns an address as the value of an attribute: `203.0.113.7`, or `2001:db8::/64` if a
    /// prefix identifies the client.
    pub fn attribute(&self, client: IpAddr) -> String {
        self.attribute_text(client).as_str().to_owned()
    }

    /// Returns the same text as [`ByIp::attribute`], without allocating.
    pub(crate) fn attribute_text(&self, client: IpAddr) -> AddressText {
        let (network, prefix, whole) = match client.to_canonical() {
            IpAddr::V4(address) => (IpAddr::V4(self.shortened_v4(address)), self.ipv4_prefix, 32),
            IpAddr::V6(address) => (IpAddr::V6(self.shortened_v6(address)), self.ipv6_prefix, 128),
        };
        AddressText::of(network, Some(prefix).filter(|prefix| *prefix < whole))
    }

    /// Follows the hops from the right. Each was reported by the one before it.
    fn follow(&self, peer: IpAddr, hops: impl Iterator<Item = Option<IpAddr>>) -> IpAddr {
        let mut client = peer;
        for hop in hops {
            let Some(address) = hop else { return client };
            client = address;
            if !self.trusts(client) {
                return client;
            }
        }
        client
    }

    fn shortened_v4(&self, address: Ipv4Addr) -> Ipv4Addr {
        let mask = u32::MAX.checked_shl(32 - u32::from(self.ipv4_prefix)).unwrap_or(0);
        Ipv4Addr::from_bits(address.to_bits() & mask)
    }

    fn shortened_v6(&self, address: Ipv6Addr) -> Ipv6Addr {
        let mask = u128::MAX.checked_shl(128 - u32::from(self.ipv6_prefix)).unwrap_or(0);
        Ipv6Addr::from_bits(address.to_bits() & mask)
    }
}

/// The error that a text is not a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CidrError(String);

impl fmt::Display for CidrError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = &self.0;
        write!(
            f,
            "{text:?} is no network; write one such as 10.0.0.0/8 or 2001:db8::/32, or an address"
        )
    }
}

impl std::error::Error for CidrError {}

/// Parses a network. One of IPv4-mapped addresses becomes the IPv4 network, since clients'
/// addresses are converted likewise.
fn network(text: &str) -> Result<IpNet, CidrError> {
    let wrong = || CidrError(text.to_owned());
    let network = match text.parse::<IpNet>() {
        Ok(network) => network,
        Err(_) => text.parse::<IpAddr>().map(IpNet::from).map_err(|_| wrong())?,
    };
    let IpNet::V6(mapped) = network else { return Ok(network) };
    match (mapped.addr().to_ipv4_mapped(), mapped.prefix_len().checked_sub(MAPPED_PREFIX)) {
        (Some(address), Some(prefix)) => {
            Ipv4Net::new(address, prefix).map(IpNet::V4).map_err(|_| wrong())
        }
        _ => Ok(network),
    }
}

pub(crate) const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// `::ffff:0:0/96` holds the IPv4-mapped addresses.
const MAPPED_PREFIX: u8 = 96;
