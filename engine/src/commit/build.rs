//! A group of hooks while it is built: hooks go from the queue into the store's buffer.
//!
//! It may stay open: while as many groups as may be are in flight, what arrives is encoded into
//! the next one, so that a group whose turn comes is there already; and a large body is copied in
//! steps between which others have the core. Nothing of it is applied or written until it is
//! submitted, and a fence may overtake it: then its hooks are refused.
//!
//! Invariant: no hook goes in once the name of a sink waits in the store's queue. Names that
//! waited when it was begun are in it; a later one may be of a sink of the next hook.
//!
//! Runs on the shard core, inside one slice of the driver.

use ankusa_wal::{Disk, GroupBuilder, Host, Seq, Store};

use super::{Committer, Taken};

/// A hook that may take more is copied in steps of [`STEP_BYTES`].
const LARGE_BYTES: usize = 256 << 10;

/// Copied and checksummed at a time: well under a tenth of a millisecond.
const STEP_BYTES: usize = 128 << 10;

/// Encoded between two looks at the clock.
const PAUSE_BYTES: usize = 256 << 10;

/// What the marks of a group are expected to take, and whether someone asked for them. They are
/// taken only when the group is handed over: until then the log may be lost and begun again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Marks {
    pub(super) records: usize,
    pub(super) bytes: usize,
    pub(super) is_due: bool,
}

/// A group that is being built.
pub(super) struct Build<D: Disk> {
    pub(super) builder: GroupBuilder<D>,
    pub(super) taken: Taken,
    pub(super) marks: Marks,
    /// The last hook taken is large and not all there yet.
    is_stepping: bool,
}

impl<D: Disk> Build<D> {
    pub(super) fn new(builder: GroupBuilder<D>, taken: Taken, marks: Marks) -> Build<D> {
        Build {
            builder,
            taken,
            marks,
            is_stepping: false,
        }
    }

    /// Takes what waits and belongs into it. False when others are to have the core before it goes
    /// on; it may not be submitted then.
    pub(super) fn fill(
        &mut self,
        committer: &mut Committer,
        store: &Store<D>,
        records_max: usize,
        host: &dyn Host,
    ) -> bool {
        let mut from = self.builder.bytes();
        loop {
            if self.is_stepping {
                if !self.step(host) {
                    return false;
                }
                from = self.builder.bytes();
            }
            let Some(bytes) = committer.next_bytes() else {
                return true;
            };
            let builder = &mut self.builder;
            let full = builder.records() + self.marks.records >= records_max
                || !builder.fits(bytes + self.marks.bytes)
                || store.has_names_queued();
            // NOTE: a queued record may have gone ahead; then even the first hook may not fit, and
            // has the next group. In an empty group the bound is the hook's own, not this one.
            if builder.records() > 0 && full {
                return true;
            }
            self.is_stepping = bytes > LARGE_BYTES;
            let is_large = self.is_stepping;
            committer.take(&mut self.taken, |item| {
                let mut seq = Seq(0);
                item.draft(&mut |draft| {
                    seq = if is_large {
                        builder.hook_begin(draft)
                    } else {
                        builder.hook(draft)
                    };
                });
                seq
            });
            if builder.bytes() - from > PAUSE_BYTES {
                if host.must_yield() {
                    return false;
                }
                from = builder.bytes();
            }
        }
    }

    /// Goes on with the large hook; false when it is not all there and others are to have the core.
    fn step(&mut self, host: &dyn Host) -> bool {
        let Some(item) = self.taken.last() else {
            unreachable!("a large hook that was not taken");
        };
        let builder = &mut self.builder;
        loop {
            let mut is_whole = false;
            item.draft(&mut |draft| {
                is_whole = builder.hook_step(draft.body, STEP_BYTES).is_some();
            });
            if is_whole {
                self.is_stepping = false;
                return true;
            }
            if host.must_yield() {
                return false;
            }
        }
    }
}
