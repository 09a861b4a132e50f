//! Reads numbers from the front of bytes.

/// The undecoded rest of some bytes.
pub struct Bytes<'b>(pub &'b [u8]);

impl<'b> Bytes<'b> {
    /// Takes the next bytes, or `None` if there are fewer.
    pub fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    /// Takes the next `length` bytes, or `None` if there are fewer.
    pub fn slice(&mut self, length: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    /// Takes a number of 16 bytes.
    pub fn long(&mut self) -> Option<u128> {
        self.take().map(u128::from_be_bytes)
    }
}
