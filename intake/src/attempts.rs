//! The attempts a publisher has handed over: their tokens, floors, deadlines and bytes.
//!
//! Invariants: an attempt is answered in time exactly once (settled or expired), and afterwards at
//! most once more, by a confirm; its bytes are held until it is settled, not until it expires; a
//! key is never mistaken for a later attempt's (slot and generation). Pure; runs on a core, or on
//! the side thread that buries a client.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::log::{Answer, Class, Confirm, Failure};

/// The failure of an attempt whose deadline has passed.
pub(crate) const DEADLINE: Failure = Failure {
    class: Class::Unavailable,
    reason: "deadline",
};

/// Names one attempt: slot in the low half, generation in the high half. Never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key(pub(crate) u64);

impl Key {
    fn slot(self) -> usize {
        (self.0 & u64::from(u32::MAX)) as usize
    }

    fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

struct Attempt {
    generation: u32,
    live: bool,
    expired: bool,
    token: u64,
    floor: u64,
    handed_us: u64,
    value: Bytes,
}

#[derive(Default)]
pub(crate) struct Attempts {
    slots: Vec<Attempt>,
    free: Vec<u32>,
    /// Sorted by deadline; the head is dropped once it is settled.
    deadlines: VecDeque<(u64, Key)>,
    live: usize,
    bytes: usize,
    open: usize,
}

impl Attempts {
    /// Records an attempt; its bytes are kept until [`Attempts::settle`].
    pub(crate) fn add(
        &mut self,
        token: u64,
        floor: u64,
        handed_us: u64,
        deadline_us: u64,
        value: Bytes,
    ) -> Key {
        let slot = match self.free.pop() {
            Some(slot) => slot as usize,
            None => {
                self.slots.push(Attempt {
                    generation: 0,
                    live: false,
                    expired: false,
                    token: 0,
                    floor: 0,
                    handed_us: 0,
                    value: Bytes::new(),
                });
                self.slots.len() - 1
            }
        };
        self.live += 1;
        self.open += 1;
        self.bytes += value.len();
        let attempt = &mut self.slots[slot];
        attempt.generation = attempt.generation.wrapping_add(1).max(1);
        attempt.live = true;
        attempt.expired = false;
        attempt.token = token;
        attempt.floor = floor;
        attempt.handed_us = handed_us;
        attempt.value = value;
        let key = Key(u64::from(attempt.generation) << 32 | slot as u64);
        let at = match self.deadlines.back() {
            Some((last, _)) if *last > deadline_us => {
                self.deadlines.partition_point(|(d, _)| *d <= deadline_us)
            }
            _ => self.deadlines.len(),
        };
        self.deadlines.insert(at, (deadline_us, key));
        key
    }

    fn get(&mut self, key: Key) -> Option<&mut Attempt> {
        self.slots
            .get_mut(key.slot())
            .filter(|a| a.live && a.generation == key.generation())
    }

    /// The client is done with the attempt. What to tell the caller, if anything.
    pub(crate) fn settle(
        &mut self,
        key: Key,
        outcome: Result<Option<u64>, Failure>,
    ) -> Option<Answer> {
        let attempt = self.get(key)?;
        attempt.live = false;
        let (token, floor, expired) = (attempt.token, attempt.floor, attempt.expired);
        let value = std::mem::take(&mut attempt.value);
        self.bytes -= value.len();
        self.live -= 1;
        self.open -= usize::from(!expired);
        self.free.push(key.slot() as u32);
        while let Some((_, head)) = self.deadlines.front().copied() {
            if self.get(head).is_some() {
                break;
            }
            self.deadlines.pop_front();
        }
        match outcome {
            Ok(position) => Some(Answer::Confirmed {
                token,
                confirm: Confirm { position, floor },
                late: expired,
            }),
            Err(failure) => (!expired).then_some(Answer::Failed { token, failure }),
        }
    }

    /// Answers every attempt whose deadline has passed; the client still holds them.
    pub(crate) fn expire(&mut self, now_us: u64, out: &mut Vec<Answer>) {
        while let Some((deadline, key)) = self.deadlines.front().copied() {
            if deadline > now_us {
                break;
            }
            self.deadlines.pop_front();
            let Some(attempt) = self.get(key) else {
                continue;
            };
            attempt.expired = true;
            let token = attempt.token;
            self.open -= 1;
            out.push(Answer::Failed {
                token,
                failure: DEADLINE,
            });
        }
    }

    /// Every attempt not yet answered, answered with one failure: its client is given up. The
    /// bytes stay held.
    #[cfg_attr(
        not(feature = "kafka"),
        expect(dead_code, reason = "Kafka gives clients up")
    )]
    pub(crate) fn give_up(&mut self, failure: Failure, out: &mut Vec<Answer>) {
        for attempt in self.slots.iter_mut().filter(|a| a.live && !a.expired) {
            attempt.expired = true;
            out.push(Answer::Failed {
                token: attempt.token,
                failure,
            });
        }
        self.open = 0;
        self.deadlines.clear();
    }

    /// When the oldest attempt that is not answered was handed over.
    #[cfg_attr(
        not(feature = "kafka"),
        expect(dead_code, reason = "Kafka asks for metadata")
    )]
    pub(crate) fn oldest_open_us(&self) -> Option<u64> {
        // Deadlines are in order of handing over as long as the timeout is one; near enough.
        self.deadlines.iter().find_map(|(_, key)| {
            let attempt = self.slots.get(key.slot())?;
            (attempt.live && attempt.generation == key.generation()).then_some(attempt.handed_us)
        })
    }

    /// Attempts that the client still holds, and their bytes.
    pub(crate) fn held(&self) -> (usize, usize) {
        (self.live, self.bytes)
    }
}

#[cfg(test)]
mod tests;
