//! Applying an intact frame's records to the state.

use crate::error::OpenError;
use crate::format::frame::{FRAME_HEADER_BYTES, FrameHeader};
use crate::format::record::{self as codec, RECORD_FLAG_RELOCATED, kind};
use crate::format::{Envelope, FormatError};
use crate::ids::{SegmentId, Seq, SinkNo};
use crate::record::Location;
use crate::state::State;

/// Applies the records of a frame that lies at `pos` of `segment`; everything up to its LSN
/// counts as durable from here on.
pub(crate) fn apply_frame(
    state: &mut State,
    header: &FrameHeader,
    payload: &[u8],
    segment: SegmentId,
    pos: u64,
) -> Result<(), OpenError> {
    let mut sinks: Vec<SinkNo> = Vec::new();
    for raw in codec::records(payload) {
        let offset = pos + (FRAME_HEADER_BYTES + raw.offset) as u64;
        let unknown = |error: FormatError| OpenError::UnknownRecord {
            segment,
            offset,
            what: error.what,
        };
        if raw.kind == kind::HOOK {
            let extra = codec::decode_extra(raw.extra, &mut sinks).map_err(unknown)?;
            let envelope = Envelope::parse(raw.body).map_err(unknown)?;
            let at = Location {
                segment,
                offset,
                len: raw.len as u32,
                lsn: header.lsn,
            };
            let relocated = raw.flags & RECORD_FLAG_RELOCATED != 0;
            state.apply_hook(&envelope.facts(relocated), &extra, at);
        } else {
            let record = codec::decode_record(raw.kind, raw.body).map_err(unknown)?;
            state.apply(&record, header.lsn);
        }
    }
    Ok(())
}

/// The lowest seq at or above `from` that a hook of the frame has; else the frame's next seq.
pub(crate) fn first_new_seq(header: &FrameHeader, payload: &[u8], from: Seq) -> Seq {
    codec::records(payload)
        .filter(|raw| raw.kind == kind::HOOK)
        .filter_map(|raw| Envelope::parse(raw.body).ok())
        .map(|envelope| envelope.seq)
        .filter(|seq| *seq >= from)
        .min()
        .unwrap_or(header.next_seq.max(from))
}
