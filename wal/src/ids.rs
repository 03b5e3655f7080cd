//! Newtypes for what must not be swapped, and their arithmetic, all in this one file.
//!
//! Pure; runs anywhere.

use std::fmt;

/// How far `next_seq` leaps at every open: more than can ever be pending, so that a seq that was
/// handed out before a crash and never seen again is never handed out twice.
pub const SEQ_LEAP: u64 = 1 << 24;

/// The place of a hook in its shard. Increasing, not dense.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq(pub u64);

impl Seq {
    /// The seq after this one.
    pub fn next(self) -> Seq {
        Seq(self.0 + 1)
    }

    /// The first seq an open may hand out when the highest one seen is `self - 1`.
    pub fn leap(self) -> Seq {
        Seq(self.0 + SEQ_LEAP)
    }
}

/// The number of a group frame in its shard. Dense: every frame, empty ones included, takes the
/// next one. `Lsn(0)` is "before the first frame".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

impl Lsn {
    /// The LSN of the frame after this one.
    pub fn next(self) -> Lsn {
        Lsn(self.0 + 1)
    }

    /// The LSN of the frame before this one; `Lsn(0)` stays.
    pub fn prev(self) -> Lsn {
        Lsn(self.0.saturating_sub(1))
    }
}

/// The number of a segment in its shard; never reused, also not by an abandoned attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentId(pub u64);

/// The number of a shard in its store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(pub u16);

/// The shard-local number of a sink's `(tenant, source, name)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SinkNo(pub u16);

impl SegmentId {
    /// The number after this one.
    pub fn next(self) -> SegmentId {
        SegmentId(self.0 + 1)
    }
}

/// A position in the intake log's partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogOffset(pub u64);

/// A hook's id: the 16 bytes of a UUIDv7, kept through retries, replays and recovery.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HookId(pub [u8; 16]);

impl HookId {
    /// Parses the hyphenated (or plain 32 digit) form.
    pub fn parse(text: &str) -> Option<HookId> {
        let mut out = [0u8; 16];
        let mut nibbles = 0usize;
        for c in text.bytes() {
            if c == b'-' {
                continue;
            }
            let digit = (c as char).to_digit(16)? as u8;
            let byte = out.get_mut(nibbles / 2)?;
            *byte = (*byte << 4) | digit;
            nibbles += 1;
        }
        (nibbles == 32).then_some(HookId(out))
    }

    /// Writes the 36 byte hyphenated form.
    pub fn write_text(self, out: &mut [u8; 36]) {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut at = 0;
        for (i, byte) in self.0.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                out[at] = b'-';
                at += 1;
            }
            out[at] = DIGITS[(byte >> 4) as usize];
            out[at + 1] = DIGITS[(byte & 15) as usize];
            at += 2;
        }
    }
}

impl fmt::Display for HookId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = [0u8; 36];
        self.write_text(&mut text);
        f.write_str(std::str::from_utf8(&text).unwrap_or("?"))
    }
}

impl fmt::Debug for HookId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

macro_rules! display_number {
    ($($name:ident),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    )*};
}
display_number!(Seq, Lsn, SegmentId, ShardId, SinkNo, LogOffset);
