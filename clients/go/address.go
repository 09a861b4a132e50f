package spillgate

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// A ClientAddress finds the client: the rightmost hop of X-Forwarded-For that is no trusted proxy.
//
// All lines of the header are one list. A hop that is no address ends the walk at the proxy that reported it.
// An IPv4-mapped address is the IPv4 one. An IPv6 client is its /64, which is what one home or one machine is given.
type ClientAddress struct {
	trusted    []netip.Prefix
	trustsUnix bool
}

// NewClientAddress trusts these networks or addresses; "unix" trusts peers on a Unix socket, which have no address.
func NewClientAddress(trustedProxies ...string) (*ClientAddress, error) {
	address := &ClientAddress{}
	for _, text := range trustedProxies {
		if text == "unix" {
			address.trustsUnix = true
			continue
		}
		network, err := parseNetwork(text)
		if err != nil {
			return nil, fmt.Errorf("spillgate: %q is not a valid network; write one such as 10.0.0.0/8 or 2001:db8::/32, or an address", text)
		}
		address.trusted = append(address.trusted, network)
	}
	return address, nil
}

// Attribute returns the value for the attribute "ip". Requests from peers without an address are one subject, "unknown". The
// peer is an address with or without a port, and forwardedFor has the values of all X-Forwarded-For lines.
func (a *ClientAddress) Attribute(peer string, forwardedFor []string) string {
	client, isAddress := parseHop(peer)
	trusted := a.trustsUnix
	if isAddress {
		trusted = a.trusts(client)
	}
	if !trusted {
		return show(client)
	}
	for line := len(forwardedFor) - 1; line >= 0; line-- {
		for rest, more := forwardedFor[line], true; more; {
			var hop string
			if comma := strings.LastIndexByte(rest, ','); comma >= 0 {
				rest, hop = rest[:comma], rest[comma+1:]
			} else {
				hop, more = rest, false
			}
			hop = strings.Trim(hop, " \t")
			if hop == "" {
				continue
			}
			if len(hop) > 1 && hop[0] == '"' && hop[len(hop)-1] == '"' {
				hop = hop[1 : len(hop)-1]
			}
			address, ok := parseHop(hop)
			if !ok {
				return show(client)
			}
			client = address
			if !a.trusts(address) {
				return show(client)
			}
		}
	}
	return show(client)
}

func (a *ClientAddress) trusts(address netip.Addr) bool {
	for _, network := range a.trusted {
		if network.Contains(address) {
			return true
		}
	}
	return false
}

func show(address netip.Addr) string {
	if !address.IsValid() {
		return "unknown"
	}
	if !address.Is6() {
		return address.String()
	}
	return netip.PrefixFrom(address, ipv6Bits).Masked().String()
}

func parseNetwork(text string) (netip.Prefix, error) {
	network, err := netip.ParsePrefix(text)
	if err != nil {
		address, err := netip.ParseAddr(text)
		if err != nil {
			return netip.Prefix{}, err
		}
		network = netip.PrefixFrom(address.WithZone(""), address.BitLen())
	}
	// Clients are known by IPv4 addresses, so a network of mapped ones is the IPv4 one.
	if network.Addr().Is4In6() && network.Bits() >= mappedBits {
		network = netip.PrefixFrom(network.Addr().Unmap(), network.Bits()-mappedBits)
	}
	return network.Masked(), nil
}

// parseHop parses 203.0.113.7, 203.0.113.7:80, 2001:db8::1, [2001:db8::1]:80 and fe80::1%eth0.
func parseHop(hop string) (netip.Addr, bool) {
	host, port, hasPort := hop, "", false
	if rest, isBracketed := strings.CutPrefix(hop, "["); isBracketed {
		var tail string
		var isClosed bool
		host, tail, isClosed = strings.Cut(rest, "]")
		if !isClosed {
			return netip.Addr{}, false
		}
		port, hasPort = strings.CutPrefix(tail, ":")
		if tail != "" && !hasPort {
			return netip.Addr{}, false
		}
	} else if strings.Count(hop, ":") == 1 {
		host, port, hasPort = strings.Cut(hop, ":")
	}
	if hasPort && !isPort(port) {
		return netip.Addr{}, false
	}
	address, err := netip.ParseAddr(host)
	if err != nil {
		return netip.Addr{}, false
	}
	return address.Unmap().WithZone(""), true
}

func isPort(port string) bool {
	if name, isHidden := strings.CutPrefix(port, "_"); isHidden {
		return strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == ""
	}
	_, err := strconv.ParseUint(port, 10, 16)
	return err == nil
}

const (
	ipv6Bits   = 64
	mappedBits = 96
)
