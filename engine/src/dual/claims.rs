//! The seam to whoever keeps dedupe claims: the core's [`Desk`] under `dedupe.scope: node`, a store
//! shared by the fleet otherwise.
//!
//! Runs on shard cores; no call waits.

use crate::claims::{Claim, Desk};

/// Where claims are settled.
pub trait ClaimStore {
    /// One half of the claim's hook is missing: who waits, and who comes, is told so.
    fn carry(&self, claim: Claim);

    /// The claim is still needed. Asked for again and again where claims expire.
    fn renew(&self, claim: Claim);

    /// Its hook is committed in both places: the key is answered with it until `expiry_s`. A key
    /// that another hook holds by now is left alone.
    fn promote(&self, claim: Claim, expiry_s: u32, now_s: u32);

    /// The hook is stuck: its key is free, whether its claim is pending or was promoted (it came from
    /// the store at a boot, or the log lost it). A key that another hook holds is left alone.
    fn give_up(&self, claim: Claim, now_s: u32);
}

impl ClaimStore for Desk {
    fn carry(&self, claim: Claim) {
        Desk::carry(self, claim);
    }

    fn renew(&self, _claim: Claim) {
        // A claim of this node ends with the process.
    }

    fn promote(&self, claim: Claim, expiry_s: u32, now_s: u32) {
        Desk::promote(self, claim, expiry_s, now_s);
    }

    fn give_up(&self, claim: Claim, now_s: u32) {
        Desk::give_up(self, claim, now_s);
    }
}

/// A claim that a carried record keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// The claim.
    pub claim: Claim,
    /// Until when its key is answered once it is promoted, seconds since 1970.
    pub expiry_s: u32,
}

/// The answer to a claim handed over to be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// It is held, renewed, and settled with its record.
    Held,
    /// The record is complete already: promote it at once.
    Completed,
}
