"""The client's address behind trusted proxies."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator
from functools import lru_cache

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

UNIX = "unix"
UNKNOWN = "unknown"


class ClientAddress:
    """Finds the client: the rightmost hop of ``X-Forwarded-For`` that is not a trusted proxy.

    All lines of the header are one list. A hop that is not an address ends the walk at the proxy that reported it.
    An IPv4-mapped address is the IPv4 one. An IPv6 client is its /64, which is what one home or one machine is given.

    >>> proxies = ClientAddress(["10.0.0.0/8"])
    >>> proxies.attribute("10.0.0.1", ["6.6.6.6, 2001:db8::7", "10.0.0.9"])
    '2001:db8::/64'
    >>> proxies.attribute("192.0.2.1", ["6.6.6.6"])
    '192.0.2.1'
    """

    def __init__(self, trusted_proxies: Iterable[str] = (), *, ipv6_prefix: int = 64) -> None:
        """Trusts these networks or addresses; ``"unix"`` trusts peers on a Unix socket, which have no address."""
        if isinstance(trusted_proxies, str):
            raise TypeError(f"trusted_proxies must be a list of networks, got the string {trusted_proxies!r}")
        if not 0 <= ipv6_prefix <= 128:
            raise ValueError(f"ipv6_prefix must be from 0 to 128, got {ipv6_prefix}")
        given = list(trusted_proxies)
        self._trusts_unix = UNIX in given
        self._trusted = [_network(text) for text in given if text != UNIX]
        self._prefix = ipv6_prefix
        self._parsed = lru_cache(maxsize=4096)(self._parse_peer)

    def attribute(self, peer: str | None, forwarded_for: Iterable[str] = ()) -> str:
        """Returns the value for the attribute ``ip``. Requests from peers without an address are one subject, ``unknown``.

        ``forwarded_for`` has the values of all ``X-Forwarded-For`` lines in their order.
        """
        client, shown, trusted = self._parsed(peer or "")
        if not trusted:
            return shown
        for hop in _hops_from_the_right(forwarded_for):
            if hop is None:
                break
            client = hop
            if not self._trusts(hop):
                break
        return UNKNOWN if client is None else self._show(client)

    def _parse_peer(self, peer: str) -> tuple[Address | None, str, bool]:
        address = _address(peer)
        if address is None:
            return None, UNKNOWN, self._trusts_unix
        return address, self._show(address), self._trusts(address)

    def _trusts(self, address: Address) -> bool:
        return any(address in network for network in self._trusted if network.version == address.version)

    def _show(self, address: Address) -> str:
        if address.version == 4 or self._prefix == 128:
            return str(address)
        return str(ipaddress.IPv6Network((int(address), self._prefix), strict=False))


def _network(text: str) -> Network:
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ValueError(
            f"{text!r} is not a network; write one such as 10.0.0.0/8 or 2001:db8::/32, or an address"
        ) from None
    if isinstance(network, ipaddress.IPv6Network) and network.prefixlen >= 96:
        mapped = network.network_address.ipv4_mapped
        if mapped is not None:
            return ipaddress.IPv4Network((int(mapped), network.prefixlen - 96), strict=False)
    return network


def _hops_from_the_right(lines: Iterable[str]) -> Iterator[Address | None]:
    for line in reversed(list(lines)):
        for hop in reversed(line.split(",")):
            hop = hop.strip(" \t")
            if hop:
                yield _address(hop[1:-1] if len(hop) > 1 and hop[0] == hop[-1] == '"' else hop)


def _address(hop: str) -> Address | None:
    """Parses ``203.0.113.7``, ``203.0.113.7:80``, ``2001:db8::1``, ``[2001:db8::1]:80`` and ``fe80::1%eth0``."""
    host, port = hop, ""
    if hop.startswith("["):
        host, bracket, rest = hop[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            return None
        port = rest[1:]
        if rest and not port:
            return None
    elif hop.count(":") == 1:
        host, _, port = hop.partition(":")
        if not port:
            return None
    if port and not _is_port(port):
        return None
    if ":" in host:
        host = host.partition("%")[0]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, ipaddress.IPv6Address) else address


def _is_port(port: str) -> bool:
    if port.startswith("_"):
        return all(byte.isascii() and (byte.isalnum() or byte in "._-") for byte in port[1:])
    digits = port.lstrip("0")
    # `int` raises an error for thousands of digits.
    return port.isascii() and port.isdigit() and len(digits) <= 5 and int(digits or "0") <= 65535
