//! The bytes on disk: segment header, group frame, records, envelope.
//!
//! Little-endian, explicit widths; encode and decode are pure functions over slices beside the
//! table of their layout. A decoder never panics, whatever the bytes are. The same tables in
//! prose: `docs/storage.md`. Runs anywhere.

pub mod segment;

pub mod frame;

pub mod record;

pub mod envelope;

pub(crate) mod bytes;

#[cfg(test)]
mod tests;

use thiserror::Error;

pub use envelope::Envelope;
pub use frame::FrameHeader;
pub use segment::SegmentHeader;

/// Version of everything in a segment. A store written by an older release opens; a newer
/// version is refused.
pub const FORMAT_VERSION: u32 = 1;

/// What a decoder found wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{what}")]
pub struct FormatError {
    /// In a few words.
    pub what: &'static str,
}

pub(crate) const fn bad(what: &'static str) -> FormatError {
    FormatError { what }
}

/// `bytes` rounded up to whole blocks.
pub const fn padded(bytes: usize) -> usize {
    bytes.div_ceil(crate::disk::BLOCK_BYTES) * crate::disk::BLOCK_BYTES
}
