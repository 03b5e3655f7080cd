//! Dedupe claims: which hook holds a key, and what a retry with the same key is told.
//!
//! A claim is two-phase: *pending* while its commit is open, then *promoted* (the key is now
//! answered with the hook's id until it expires) or *released* (as if it had never been).
//! A claim is promoted only after its hook is durable in every place the mode promises; the
//! caller guarantees that, this module guarantees that no two hooks hold one key at once.
//!
//! Pure: functions of the table and the time given. Each core owns the keys that hash to it and
//! runs one [`Claims`]; requests for them come from the core itself or over the mesh. Durable
//! rows live in the stores of the shards, not here.

pub mod desk;
mod table;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};

use ankusa_wal::HookId;

pub use desk::{Claim, ClaimMessage, Claimed, Desk};
pub use table::{KeyTable, ROW_BYTES};

/// 128-bit keyed hash of (tenant, source, key).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyHash(pub [u8; 16]);

impl KeyHash {
    /// The core that owns this key in memory, of `cores`.
    pub fn owner(self, cores: usize) -> usize {
        let mut low = [0u8; 8];
        low.copy_from_slice(&self.0[..8]);
        (u64::from_le_bytes(low) % cores.max(1) as u64) as usize
    }

    fn table_hash(self) -> u64 {
        let mut high = [0u8; 8];
        high.copy_from_slice(&self.0[8..]);
        u64::from_le_bytes(high)
    }
}

/// Who waits for an answer: a core and a number unique among that core's open questions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    /// The core that asked.
    pub core: u16,
    /// Its number for the question.
    pub number: u64,
}

/// What a claimant is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The key is yours: commit, then promote or release.
    Granted,
    /// The key is held by a hook that is committed in every place.
    Duplicate(HookId),
    /// The key is held by a hook with one half missing: not an ack, not a new hook.
    Carried,
    /// Too many requests wait for this key.
    Crowded,
}

/// An answer and to whom it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The claimant.
    pub to: Ticket,
    /// The hook it asked for.
    pub id: HookId,
    /// What it is told.
    pub answer: Answer,
}

/// At most this many requests wait for one pending key; the next is told [`Answer::Crowded`].
pub const WAITERS_MAX: usize = 1024;

#[derive(Debug)]
struct Waiter {
    ticket: Ticket,
    id: HookId,
}

#[derive(Debug)]
struct Pending {
    holder: HookId,
    /// One half of the commit failed: the reconciler has it, retries are told so.
    carried: bool,
    waiters: VecDeque<Waiter>,
}

/// The claims that one core owns.
#[derive(Debug)]
pub struct Claims {
    rows: KeyTable,
    pending: HashMap<KeyHash, Pending, foldhash::fast::RandomState>,
}

impl Claims {
    /// An empty table that keeps at most `keys_max` promoted keys; the oldest goes first.
    pub fn new(keys_max: usize) -> Claims {
        Claims {
            rows: KeyTable::new(keys_max),
            pending: HashMap::default(),
        }
    }

    /// Asks for `key` on behalf of the hook `id`. `None`: the answer comes later, as a [`Reply`]
    /// of [`Claims::promote`], [`Claims::release`] or [`Claims::carry`].
    pub fn claim(
        &mut self,
        key: KeyHash,
        id: HookId,
        ticket: Ticket,
        now_s: u32,
    ) -> Option<Answer> {
        if let Some(pending) = self.pending.get_mut(&key) {
            if pending.carried {
                return Some(Answer::Carried);
            }
            if pending.waiters.len() >= WAITERS_MAX {
                return Some(Answer::Crowded);
            }
            pending.waiters.push_back(Waiter { ticket, id });
            return None;
        }
        if let Some(original) = self.rows.get(key, now_s) {
            return Some(Answer::Duplicate(original));
        }
        self.pending.insert(
            key,
            Pending {
                holder: id,
                carried: false,
                waiters: VecDeque::new(),
            },
        );
        Some(Answer::Granted)
    }

    /// The hook `id` is committed everywhere: its key is answered with it until `expiry_s`.
    /// A key that another hook holds by now is left alone (a stuck record that completes late
    /// never overwrites). Returns whether the row was written.
    pub fn promote(
        &mut self,
        key: KeyHash,
        id: HookId,
        expiry_s: u32,
        now_s: u32,
        out: &mut Vec<Reply>,
    ) -> bool {
        match self.pending.get(&key) {
            Some(pending) if pending.holder != id => return false,
            Some(_) => {
                if let Some(pending) = self.pending.remove(&key) {
                    out.extend(pending.waiters.iter().map(|w| Reply {
                        to: w.ticket,
                        id: w.id,
                        answer: Answer::Duplicate(id),
                    }));
                }
            }
            None => {
                if self.rows.get(key, now_s).is_some_and(|held| held != id) {
                    return false;
                }
            }
        }
        self.rows.insert(key, id, expiry_s, now_s);
        true
    }

    /// The hook `id` left nothing behind: its key is free, and the first waiter gets it.
    /// Not the holder: nothing happens.
    pub fn release(&mut self, key: KeyHash, id: HookId, out: &mut Vec<Reply>) {
        let Some(pending) = self.pending.get_mut(&key) else {
            return;
        };
        if pending.holder != id {
            return;
        }
        match pending.waiters.pop_front() {
            Some(next) => {
                pending.holder = next.id;
                pending.carried = false;
                out.push(Reply {
                    to: next.ticket,
                    id: next.id,
                    answer: Answer::Granted,
                });
            }
            None => {
                self.pending.remove(&key);
            }
        }
    }

    /// The hook `id` is not known to be in every place (any more): its key is free, pending or
    /// promoted. A key that another hook holds is left alone.
    pub fn give_up(&mut self, key: KeyHash, id: HookId, now_s: u32, out: &mut Vec<Reply>) {
        if self.rows.get(key, now_s) == Some(id) {
            self.rows.remove(key);
        }
        self.release(key, id, out);
    }

    /// One half of `id`'s commit failed and is being completed: whoever waits, and whoever comes,
    /// is told so until it is promoted or released.
    pub fn carry(&mut self, key: KeyHash, id: HookId, out: &mut Vec<Reply>) {
        let Some(pending) = self.pending.get_mut(&key) else {
            return;
        };
        if pending.holder != id {
            return;
        }
        pending.carried = true;
        out.extend(pending.waiters.drain(..).map(|w| Reply {
            to: w.ticket,
            id: w.id,
            answer: Answer::Carried,
        }));
    }

    /// A waiter gave up (its request's deadline passed). If its grant is already on the way, the
    /// asker must release when it arrives.
    pub fn cancel(&mut self, key: KeyHash, ticket: Ticket) {
        if let Some(pending) = self.pending.get_mut(&key) {
            pending.waiters.retain(|w| w.ticket != ticket);
        }
    }

    /// A durable row read at boot. Of two rows of a key the newer hook's stays (ids rise with
    /// time): the older one gave its claim up, or the newer would not have been taken. Else the
    /// older, given up once more at this boot, would take the key of an acked hook with it.
    ///
    /// An expiry of 0 says that the key no longer stands for this hook (a repair gave it up).
    pub fn restore(&mut self, key: KeyHash, id: HookId, expiry_s: u32, now_s: u32) {
        if expiry_s == 0 && self.rows.get(key, now_s) == Some(id) {
            self.rows.remove(key);
        }
        let is_newer = self.rows.get(key, now_s).is_none_or(|held| held < id);
        if expiry_s > now_s && is_newer {
            self.rows.insert(key, id, expiry_s, now_s);
        }
    }

    /// Drops what has expired, looking at no more than `rows_max` rows.
    pub fn sweep(&mut self, now_s: u32, rows_max: usize) {
        self.rows.sweep(now_s, rows_max);
    }

    /// Promoted keys held now, live or not yet swept.
    pub fn key_count(&self) -> usize {
        self.rows.len()
    }

    /// Keys dropped because `keys_max` was reached: each can cost a duplicate, never a hook.
    pub fn evicted_count(&self) -> u64 {
        self.rows.evicted_count()
    }

    /// Open claims.
    pub fn pending_count(&self) -> usize {
        self.pending.len()
    }

    /// Bytes held by promoted keys.
    pub fn memory_bytes(&self) -> usize {
        self.rows.memory_bytes()
    }
}
