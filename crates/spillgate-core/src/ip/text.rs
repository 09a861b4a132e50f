//! Writes an address and a prefix as text, without `fmt` and without allocating, since most
//! requests need one.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The text of an address or a network.
#[derive(Clone, Copy, Debug)]
pub struct AddressText {
    bytes: [u8; LENGTH_MAX],
    length: usize,
}

impl AddressText {
    /// Writes them as `Display` does. IPv4-mapped addresses, which `Display` writes differently, do
    /// not occur.
    pub(crate) fn new(network: IpAddr, prefix: Option<u8>) -> AddressText {
        let mut text = AddressText { bytes: [0; LENGTH_MAX], length: 0 };
        match network {
            IpAddr::V4(address) => text.ipv4(address),
            IpAddr::V6(address) => text.ipv6(address),
        }
        if let Some(prefix) = prefix {
            text.byte(b'/');
            text.decimal(prefix);
        }
        text
    }

    /// Returns the text as bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(self.as_bytes()).expect("only text was written")
    }

    fn ipv4(&mut self, address: Ipv4Addr) {
        let [first, rest @ ..] = address.octets();
        self.decimal(first);
        for octet in rest {
            self.byte(b'.');
            self.decimal(octet);
        }
    }

    /// Replaces the first of the longest runs of zero groups by `::`, if it has more than one
    /// group.
    fn ipv6(&mut self, address: Ipv6Addr) {
        let groups = address.segments();
        let (gap, length) = longest_zeros(&groups);
        let mut place = 0;
        while place < groups.len() {
            if place == gap && length > 1 {
                self.byte(b':');
                self.byte(b':');
                place += length;
                continue;
            }
            if place > 0 && (place != gap + length || length < 2) {
                self.byte(b':');
            }
            self.hexadecimal(groups[place]);
            place += 1;
        }
    }

    fn decimal(&mut self, number: u8) {
        if number > 99 {
            self.byte(b'0' + number / 100);
        }
        if number > 9 {
            self.byte(b'0' + number / 10 % 10);
        }
        self.byte(b'0' + number % 10);
    }

    fn hexadecimal(&mut self, number: u16) {
        for shift in [12, 8, 4, 0] {
            if shift == 0 || number >> shift > 0 {
                self.byte(b"0123456789abcdef"[usize::from(number >> shift & 15)]);
            }
        }
    }

    fn byte(&mut self, byte: u8) {
        self.bytes[self.length] = byte;
        self.length += 1;
    }
}

/// Returns the start and length of the longest run of zeros.
fn longest_zeros(groups: &[u16; 8]) -> (usize, usize) {
    let (mut longest, mut length) = ((0, 0), 0);
    for (place, group) in groups.iter().enumerate() {
        length = if *group == 0 { length + 1 } else { 0 };
        if length > longest.1 {
            longest = (place + 1 - length, length);
        }
    }
    longest
}

/// Eight groups of four digits, seven colons and `/128` are 43 bytes; 48 is the next round size.
const LENGTH_MAX: usize = 48;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_address_is_written_as_the_standard_library_does(
            v4: u32, groups in prop::array::uniform8(prop_oneof![Just(0u16), 0u16..20, any::<u16>()]),
            prefix in prop::option::of(0u8..=128),
        ) {
            let v6 = Ipv6Addr::from(groups);
            for address in [IpAddr::V4(v4.into()), IpAddr::V6(v6)] {
                prop_assume!(v6.to_ipv4_mapped().is_none());
                let end = prefix.map_or_else(String::new, |prefix| format!("/{prefix}"));
                let text = AddressText::new(address, prefix);
                prop_assert_eq!(text.as_str(), format!("{}{}", address, end));
            }
        }
    }
}
