//! Whose request it is, by address: the rightmost hop that is no trusted proxy, shortened to a prefix.
//!
//! What stands left of that hop is text of the client's own making and is never looked at.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::HeaderMap;
use http::header::{FORWARDED, HeaderName};
use ipnet::{IpNet, Ipv4Net};

mod hops;
mod text;

use hops::{forwarded, x_forwarded_for};
pub(crate) use text::AddressText;

/// The client's address as the value of an attribute.
///
/// Without trusted proxies it is the peer's. With them, the hops that they report are followed from
/// the right, over all lines of `X-Forwarded-For`, up to the first that is not trusted; a hop that
/// is no address (`unknown`, `_hidden`, junk) ends the walk at the proxy that reported it. An IPv6
/// client is known by its /64, which is what one home or one machine is given; an IPv4-mapped
/// address is the IPv4 one.
///
/// ```
/// use http::HeaderMap;
/// use spillgate::ByIp;
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
    /// The peer itself: nobody is trusted to speak for others.
    pub fn direct() -> ByIp {
        ByIp { trusted: Vec::new(), field: X_FORWARDED_FOR, ipv4_prefix: 32, ipv6_prefix: 64 }
    }

    /// Believes the `X-Forwarded-For` of these networks: `10.0.0.0/8`, `2001:db8::/32`, or one
    /// address.
    ///
    /// # Panics
    /// If one of them is no network; [`ByIp::try_trusting`] answers an error instead.
    #[track_caller]
    pub fn trusting<C: AsRef<str>>(networks: impl IntoIterator<Item = C>) -> ByIp {
        match ByIp::try_trusting(networks) {
            Ok(by_ip) => by_ip,
            Err(error) => panic!("{error}"),
        }
    }

    /// As [`ByIp::trusting`], for networks that come from outside.
    ///
    /// ```
    /// # use spillgate::ByIp;
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

    /// Reads `Forwarded` (RFC 7239), and `X-Forwarded-For` no more: whoever reads both lets a client
    /// choose.
    pub fn by_forwarded(self) -> ByIp {
        ByIp { field: FORWARDED, ..self }
    }

    /// Knows IPv6 clients by so many leading bits: 56 or 48 where a client is given more than a /64,
    /// 128 for each address alone.
    ///
    /// # Panics
    /// If `bits` is above 128.
    #[track_caller]
    pub fn ipv6_prefix(self, bits: u8) -> ByIp {
        assert!(bits <= 128, "an IPv6 address has 128 bits, and not {bits}");
        ByIp { ipv6_prefix: bits, ..self }
    }

    /// Knows IPv4 clients by so many leading bits, and not by all 32.
    ///
    /// # Panics
    /// If `bits` is above 32.
    #[track_caller]
    pub fn ipv4_prefix(self, bits: u8) -> ByIp {
        assert!(bits <= 32, "an IPv4 address has 32 bits, and not {bits}");
        ByIp { ipv4_prefix: bits, ..self }
    }

    /// Whether an address may speak for others.
    pub fn trusts(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.trusted.iter().any(|network| network.contains(&address))
    }

    /// Whether nobody may speak for others.
    #[cfg(feature = "tower")]
    pub(crate) fn is_direct(&self) -> bool {
        self.trusted.is_empty()
    }

    /// Whether everybody may: then a client can call itself what it likes.
    #[cfg(feature = "tower")]
    pub(crate) fn trusts_everyone(&self) -> bool {
        self.trusted.iter().any(|network| network.prefix_len() == 0)
    }

    /// The field that is read.
    #[cfg(feature = "tower")]
    pub(crate) fn field(&self) -> &HeaderName {
        &self.field
    }

    /// The client's whole address, IPv4-mapped ones as IPv4.
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

    /// An address as the value of an attribute: `203.0.113.7`, or `2001:db8::/64` where a prefix
    /// stands for all behind it.
    pub fn attribute(&self, client: IpAddr) -> String {
        self.attribute_text(client).as_str().to_owned()
    }

    /// The same, without allocating.
    pub(crate) fn attribute_text(&self, client: IpAddr) -> AddressText {
        let (network, prefix, whole) = match client.to_canonical() {
            IpAddr::V4(address) => (IpAddr::V4(self.shortened_v4(address)), self.ipv4_prefix, 32),
            IpAddr::V6(address) => (IpAddr::V6(self.shortened_v6(address)), self.ipv6_prefix, 128),
        };
        AddressText::of(network, Some(prefix).filter(|prefix| *prefix < whole))
    }

    /// Walks the hops from the right, each reported by the one before it.
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

/// What was to be a trusted network and is none.
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

/// A network as written; one of IPv4-mapped addresses is the IPv4 one, since that is what clients
/// are known by.
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
