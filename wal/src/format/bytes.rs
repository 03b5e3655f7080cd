//! Writing and reading little-endian fields of a slice, in order.

use super::{FormatError, bad};

/// Writes fields one after the other.
///
/// # Panics
/// When the slice is too short: the caller sized it from the same table.
pub(crate) struct Put<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl<'a> Put<'a> {
    pub(crate) fn new(out: &'a mut [u8]) -> Put<'a> {
        Put { out, at: 0 }
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.out[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    pub(crate) fn u8(&mut self, value: u8) {
        self.bytes(&[value]);
    }

    pub(crate) fn u16(&mut self, value: u16) {
        self.bytes(&value.to_le_bytes());
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }

    /// A length in four bytes, then the bytes.
    pub(crate) fn long(&mut self, bytes: &[u8]) {
        self.u32(len32(bytes.len()));
        self.bytes(bytes);
    }

    pub(crate) fn at(&self) -> usize {
        self.at
    }
}

/// A length as it is stored. Lengths are bounded far below by the segment size.
pub(crate) fn len32(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// Reads fields one after the other.
pub(crate) struct Take<'a> {
    rest: &'a [u8],
}

impl<'a> Take<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Take<'a> {
        Take { rest: bytes }
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Result<&'a [u8], FormatError> {
        let (head, rest) = self.rest.split_at_checked(len).ok_or(bad("too short"))?;
        self.rest = rest;
        Ok(head)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        let (head, rest) = self.rest.split_first_chunk().ok_or(bad("too short"))?;
        self.rest = rest;
        Ok(*head)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, FormatError> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u16(&mut self) -> Result<u16, FormatError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, FormatError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, FormatError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(crate) fn long(&mut self) -> Result<&'a [u8], FormatError> {
        let len = self.u32()? as usize;
        self.bytes(len)
    }

    pub(crate) fn end(&self) -> Result<(), FormatError> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(bad("trailing bytes"))
        }
    }
}
