//! A disk with a volatile cache, as its host sees one: what is stable, and the ordered writes
//! that no FLUSH has covered yet.
//!
//! Invariants: a FLUSH makes stable exactly the writes that had *completed* when it arrived; a
//! write that was still in flight then is not covered. What is read is the newest write, stable or
//! not. A power cut leaves the stable content plus any part of the rest, at 512-byte sectors, in
//! any order where they overlap: a real cache may do all of it, so a failure is a bug above.
//!
//! A cut stops nothing: it takes a picture, atomic with regard to writes, flushes and the marks of
//! the ledgers, and the device goes on. Pure, but for the clock of the deadline of a cut.

use std::collections::BTreeMap;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use super::cut::{Cut, CutOrder, Moment, crash_image};
use super::pages::{PAGE_BYTES, Pages};
use crate::rng::Rng;

/// The unit that a write may be torn at.
pub const SECTOR_BYTES: usize = 512;

/// First bytes of a group and of a segment (docs/storage.md).
const GROUP_MAGIC: &[u8; 8] = b"ANKAGRP1";
const SEGMENT_MAGIC: &[u8; 8] = b"ANKASEG1";

/// First bytes of what the file systems write into their journals: jbd2 (descriptor, commit and
/// revoke blocks) and xfs (the head of a record of its log).
const JBD2_MAGIC: &[u8; 4] = &[0xC0, 0x3B, 0x39, 0x98];
const XFS_LOG_MAGIC: &[u8; 4] = &[0xFE, 0xED, 0xBA, 0xBE];

/// The device fails the operation, with this errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceFault(pub i32);

/// A write that no flush has covered.
#[derive(Clone, Debug)]
pub struct Write {
    /// Its number, in order of arrival.
    pub number: u64,
    /// Where.
    pub offset: u64,
    /// What.
    pub data: Vec<u8>,
    /// Its success was reported.
    pub is_complete: bool,
}

impl Write {
    /// The groups of the log that begin in this write.
    pub fn groups(&self) -> usize {
        blocks(&self.data)
            .filter(|b| b.starts_with(GROUP_MAGIC))
            .count()
    }

    /// Whether this is a write of the log's own: it begins with a group or a segment's header.
    pub fn is_log(&self) -> bool {
        self.data.starts_with(GROUP_MAGIC) || self.data.starts_with(SEGMENT_MAGIC)
    }

    /// Whether this begins a segment.
    pub fn is_segment(&self) -> bool {
        self.data.starts_with(SEGMENT_MAGIC)
    }

    /// Whether this is a write into the file system's journal.
    pub fn is_journal(&self) -> bool {
        self.data.starts_with(JBD2_MAGIC) || self.data.starts_with(XFS_LOG_MAGIC)
    }
}

fn blocks(data: &[u8]) -> impl Iterator<Item = &[u8]> {
    data.chunks(PAGE_BYTES)
}

/// How the device misbehaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Writes of the log fail; what they leave on the medium is a part of them.
    WriteError,
    /// The flush behind writes of the log fails; the writes stay in the cache, the next flush
    /// succeeds and covers them.
    FlushError,
    /// Writes of the log succeed, the flush behind them fails, and the writes are gone.
    LateError,
    /// Writes of the log find no room (ENOSPC), as on a thin device whose pool is full.
    NoRoom,
    /// Writes into the file system's journal fail; the log's own succeed.
    JournalError,
    /// Every write and every flush fails.
    EveryError,
}

impl Fault {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Fault::WriteError => "write-error",
            Fault::FlushError => "flush-error",
            Fault::LateError => "late-error",
            Fault::NoRoom => "device-full",
            Fault::JournalError => "journal-error",
            Fault::EveryError => "every-error",
        }
    }
}

/// A fault to be met.
#[derive(Clone, Copy, Debug)]
pub struct FaultOrder {
    /// Which.
    pub fault: Fault,
    /// It begins once so many groups are in the cache, the failing write's own included.
    pub groups_min: usize,
    /// So many failures, then the device is well again by itself.
    pub failures_max: u64,
}

/// What the device did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Writes taken.
    pub writes: u64,
    /// Flushes that succeeded.
    pub flushes: u64,
    /// Writes that were failed.
    pub writes_failed: u64,
    /// Flushes that were failed.
    pub flushes_failed: u64,
    /// Writes that were reported as done and dropped by a late error.
    pub writes_dropped: u64,
    /// Groups in the cache when the last fault was first met.
    pub groups_at_fault: usize,
}

/// How far the ledgers had come: requests acked, deliveries taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// Requests acked.
    pub acked: usize,
    /// Deliveries that the sink has written down.
    pub delivered: usize,
}

/// What happened between the flush before and this one, in the order of the device.
pub struct Epoch {
    /// Writes that arrived.
    pub writes: Vec<Write>,
    /// Numbers of the writes that the flush at its end made stable.
    pub covered: Vec<u64>,
    /// The ledgers just before that flush took effect.
    pub marks: Marks,
}

/// A recorded history.
pub struct History {
    /// The stable content at its start.
    pub base: Pages,
    /// Epochs, each ended by a flush.
    pub epochs: Vec<Epoch>,
}

struct Recording {
    history: History,
    arrived: Vec<Write>,
    flushes_max: usize,
    done: Sender<History>,
}

/// The device.
pub struct Device {
    stable: Pages,
    current: Pages,
    unflushed: BTreeMap<u64, Write>,
    next_number: u64,
    fault: Option<FaultOrder>,
    counts: Counts,
    marks: Box<dyn Fn() -> Marks + Send>,
    cut: Option<(CutOrder, Sender<Cut>)>,
    recording: Option<Recording>,
    delay: Duration,
    is_hung: bool,
}

/// What a flush will cover when it ends, and whether it will fail.
pub struct Flush {
    covers: Vec<u64>,
    fault: Option<Fault>,
}

impl Device {
    /// A device full of zeros. `marks` says how far the ledgers have come.
    pub fn new(bytes: u64, marks: Box<dyn Fn() -> Marks + Send>) -> Device {
        Device {
            stable: Pages::new(bytes),
            current: Pages::new(bytes),
            unflushed: BTreeMap::new(),
            next_number: 1,
            fault: None,
            counts: Counts::default(),
            marks,
            cut: None,
            recording: None,
            delay: Duration::ZERO,
            is_hung: false,
        }
    }

    /// Every write and flush that arrives from now on takes so much longer.
    pub fn set_delay(&mut self, delay: Duration) {
        self.delay = delay;
    }

    /// How much longer.
    pub fn delay(&self) -> Duration {
        self.delay
    }

    /// Answers nothing, or answers again, what waited included.
    pub fn set_hung(&mut self, is_hung: bool) {
        self.is_hung = is_hung;
    }

    /// Whether it answers nothing.
    pub fn is_hung(&self) -> bool {
        self.is_hung
    }

    /// Bytes of the device.
    pub fn bytes(&self) -> u64 {
        self.current.bytes()
    }

    /// What it did so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Is to misbehave, or behaves again.
    pub fn set_fault(&mut self, fault: Option<FaultOrder>) {
        self.fault = fault;
        self.counts.groups_at_fault = 0;
    }

    /// Whether `fault` is met by an operation with `groups` in the cache; counts the failure.
    fn meets(&mut self, fits: impl Fn(Fault) -> bool, groups: usize) -> Option<Fault> {
        let order = self.fault.as_mut().filter(|order| fits(order.fault))?;
        if groups < order.groups_min {
            return None;
        }
        let fault = order.fault;
        // Once begun, it goes on whatever is in the cache.
        order.groups_min = 0;
        order.failures_max -= 1;
        if order.failures_max == 0 {
            self.fault = None;
        }
        if self.counts.groups_at_fault == 0 {
            self.counts.groups_at_fault = groups;
        }
        Some(fault)
    }

    /// Reads the newest content.
    pub fn read(&self, offset: u64, out: &mut [u8]) {
        self.current.read(offset, out);
    }

    /// A write arrives. `Ok`: its number; it is in the cache, and complete only after
    /// [`Device::completed`]. `Err`: it is to be answered with an error.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<u64, DeviceFault> {
        let number = self.next_number;
        self.next_number += 1;
        let mut write = Write {
            number,
            offset,
            data: data.to_vec(),
            is_complete: false,
        };
        let groups = self.groups_unflushed() + write.groups();
        let (is_log, is_journal) = (write.is_log(), write.is_journal());
        let fails = self
            .meets(
                |fault| match fault {
                    Fault::WriteError | Fault::NoRoom => is_log,
                    Fault::JournalError => is_journal,
                    Fault::EveryError => true,
                    Fault::FlushError | Fault::LateError => false,
                },
                groups,
            )
            .map(|fault| match fault {
                Fault::NoRoom => DeviceFault(libc::ENOSPC),
                _ => DeviceFault(libc::EIO),
            });
        if fails.is_some() {
            // What a failed write leaves behind is not defined: here its first half.
            self.counts.writes_failed += 1;
            let half = data.len() / SECTOR_BYTES / 2 * SECTOR_BYTES;
            write.data.truncate(half);
            write.is_complete = true;
        }
        self.counts.writes += 1;
        self.current.write(offset, &write.data);
        if let Some(recording) = &mut self.recording {
            recording.arrived.push(write.clone());
        }
        self.unflushed.insert(number, write);
        self.cut_if(Moment::Write);
        fails.map_or(Ok(number), Err)
    }

    /// The success of a write is about to be reported.
    pub fn completed(&mut self, number: u64) {
        if let Some(write) = self.unflushed.get_mut(&number) {
            write.is_complete = true;
        }
    }

    /// A flush arrives.
    pub fn flush_begins(&mut self) -> Flush {
        let complete: Vec<&Write> = self.unflushed.values().filter(|w| w.is_complete).collect();
        let only_log = !complete.is_empty() && complete.iter().all(|w| w.is_log());
        let covers = complete.iter().map(|w| w.number).collect();
        let groups = self.groups_unflushed();
        let fault = self.meets(
            |fault| match fault {
                Fault::FlushError | Fault::LateError => only_log,
                Fault::EveryError => true,
                Fault::WriteError | Fault::NoRoom | Fault::JournalError => false,
            },
            groups,
        );
        self.cut_if(Moment::FlushArrived);
        Flush { covers, fault }
    }

    /// A flush takes effect; its result is about to be reported.
    pub fn flush_ends(&mut self, flush: &Flush) -> Result<(), DeviceFault> {
        self.cut_if(Moment::FlushEnding);
        match flush.fault {
            Some(Fault::LateError) => {
                for number in &flush.covers {
                    self.counts.writes_dropped +=
                        u64::from(self.unflushed.remove(number).is_some());
                }
                self.current = self.stable.clone();
                for write in self.unflushed.values() {
                    self.current.write(write.offset, &write.data);
                }
            }
            Some(_) => {}
            None => {
                let marks = (self.marks)();
                for number in &flush.covers {
                    if let Some(write) = self.unflushed.remove(number) {
                        self.stable.write(write.offset, &write.data);
                    }
                }
                self.counts.flushes += 1;
                self.record_flush(flush, marks);
                return Ok(());
            }
        }
        self.counts.flushes_failed += 1;
        Err(DeviceFault(libc::EIO))
    }

    fn record_flush(&mut self, flush: &Flush, marks: Marks) {
        let Some(recording) = &mut self.recording else {
            return;
        };
        let writes = std::mem::take(&mut recording.arrived);
        recording.history.epochs.push(Epoch {
            writes,
            covered: flush.covers.clone(),
            marks,
        });
        if recording.history.epochs.len() >= recording.flushes_max
            && let Some(recording) = self.recording.take()
        {
            let _ = recording.done.send(recording.history);
        }
    }

    /// Records the next `flushes_max` flushes and what they cover.
    pub fn record(&mut self, flushes_max: usize, done: Sender<History>) {
        self.recording = Some(Recording {
            history: History {
                base: self.stable.clone(),
                epochs: Vec::new(),
            },
            arrived: self.unflushed.values().cloned().collect(),
            flushes_max,
            done,
        });
    }

    /// Takes a picture at the moment that `order` names.
    pub fn arm_cut(&mut self, order: CutOrder, done: Sender<Cut>) {
        self.cut = Some((order, done));
    }

    /// Takes the picture that is waiting, whatever the moment.
    pub fn cut_now(&mut self) {
        if let Some((order, done)) = self.cut.take() {
            self.take_cut(&order, &done);
        }
    }

    /// Groups of the log in the cache.
    pub fn groups_unflushed(&self) -> usize {
        self.unflushed.values().map(Write::groups).sum()
    }

    fn cut_if(&mut self, moment: Moment) {
        let Some((order, _)) = &self.cut else {
            return;
        };
        let is_due = Instant::now() >= order.not_after;
        let has_groups = self.groups_unflushed() >= order.groups_min;
        if order.moment == moment && (has_groups || is_due) {
            self.cut_now();
        }
    }

    fn take_cut(&self, order: &CutOrder, done: &Sender<Cut>) {
        // IMPORTANT: the marks are read while no write and no flush can end; what was acked by
        // then was acked on the strength of what is stable now.
        let marks = (self.marks)();
        let unflushed: Vec<Write> = self.unflushed.values().cloned().collect();
        let mut rng = Rng::new(order.seed);
        let (image, sectors_lost, sectors) =
            crash_image(&self.stable, &unflushed, order.kind, &mut rng);
        let _ = done.send(Cut {
            kind: order.kind,
            moment: order.moment,
            marks,
            image,
            groups: self.groups_unflushed(),
            writes: unflushed.len(),
            sectors,
            sectors_lost,
        });
    }
}
