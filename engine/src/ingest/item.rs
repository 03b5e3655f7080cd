//! One verified request on its way through the commit: the single allocation it shares with the
//! committer.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use ankusa_net::http1::{Head, Request};
use ankusa_wal::hook::{Headers, HookDraft, HookExtra, Verification};
use ankusa_wal::{HookId, Host, Seq, mutations};

use super::headers::{HopByHop, is_kept};
use super::sources::Source;
use crate::claims::{Claim, Desk, KeyHash};
use crate::commit::driver::LogHalf;
use crate::commit::{Item, Remains, Verdict};
use crate::dedupe::DedupeKey;
use crate::dual::{Held, Hold, shard_log};

/// Bytes of a record beside the head, the body and the names: its fixed parts, rounded up.
const RECORD_FIXED_BYTES: usize = 256;

/// A hook's dedupe key and its time to live.
pub struct Dedupe {
    /// The key.
    pub key: DedupeKey,
    /// Its keyed hash.
    pub hash: KeyHash,
    /// Seconds.
    pub ttl_s: u32,
}

/// A hook between its claim and its answer.
pub struct IngestItem {
    /// Its id.
    pub id: HookId,
    pub(super) request: Request,
    pub(super) received_at_ms: u64,
    pub(super) source: Rc<Source>,
    pub(super) dedupe: Option<Dedupe>,
    pub(super) verification: Verification,
    pub(super) claim: Option<Claim>,
    pub(super) desk: Rc<Desk>,
    /// The log half of its shard's commit, where the mode has one.
    pub(super) log: Option<Rc<dyn LogHalf>>,
    pub(super) host: Rc<dyn Host>,
    pub(super) verdict: Cell<Option<Verdict>>,
    pub(super) waker: RefCell<Option<Waker>>,
}

impl IngestItem {
    /// Completes with what the request is told.
    ///
    /// # Cancel safety
    /// Dropping it changes nothing: the commit goes on and settles the claim.
    pub async fn verdict(&self) -> Verdict {
        poll_fn(|cx| match self.verdict.get() {
            Some(verdict) => Poll::Ready(verdict),
            None => {
                let mut waker = self.waker.borrow_mut();
                if !waker.as_ref().is_some_and(|w| w.will_wake(cx.waker())) {
                    *waker = Some(cx.waker().clone());
                }
                Poll::Pending
            }
        })
        .await
    }

    fn expiry_s(&self) -> u32 {
        let ttl_s = self.dedupe.as_ref().map_or(0, |d| d.ttl_s);
        ((self.received_at_ms / 1000) as u32).saturating_add(ttl_s)
    }

    fn promote(&self, claim: Claim) {
        let now_s = (self.host.wall_ms() / 1000) as u32;
        self.desk.promote(claim, self.expiry_s(), now_s);
    }

    /// The record is carried: so is its claim, unless the record was completed meanwhile.
    fn hold(&self, claim: Claim, has_half: bool) {
        let expiry_s = self.expiry_s();
        let hold = match &self.log {
            Some(log) => {
                let held = Held { claim, expiry_s };
                shard_log::settle_carried(log.as_ref(), self.id, held, has_half)
            }
            // A record is carried only where there is a log.
            None => Hold::Held,
        };
        if mutations::is("release_on_half_failure") {
            self.desk.release(claim);
        } else if hold == Hold::Completed {
            self.promote(claim);
        }
    }

    fn tell(&self, verdict: Verdict) {
        if self.verdict.get().is_none() {
            self.verdict.set(Some(verdict));
            if let Some(waker) = self.waker.borrow_mut().take() {
                waker.wake();
            }
        }
    }
}

/// The headers that are stored. The one in which a source's own secret arrives is not, nor is what
/// the sender's `Connection` names: `Connection` itself is not kept, so nobody could tell later.
struct Kept<'a> {
    head: Head<'a>,
    credential: Option<&'a str>,
    hop_by_hop: HopByHop<'a>,
}

impl Headers for Kept<'_> {
    fn visit(&self, each: &mut dyn FnMut(&[u8], &[u8])) {
        for (name, value) in self.head.headers() {
            let is = |other: &str| name.eq_ignore_ascii_case(other.as_bytes());
            let is_dropped = self.credential.is_some_and(is) || self.hop_by_hop.names(name);
            if is_kept(name) && !is_dropped {
                each(name, value);
            }
        }
    }
}

impl Item for IngestItem {
    fn draft(&self, f: &mut dyn FnMut(&HookDraft<'_>)) {
        let head = self.request.head();
        let headers = Kept {
            head: self.request.head(),
            credential: self.source.verifier.credential_header(),
            hop_by_hop: HopByHop::of(head.headers()),
        };
        f(&HookDraft {
            id: self.id,
            received_at_ms: self.received_at_ms,
            tenant: &self.source.tenant,
            source: &self.source.name,
            method: head.method(),
            target: head.target(),
            headers: &headers,
            content_type: head.header("content-type").unwrap_or_default(),
            body: &self.request.body,
            dedupe_key: self.dedupe.as_ref().map(|d| d.key.as_bytes()),
            dedupe_ttl_s: self.dedupe.as_ref().map_or(0, |d| d.ttl_s),
            verification: self.verification,
            client: self.request.peer,
            extra: HookExtra {
                sinks: &self.source.sinks,
                dedupe_hash: self.dedupe.as_ref().map(|d| d.hash.0),
                archive: false,
                log: self.log.is_some() && self.wants_log(),
            },
        });
    }

    fn record_bytes(&self) -> usize {
        // IMPORTANT: an upper bound, or a group has no room for what it was begun for. In the head
        // a header takes three bytes beside its text at least, in the record eight.
        let head = self.request.head_bytes().len();
        let headers = self.request.head().headers().count();
        RECORD_FIXED_BYTES
            + head
            + 5 * headers
            + self.request.body.len()
            + self.source.tenant.len()
            + self.source.name.len()
            + 2 * self.source.sinks.len()
            + self.dedupe.as_ref().map_or(0, |d| d.key.as_bytes().len())
    }

    fn wants_log(&self) -> bool {
        !self.source.sinks.is_empty()
    }

    fn settle(&self, _seq: Seq, verdict: Verdict, remains: Remains) {
        if let Some(claim) = self.claim {
            match remains {
                Remains::Complete => self.promote(claim),
                Remains::Nothing => self.desk.release(claim),
                Remains::Undone => {}
                Remains::Carried { local, log } => self.hold(claim, local || log),
            }
        }
        self.tell(verdict);
    }

    fn cut(&self) {
        if let Some(claim) = self.claim {
            self.desk.release(claim);
        }
    }

    fn abandon(&self, verdict: Verdict) {
        self.tell(verdict);
    }
}
