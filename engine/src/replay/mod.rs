//! Replay of dead letters: a durable job that makes them due again.
//!
//! A job has one part in every shard, so that each part is written in the same log as the rows it
//! moves. A part is a row of numbers among the shard's counters ([`COUNTER_FIRST`] and up), which
//! are kept for good, by checkpoints too: what it is to do, how far it is. A filter is kept as a
//! sink number of the shard together with which parts of that sink's name must be the same.
//!
//! A part moves the dead letters that died before the job began and match its filter, newest
//! first. It needs no position: what it has moved is not dead any more, and what dies again died
//! after its start; after a restart it walks the list again. Its counts are written right behind
//! the rows, into the same group unless that one is full.
//!
//! [`Part`] and its codec are pure; [`runner`] runs on the shard's core.

mod runner;
#[cfg(test)]
mod tests;

pub use runner::{Runner, start};

use ankusa_wal::state::SinkNames;
use ankusa_wal::{Counter, Record, SinkName, SinkNo};

/// The first counter of replay parts.
pub const COUNTER_FIRST: u16 = 0x5200;
/// Parts that a shard remembers; an ended one makes room for a new one.
pub const PARTS_MAX: u16 = 16;
/// Counters of one part.
const FIELDS: u16 = 8;

const ID: u16 = 0;
const PLAN: u16 = 1;
const STARTED_MS: u16 = 2;
const MOVED: u16 = 3;
const SKIPPED: u16 = 4;
const UPDATED_MS: u16 = 5;

/// A job's id; never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReplayId(pub u64);

impl ReplayId {
    /// The id of a job that begins now.
    pub fn mint(now_ms: u64, random: u64) -> ReplayId {
        ReplayId((now_ms << 16 | random & 0xffff).max(1))
    }

    /// Reads the 16 digits.
    pub fn parse(text: &str) -> Option<ReplayId> {
        let is_plain = text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit());
        let id = u64::from_str_radix(text, 16).ok().filter(|id| *id != 0)?;
        is_plain.then_some(ReplayId(id))
    }
}

impl std::fmt::Display for ReplayId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// How a part stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayState {
    /// It moves rows.
    Running,
    /// It waits for an operator.
    Paused(Pause),
    /// Nothing is left to move.
    Done,
    /// Ended by an operator.
    Cancelled,
}

/// Why a part waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// An operator said so.
    Operator,
    /// What it had moved died again.
    KeepsDying,
}

impl Pause {
    /// The word that operators see.
    pub fn word(self) -> &'static str {
        match self {
            Pause::Operator => "operator",
            Pause::KeepsDying => "deliveries_keep_dying",
        }
    }
}

impl ReplayState {
    /// The word that operators see.
    pub fn word(self) -> &'static str {
        match self {
            ReplayState::Running => "running",
            ReplayState::Paused(_) => "paused",
            ReplayState::Done => "done",
            ReplayState::Cancelled => "cancelled",
        }
    }

    /// Whether nothing more will happen.
    pub fn is_ended(self) -> bool {
        matches!(self, ReplayState::Done | ReplayState::Cancelled)
    }

    fn code(self) -> u8 {
        match self {
            ReplayState::Running => 0,
            ReplayState::Paused(Pause::Operator) => 1,
            ReplayState::Paused(Pause::KeepsDying) => 2,
            ReplayState::Done => 3,
            ReplayState::Cancelled => 4,
        }
    }

    fn from_code(code: u8) -> ReplayState {
        match code {
            0 => ReplayState::Running,
            1 => ReplayState::Paused(Pause::Operator),
            2 => ReplayState::Paused(Pause::KeepsDying),
            3 => ReplayState::Done,
            _ => ReplayState::Cancelled,
        }
    }
}

/// The dead letters that a job is about, as it was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Only of this tenant.
    pub tenant: Option<String>,
    /// Only of this source.
    pub source: Option<String>,
    /// Only of this sink.
    pub sink: Option<String>,
}

impl Wanted {
    /// Whether a sink of this name is meant.
    pub fn is(&self, name: &SinkName) -> bool {
        let same =
            |wanted: &Option<String>, is: &[u8]| wanted.as_ref().is_none_or(|w| w.as_bytes() == is);
        same(&self.tenant, &name.tenant)
            && same(&self.source, &name.source)
            && same(&self.sink, &name.name)
    }

    /// Whether every sink is meant.
    pub fn is_all(&self) -> bool {
        *self == Wanted::default()
    }
}

/// The same in a shard's own numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    /// Every dead letter.
    All,
    /// None: the shard knows no such sink.
    Nothing,
    /// Those of sinks that share parts of this one's name.
    Like {
        /// The sink.
        sink: SinkNo,
        /// Whether the tenant must be the same.
        tenant: bool,
        /// Whether the source must be the same.
        source: bool,
        /// Whether the sink's name must be the same.
        name: bool,
    },
}

impl Filter {
    /// What is wanted, in the numbers of a shard with these names.
    pub fn of(wanted: &Wanted, names: &SinkNames) -> Filter {
        if wanted.is_all() {
            return Filter::All;
        }
        match names.iter().find(|name| wanted.is(name)) {
            None => Filter::Nothing,
            Some(like) => Filter::Like {
                sink: like.sink,
                tenant: wanted.tenant.is_some(),
                source: wanted.source.is_some(),
                name: wanted.sink.is_some(),
            },
        }
    }

    /// What was wanted; `None`: the shard cannot tell.
    pub fn wanted(self, names: &SinkNames) -> Option<Wanted> {
        let text = |on: bool, part: &[u8]| on.then(|| String::from_utf8_lossy(part).into_owned());
        match self {
            Filter::All => Some(Wanted::default()),
            Filter::Nothing => None,
            Filter::Like {
                sink,
                tenant,
                source,
                name,
            } => names.get(sink).map(|like| Wanted {
                tenant: text(tenant, &like.tenant),
                source: text(source, &like.source),
                sink: text(name, &like.name),
            }),
        }
    }

    fn bits(self) -> u64 {
        match self {
            Filter::All => 0,
            Filter::Nothing => 1,
            Filter::Like {
                sink,
                tenant,
                source,
                name,
            } => {
                2 | u64::from(tenant) << 2
                    | u64::from(source) << 3
                    | u64::from(name) << 4
                    | u64::from(sink.0) << 8
            }
        }
    }

    fn from_bits(bits: u64) -> Filter {
        match bits & 3 {
            0 => Filter::All,
            2 => Filter::Like {
                sink: SinkNo((bits >> 8) as u16),
                tenant: bits & 4 != 0,
                source: bits & 8 != 0,
                name: bits & 16 != 0,
            },
            _ => Filter::Nothing,
        }
    }
}

/// One shard's part of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The job.
    pub id: ReplayId,
    /// How it stands.
    pub state: ReplayState,
    /// What it moves.
    pub filter: Filter,
    /// Rows a second, of the whole node.
    pub per_second: u16,
    /// When the job began; only what died before is moved.
    pub started_at_ms: u64,
    /// Rows moved.
    pub moved: u64,
    /// Rows left alone, because their sink is not configured.
    pub skipped: u64,
    /// Last change.
    pub updated_at_ms: u64,
}

impl Part {
    /// The part in a slot, from the shard's counters.
    pub fn read(slot: u16, counter: impl Fn(u16) -> u64) -> Option<Part> {
        let field = |field| counter(number(slot, field));
        let id = field(ID);
        let plan = field(PLAN);
        (id != 0).then(|| Part {
            id: ReplayId(id),
            state: ReplayState::from_code(plan as u8),
            filter: Filter::from_bits(plan >> 24),
            per_second: (plan >> 8) as u16,
            started_at_ms: field(STARTED_MS),
            moved: field(MOVED),
            skipped: field(SKIPPED),
            updated_at_ms: field(UPDATED_MS),
        })
    }

    /// Everything about the part.
    pub fn record(&self, slot: u16) -> Record {
        fields(
            slot,
            &[
                (ID, self.id.0),
                (PLAN, self.plan()),
                (STARTED_MS, self.started_at_ms),
                (MOVED, self.moved),
                (SKIPPED, self.skipped),
                (UPDATED_MS, self.updated_at_ms),
            ],
        )
    }

    /// Only how it stands: the counts are the runner's to write.
    pub fn state_record(&self, slot: u16, now_ms: u64) -> Record {
        fields(slot, &[(PLAN, self.plan()), (UPDATED_MS, now_ms)])
    }

    /// Only its counts: how it stands may be changed by somebody else meanwhile.
    pub fn count_record(&self, slot: u16, now_ms: u64) -> Record {
        let counts = [(MOVED, self.moved), (SKIPPED, self.skipped)];
        fields(slot, &[counts[0], counts[1], (UPDATED_MS, now_ms)])
    }

    fn plan(&self) -> u64 {
        u64::from(self.state.code()) | u64::from(self.per_second) << 8 | self.filter.bits() << 24
    }
}

/// The slot for a new part: a free one, else that of the part that ended longest ago.
pub fn slot_for_new(counter: impl Fn(u16) -> u64 + Copy) -> Option<u16> {
    let age = |slot: u16| match Part::read(slot, counter) {
        None => Some(0),
        Some(part) if part.state.is_ended() => Some(part.updated_at_ms.max(1)),
        Some(_) => None,
    };
    let free = (0..PARTS_MAX).filter_map(|slot| Some((age(slot)?, slot)));
    free.min().map(|(_, slot)| slot)
}

/// The slot and the part of a job.
pub fn part_of(id: ReplayId, counter: impl Fn(u16) -> u64 + Copy) -> Option<(u16, Part)> {
    (0..PARTS_MAX)
        .filter_map(|slot| Some((slot, Part::read(slot, counter)?)))
        .find(|(_, part)| part.id == id)
}

fn number(slot: u16, field: u16) -> u16 {
    COUNTER_FIRST + slot * FIELDS + field
}

fn fields(slot: u16, values: &[(u16, u64)]) -> Record {
    let counter = |&(field, value): &(u16, u64)| Counter {
        counter: number(slot, field),
        value,
    };
    Record::Counters(values.iter().map(counter).collect())
}
