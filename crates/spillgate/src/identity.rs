//! Determines the client of a request by address: the rightmost hop that is not a trusted proxy.
//!
//! Everything left of that hop can be forged by the client, and is ignored.

use std::fmt;
use std::net::IpAddr;

use http::HeaderMap;
use http::header::{FORWARDED, HeaderName};
use spillgate_core::ip::{AddressText, Network};

mod hops;

use hops::{forwarded, x_forwarded_for};

/// Determines the client's address, as the value of an attribute.
///
/// Without trusted proxies it is the peer's. With them, the hops that they report are followed from
/// the right, over all lines of `X-Forwarded-For`, up to the first that is not trusted. A hop
/// without an address (`unknown`, `_hidden`, junk) ends the search at the proxy that reported it.
///
/// The policy cuts the address to the prefix that counts as one client, by default the /64 of an
/// IPv6 address. An IPv4-mapped address counts as the IPv4 address. Give the attribute the name `ip`,
/// or declare `[attribute.NAME]` with `type = "ip"`: only values of that type are cut.
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
/// assert_eq!(by_ip.attribute(client), "2001:db8::7");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ByIp {
    trusted: Vec<Network>,
    field: HeaderName,
}

impl ByIp {
    /// Uses the address of the peer. No proxy is trusted.
    ///
    /// ```
    /// use http::HeaderMap;
    /// use spillgate::http::ByIp;
    ///
    /// let client = ByIp::direct().client("203.0.113.7".parse()?, &HeaderMap::new());
    /// assert_eq!(client.to_string(), "203.0.113.7");
    /// # Ok::<(), std::net::AddrParseError>(())
    /// ```
    pub fn direct() -> ByIp {
        ByIp { trusted: Vec::new(), field: X_FORWARDED_FOR }
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
    /// assert!(error.starts_with("\"10.0.0.0/33\" is not a network; write"), "{error}");
    /// ```
    pub fn try_trusting<C: AsRef<str>>(
        networks: impl IntoIterator<Item = C>,
    ) -> Result<ByIp, CidrError> {
        let network = |text: C| {
            let text = text.as_ref();
            Network::parse(text).ok_or_else(|| CidrError(text.to_owned()))
        };
        let trusted: Result<_, _> = networks.into_iter().map(network).collect();
        Ok(ByIp { trusted: trusted?, ..ByIp::direct() })
    }

    /// Returns whether a trusted network has a shorter prefix than this.
    ///
    /// ```
    /// # use spillgate::http::ByIp;
    /// assert!(ByIp::trusting(["10.0.0.0/8", "::/0"]).trusts_wider_than(7));
    /// assert!(!ByIp::trusting(["10.0.0.0/8", "fc00::/7"]).trusts_wider_than(7));
    /// ```
    pub fn trusts_wider_than(&self, prefix: u8) -> bool {
        self.trusted.iter().any(|network| network.prefix() < prefix)
    }

    /// Reads `Forwarded` (RFC 7239) instead of `X-Forwarded-For`. Reading both would let a client
    /// choose one.
    ///
    /// ```
    /// use http::HeaderMap;
    /// use spillgate::http::ByIp;
    ///
    /// let by_ip = ByIp::trusting(["10.0.0.0/8"]).by_forwarded();
    /// let mut headers = HeaderMap::new();
    /// headers.insert("forwarded", "for=203.0.113.7".parse()?);
    /// assert_eq!(by_ip.client("10.0.0.1".parse()?, &headers).to_string(), "203.0.113.7");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn by_forwarded(self) -> ByIp {
        ByIp { field: FORWARDED, ..self }
    }

    /// Returns whether an address is a trusted proxy.
    ///
    /// ```
    /// use spillgate::http::ByIp;
    ///
    /// let by_ip = ByIp::trusting(["10.0.0.0/8"]);
    /// assert!(by_ip.trusts("10.1.2.3".parse()?) && !by_ip.trusts("203.0.113.7".parse()?));
    /// # Ok::<(), std::net::AddrParseError>(())
    /// ```
    pub fn trusts(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.trusted.iter().any(|network| network.has(address))
    }

    /// Returns whether no proxy is trusted.
    #[cfg(feature = "tower")]
    pub(crate) fn is_direct(&self) -> bool {
        self.trusted.is_empty()
    }

    /// Returns whether every address is a trusted proxy. Then a client can forge its address.
    #[cfg(feature = "tower")]
    pub(crate) fn trusts_everyone(&self) -> bool {
        self.trusted.iter().any(|network| network.prefix() == 0)
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

    /// Returns an address as the value of an attribute. A policy cuts it by the attribute's type.
    pub fn attribute(&self, client: IpAddr) -> String {
        self.attribute_text(client).as_str().to_owned()
    }

    /// Returns the same text as [`ByIp::attribute`], without allocating.
    pub(crate) fn attribute_text(&self, client: IpAddr) -> AddressText {
        Network::from(client).text()
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
}

/// The error that a text is not a network.
///
/// [`ByIp::try_trusting`] returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CidrError(String);

impl fmt::Display for CidrError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = &self.0;
        write!(
            f,
            "{text:?} is not a network; write one such as 10.0.0.0/8 or 2001:db8::/32, or an address"
        )
    }
}

impl std::error::Error for CidrError {}

pub(crate) const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
