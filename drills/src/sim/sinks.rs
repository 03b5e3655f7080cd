//! The sinks: they write down what they are given, and are slow, failing or silent by seed.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use ankusa_engine::dispatch::{Attempt, Outcome, Plan, RetryPolicy, SinkTable, Target};
use ankusa_wal::SinkName;
use ankusa_wal::sim::{SimRng, SimWorld};

use super::book::{Book, Delivered, Hex, Kind};
use super::trace::Trace;

/// The sinks there are.
pub const SINKS: [&str; 2] = ["first", "second"];

/// The second sink gives a hook up after so many failures.
pub const SECOND_ATTEMPTS_MAX: u32 = 6;

/// An attempt that takes longer has failed.
const TIMEOUT_MS: u64 = 1_000;

/// How a sink behaves at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    /// Confirms, soon.
    Sound,
    /// Confirms, late, sometimes too late.
    Slow,
    /// Takes some, confirms none.
    Failing,
    /// Does not answer.
    Silent,
}

/// Asked whether a hook is on the medium.
pub type Probe = Rc<dyn Fn(&[u8; 16]) -> bool>;

/// What all sinks of a run share.
pub struct Sinks {
    world: SimWorld,
    rng: RefCell<SimRng>,
    book: Rc<Book>,
    trace: Rc<Trace>,
    moods: [Cell<Mood>; 2],
    /// Whether some hooks are refused for good.
    pub refuses: Cell<bool>,
    /// Set where deliveries are compared with the medium.
    pub probe: RefCell<Option<Probe>>,
}

impl Sinks {
    /// Sound ones.
    pub fn new(world: &SimWorld, book: &Rc<Book>, trace: &Rc<Trace>, seed: u64) -> Rc<Sinks> {
        Rc::new(Sinks {
            world: world.clone(),
            rng: RefCell::new(SimRng::stream(seed, 21)),
            book: Rc::clone(book),
            trace: Rc::clone(trace),
            moods: [Cell::new(Mood::Sound), Cell::new(Mood::Sound)],
            refuses: Cell::new(true),
            probe: RefCell::new(None),
        })
    }

    /// Changes how a sink behaves.
    pub fn set_mood(&self, sink: usize, mood: Mood) {
        self.trace
            .note(format_args!("sink {} is {mood:?}", SINKS[sink]));
        self.moods[sink].set(mood);
    }

    /// The sinks as one shard sees them.
    pub fn of_shard(self: &Rc<Self>, shard: u16) -> Rc<dyn SinkTable> {
        let one = |sink| {
            Rc::new(ShardSink {
                sinks: Rc::clone(self),
                shard,
                sink,
            })
        };
        Rc::new(Table([one(0), one(1)]))
    }

    async fn attempt(&self, shard: u16, sink: usize, envelope: &[u8]) -> Outcome {
        let name = SINKS[sink];
        let Some((seq, id, number)) = self.book.recognise(envelope) else {
            return Outcome::Delivered;
        };
        let life = self.book.life.get();
        *self
            .book
            .attempts
            .borrow_mut()
            .entry((id, name))
            .or_default() += 1;
        let probe = self.probe.borrow().clone();
        if let Some(probe) = probe
            && self.rng.borrow_mut().below(8) == 0
            && !probe(&id)
        {
            let text = format!("{} of request {number} to {name}", Hex(&id));
            self.book.broken(Kind::EarlyDelivery, text);
        }
        let mood = self.moods[sink].get();
        let (delay_us, draw) = {
            let mut rng = self.rng.borrow_mut();
            let delay_us = match mood {
                Mood::Sound | Mood::Failing => rng.between(100, 5_000),
                Mood::Slow => rng.between(50_000, 1_200_000),
                Mood::Silent => u64::MAX,
            };
            (delay_us, rng.below(100))
        };
        if mood == Mood::Silent {
            // It may have the hook all the same.
            if draw < 30 {
                self.has(Delivered {
                    life,
                    shard,
                    seq,
                    id,
                    number,
                    sink: name,
                });
            }
            return std::future::pending().await;
        }
        self.world.sleep_us(delay_us).await;
        if self.refuses.get() && id[15] % 32 == 7 && sink == 1 {
            self.trace
                .note(format_args!("{name} refuses {number} for good"));
            self.book.refused.borrow_mut().insert((id, name));
            return Outcome::Permanent;
        }
        if draw < 2 {
            return Outcome::NotMade { again_ms: 50 };
        }
        let takes = mood != Mood::Failing || draw < 30;
        if takes {
            self.has(Delivered {
                life,
                shard,
                seq,
                id,
                number,
                sink: name,
            });
        }
        if mood == Mood::Failing || draw < 7 {
            return Outcome::Retry {
                after_ms: (draw % 3 == 0).then_some(200),
            };
        }
        let mut confirmed = self.book.confirmed.borrow_mut();
        confirmed.entry((id, name)).or_default().push(life);
        Outcome::Delivered
    }

    fn has(&self, delivered: Delivered) {
        let Delivered {
            number, sink, seq, ..
        } = delivered;
        self.trace
            .note(format_args!("{sink} has {number} (seq {seq})"));
        self.book.deliveries.borrow_mut().push(delivered);
    }
}

struct ShardSink {
    sinks: Rc<Sinks>,
    shard: u16,
    sink: usize,
}

impl Target for ShardSink {
    fn deliver<'a>(
        &'a self,
        envelope: &'a [u8],
        _replay: Option<ankusa_engine::replay::ReplayId>,
    ) -> Attempt<'a> {
        Box::pin(self.sinks.attempt(self.shard, self.sink, envelope))
    }
}

struct Table([Rc<ShardSink>; 2]);

impl SinkTable for Table {
    fn plan(&self, name: &SinkName) -> Option<Plan> {
        let at = SINKS
            .iter()
            .position(|sink| sink.as_bytes() == &*name.name)?;
        Some(Plan {
            target: Rc::clone(&self.0[at]) as Rc<dyn Target>,
            concurrency: 8,
            retry: RetryPolicy {
                base_ms: 20,
                max_ms: 2_000,
                attempts_max: if at == 1 { SECOND_ATTEMPTS_MAX } else { 60_000 },
                jitter: true,
            },
            timeout_ms: TIMEOUT_MS,
            paused: false,
            label: Default::default(),
        })
    }
}
