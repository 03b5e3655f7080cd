//! Faults: which operation meets which, and the count of each kind met.
//!
//! Planned (the Nth operation, the Nth of a kind, a span) or drawn with a probability. Pure.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{AddAssign, Range};

use crate::sim::SimRng;

/// Granularity at which a medium keeps or loses what was not flushed.
pub(super) const SECTOR_BYTES: u64 = 512;

/// The operations of a [`Disk`](crate::disk::Disk).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "each is the method of the same name")]
pub enum OpKind {
    List,
    Open,
    Create,
    Len,
    Write,
    Read,
    SyncData,
    ReopenDsync,
    Rename,
    Remove,
    SyncDir,
    Space,
}

impl OpKind {
    pub(super) const COUNT: usize = 12;

    fn is_sync(self) -> bool {
        matches!(self, OpKind::SyncData | OpKind::SyncDir)
    }
}

/// What happens to unflushed sectors that a failure leaves in doubt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// None reached the medium.
    Lost,
    /// All did.
    Kept,
    /// Drawn for each sector.
    Drawn,
}

/// What one operation meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Fails with this errno. For a write the fate says what landed all the same (not flushed);
    /// for a sync, which unflushed sectors of the file are durable; the others are lost for good.
    Error(i32, Fate),
    /// A write ends after this many bytes (rounded down to 512, below the length).
    Short(u32),
    /// Takes this many microseconds longer.
    Delay(u64),
    /// Does not complete until [`SimDisk::release_hangs`](super::SimDisk::release_hangs).
    Hang,
    /// A sync that works; the *next* write or sync of the file reports EIO for something else.
    /// With `Fate::Lost` it did not work: its content is gone although it answered success.
    Late(Fate),
    /// A sync that answers success and does nothing. For negative controls.
    Lie,
    /// A read returns one flipped bit (its number modulo the length); the medium is sound.
    FlipRead(u32),
}

impl Fault {
    /// EIO, fate drawn for each sector.
    pub const EIO: Fault = Fault::Error(libc::EIO, Fate::Drawn);
    /// ENOSPC, nothing landed.
    pub const ENOSPC: Fault = Fault::Error(libc::ENOSPC, Fate::Lost);

    fn applies(self, kind: OpKind) -> bool {
        match self {
            Fault::Error(..) | Fault::Delay(_) | Fault::Hang => true,
            Fault::Short(_) => kind == OpKind::Write,
            Fault::Late(_) => kind == OpKind::SyncData,
            Fault::Lie => kind.is_sync(),
            Fault::FlipRead(_) => kind == OpKind::Read,
        }
    }
}

/// Probabilities, each in 10,000 of the operations it applies to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultRates {
    /// EIO of a write.
    pub write_eio: u32,
    /// ENOSPC of a write or create.
    pub enospc: u32,
    /// A short write.
    pub short: u32,
    /// EIO of a file or directory sync.
    pub sync_eio: u32,
    /// A sync whose error is reported by the next call.
    pub late: u32,
    /// EIO of a read.
    pub read_eio: u32,
    /// A flipped bit in a read.
    pub read_flip: u32,
    /// EIO of open, create, list, rename, remove.
    pub name_eio: u32,
    /// 1 to 200 ms longer.
    pub delay: u32,
    /// 2 to 30 s longer.
    pub long_delay: u32,
    /// Never completes until released.
    pub hang: u32,
}

impl FaultRates {
    /// A mix in which about `per_10k` of all operations meet something (no read faults, no
    /// endless hang).
    pub fn mixed(per_10k: u32) -> FaultRates {
        FaultRates {
            write_eio: per_10k,
            enospc: per_10k / 2,
            short: per_10k,
            sync_eio: per_10k,
            late: per_10k / 2,
            name_eio: per_10k,
            delay: per_10k * 2,
            long_delay: per_10k / 4,
            ..FaultRates::default()
        }
    }

    fn draw(&self, kind: OpKind, bytes: usize, rng: &mut SimRng) -> Option<Fault> {
        let eio = match kind {
            OpKind::Write => self.write_eio,
            OpKind::Read => self.read_eio,
            OpKind::SyncData | OpKind::SyncDir => self.sync_eio,
            OpKind::Len | OpKind::Space => 0,
            _ => self.name_eio,
        };
        if rng.chance(eio) {
            return Some(Fault::EIO);
        }
        if matches!(kind, OpKind::Write | OpKind::Create) && rng.chance(self.enospc) {
            return Some(Fault::ENOSPC);
        }
        if kind == OpKind::Write && rng.chance(self.short) {
            let sectors = bytes as u64 / SECTOR_BYTES;
            return Some(Fault::Short((rng.below(sectors) * SECTOR_BYTES) as u32));
        }
        if kind == OpKind::SyncData && rng.chance(self.late) {
            return Some(Fault::Late(Fate::Kept));
        }
        if kind == OpKind::Read && rng.chance(self.read_flip) {
            return Some(Fault::FlipRead(rng.next_u64() as u32));
        }
        if rng.chance(self.hang) {
            return Some(Fault::Hang);
        }
        if rng.chance(self.long_delay) {
            return Some(Fault::Delay(rng.between(2_000_000, 30_000_000)));
        }
        rng.chance(self.delay)
            .then(|| Fault::Delay(rng.between(1_000, 200_000)))
    }
}

/// Which operations meet which fault. Planned ones come before drawn ones.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    at: BTreeMap<u64, Fault>,
    of_kind: Vec<(OpKind, Range<u64>, Fault)>,
    spans: Vec<(Range<u64>, Fault)>,
    rates: FaultRates,
    drawn_max: Option<u64>,
}

impl FaultPlan {
    /// No faults.
    pub fn none() -> FaultPlan {
        FaultPlan::default()
    }

    /// The operation with this number (from 0) meets `fault`.
    pub fn at(mut self, op: u64, fault: Fault) -> FaultPlan {
        self.at.insert(op, fault);
        self
    }

    /// Every operation in the span that `fault` applies to meets it.
    pub fn during(mut self, ops: Range<u64>, fault: Fault) -> FaultPlan {
        self.spans.push((ops, fault));
        self
    }

    /// The `nth` (from 0) operation of a kind meets `fault`.
    pub fn nth(self, kind: OpKind, nth: u64, fault: Fault) -> FaultPlan {
        self.nth_during(kind, nth..nth + 1, fault)
    }

    /// The operations of a kind whose numbers within the kind lie in the range meet `fault`.
    pub fn nth_during(mut self, kind: OpKind, nth: Range<u64>, fault: Fault) -> FaultPlan {
        self.of_kind.push((kind, nth, fault));
        self
    }

    /// Faults drawn with these probabilities.
    pub fn rates(mut self, rates: FaultRates) -> FaultPlan {
        self.rates = rates;
        self
    }

    /// At most this many drawn faults.
    pub fn drawn_max(mut self, max: u64) -> FaultPlan {
        self.drawn_max = Some(max);
        self
    }

    pub(super) fn decide(
        &mut self,
        op: u64,
        kind: OpKind,
        nth: u64,
        bytes: usize,
        rng: &mut SimRng,
    ) -> Option<Fault> {
        let planned = self.at.get(&op).copied().filter(|f| f.applies(kind));
        let of_kind = || {
            let hit = |(k, range, f): &&(OpKind, Range<u64>, Fault)| {
                *k == kind && range.contains(&nth) && f.applies(kind)
            };
            self.of_kind.iter().find(hit).map(|(_, _, f)| *f)
        };
        let span = || {
            let hit = |(range, f): &&(Range<u64>, Fault)| range.contains(&op) && f.applies(kind);
            self.spans.iter().find(hit).map(|(_, f)| *f)
        };
        if let Some(fault) = planned.or_else(of_kind).or_else(span) {
            return Some(fault);
        }
        // The draw comes first, so that the stream does not depend on the ceiling.
        let fault = self.rates.draw(kind, bytes, rng)?;
        match &mut self.drawn_max {
            Some(0) => return None,
            Some(left) => *left -= 1,
            None => {}
        }
        Some(fault)
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// How often each thing was met.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct SimCounters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl AddAssign for SimCounters {
            fn add_assign(&mut self, other: SimCounters) {
                $(self.$name += other.$name;)*
            }
        }

        impl fmt::Display for SimCounters {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut first = true;
                $(
                    if self.$name > 0 {
                        let gap = if first { "" } else { " " };
                        write!(f, "{gap}{}={}", stringify!($name), self.$name)?;
                        first = false;
                    }
                )*
                if first { f.write_str("nothing met") } else { Ok(()) }
            }
        }
    };
}

counters! {
    /// Operations issued.
    ops,
    /// Writes that failed with EIO or another errno than ENOSPC.
    write_errors,
    /// Writes or creates that failed with ENOSPC, planned, drawn or from the capacity.
    enospc,
    /// Writes that ended early.
    short_writes,
    /// File or directory syncs that failed.
    sync_errors,
    /// Syncs whose error was left for the next call.
    late_errors,
    /// Syncs that lied.
    lies,
    /// Reads that failed.
    read_errors,
    /// Reads with a flipped bit.
    read_flips,
    /// Other operations that failed by a fault.
    name_errors,
    /// Delays.
    delays,
    /// Hangs.
    hangs,
    /// Writes that completed while an earlier write of the disk was in flight.
    reordered,
    /// Sectors a failed sync or write dropped.
    sectors_lost,
    /// Crash images made.
    cuts,
    /// Broken contract: a write issued over the range of a write in flight.
    overlapping_writes,
    /// Broken contract: a sync on a descriptor where a sync had failed.
    syncs_after_failure,
    /// Broken contract: a write on a descriptor where a sync, or a synced write, had failed.
    writes_after_failure,
    /// Broken contract: a descriptor dropped without `close`.
    unclosed_files,
}

impl SimCounters {
    /// Faults met, of any kind (broken contracts and cuts not counted).
    pub fn faults(&self) -> u64 {
        self.write_errors
            + self.enospc
            + self.short_writes
            + self.sync_errors
            + self.late_errors
            + self.lies
            + self.read_errors
            + self.read_flips
            + self.name_errors
            + self.delays
            + self.hangs
    }

    pub(super) fn count(&mut self, kind: OpKind, fault: Fault) {
        let cell = match (fault, kind) {
            (Fault::Error(libc::ENOSPC, _), _) => &mut self.enospc,
            (Fault::Error(..), OpKind::Write) => &mut self.write_errors,
            (Fault::Error(..), OpKind::Read) => &mut self.read_errors,
            (Fault::Error(..), OpKind::SyncData | OpKind::SyncDir) => &mut self.sync_errors,
            (Fault::Error(..), _) => &mut self.name_errors,
            (Fault::Short(_), _) => &mut self.short_writes,
            (Fault::Delay(_), _) => &mut self.delays,
            (Fault::Hang, _) => &mut self.hangs,
            (Fault::Late(_), _) => &mut self.late_errors,
            (Fault::Lie, _) => &mut self.lies,
            (Fault::FlipRead(_), _) => &mut self.read_flips,
        };
        *cell += 1;
    }
}
