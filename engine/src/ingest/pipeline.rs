//! The pipeline itself: the handler of the ingest port.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use ankusa_net::http1::{Doubt, Handler, Head, HeadDecision, Refusal, Request, Response};
use ankusa_wal::hook::Verification;
use ankusa_wal::{Disk, HookId, Host};

use super::answers;
use super::fingerprint;
use super::item::{Dedupe, IngestItem};
use super::mint::Minter;
use super::sources::{Route, Source, SourceTable};
use crate::claims::{Claimed, Desk, KeyHash};
use crate::commit::driver::{Commit, NotTaken};
use crate::commit::{Item, Verdict};
use crate::config::OnVerifyFailure;
use crate::dedupe::{DedupeKey, Extraction, ScanStep, dedupe_hash};
use crate::metrics::IngestOutcome as Outcome;
use crate::verify::{Lookup, Reason, Verified, slack_challenge};

/// Bodies up to this are verified and scanned without a yield.
const SHORT_BODY_BYTES: usize = 64 * 1024;

const NOT_ALLOWED: &str = "method_not_allowed";

/// What the pipeline is told once.
#[derive(Clone, Copy, Debug)]
pub struct IngestLimits {
    /// Most bytes of body.
    pub body_bytes_max: u64,
    /// `Retry-After` of `intake_unavailable`, seconds.
    pub intake_retry_after_s: u64,
}

/// Where the pipeline's counts go.
pub trait Observer {
    /// A request to a source ended so, this long after its body was there.
    fn ended(&self, source_index: usize, outcome: Outcome, micros: u64);
    /// A hook was committed, this long after it was queued.
    fn committed(&self, micros: u64);
    /// A verification failed.
    fn verify_failed(&self, source_index: usize, reason: Reason);
    /// A request was refused before its source judged it, or by the intake: the word says why.
    fn refused(&self, reason: &'static str);
    /// Of a request that was refused as malformed: what is in doubt.
    fn malformed(&self, doubt: Doubt);
    /// A duplicate had another body than the hook that it repeats.
    fn mismatched(&self);
}

/// What `GET /ready` answers with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Readiness {
    /// Whether traffic is welcome.
    pub ready: bool,
    /// The JSON body.
    pub body: String,
}

/// Asked by `GET /ready`.
pub type ReadyProbe = Box<dyn Fn() -> ankusa_wal::host::LocalFuture<Readiness>>;

/// The pipeline of one core.
pub struct Ingest<D: Disk> {
    host: Rc<dyn Host>,
    sources: RefCell<Rc<SourceTable>>,
    desk: Rc<Desk>,
    commit: Commit<D>,
    minter: Minter,
    hash_key: [u8; 16],
    limits: Cell<IngestLimits>,
    observer: Rc<dyn Observer>,
    health_body: &'static str,
    ready: ReadyProbe,
    congested: Box<dyn Fn() -> bool>,
    closing: Cell<bool>,
}

/// What an [`Ingest`] is made of.
pub struct IngestParts<D: Disk> {
    /// Time and tasks.
    pub host: Rc<dyn Host>,
    /// The sources.
    pub sources: Rc<SourceTable>,
    /// The core's claims desk.
    pub desk: Rc<Desk>,
    /// The home shard's commit.
    pub commit: Commit<D>,
    /// The core's number.
    pub core: u8,
    /// The store's hash key.
    pub hash_key: [u8; 16],
    /// Limits.
    pub limits: IngestLimits,
    /// Counts.
    pub observer: Rc<dyn Observer>,
    /// The body of `GET /health`.
    pub health_body: &'static str,
    /// Asked by `GET /ready`.
    pub ready: ReadyProbe,
    /// Whether the way to other cores is congested: no new claims then.
    pub congested: Box<dyn Fn() -> bool>,
}

/// What the head of a request led to.
pub enum Admitted {
    /// A hook for this source.
    Hook(Rc<Source>),
    /// `GET /health`.
    Health,
    /// `GET /ready`.
    Ready,
}

impl<D: Disk> Ingest<D> {
    /// Puts the pipeline together.
    pub fn new(parts: IngestParts<D>) -> Ingest<D> {
        Ingest {
            host: parts.host,
            sources: RefCell::new(parts.sources),
            desk: parts.desk,
            commit: parts.commit,
            minter: Minter::new(parts.core),
            hash_key: parts.hash_key,
            limits: Cell::new(parts.limits),
            observer: parts.observer,
            health_body: parts.health_body,
            ready: parts.ready,
            congested: parts.congested,
            closing: Cell::new(false),
        }
    }

    /// Puts new sources in place (a reload); requests in flight keep theirs.
    pub fn set_sources(&self, sources: Rc<SourceTable>) {
        *self.sources.borrow_mut() = sources;
    }

    /// Other limits from now on (a reload).
    pub fn set_limits(&self, limits: IngestLimits) {
        self.limits.set(limits);
    }

    /// From now on `GET /ready` says no, so that a balancer drains the node.
    pub fn close(&self) {
        self.closing.set(true);
    }

    fn refuse(&self, word: &'static str, response: Response) -> HeadDecision<Admitted> {
        self.observer.refused(word);
        HeadDecision::Refuse(response)
    }

    async fn hook(&self, request: Request, source: Rc<Source>) -> Response {
        let started_us = self.host.mono_us();
        let index = source.index;
        let (outcome, response) = self.decide(request, source, started_us).await;
        let micros = self.host.mono_us().saturating_sub(started_us);
        if let Some(outcome) = outcome {
            self.observer.ended(index, outcome, micros);
        }
        response
    }

    async fn decide(
        &self,
        request: Request,
        source: Rc<Source>,
        started_us: u64,
    ) -> (Option<Outcome>, Response) {
        let received_at_ms = self.host.wall_ms();
        let verification = match self.verify(&request, &source, received_at_ms / 1000).await {
            Ok(verified) if verified.signed => Verification::Verified,
            Ok(_) => Verification::None,
            Err(reason) => {
                self.observer.verify_failed(source.index, reason);
                if source.on_verify_failure != OnVerifyFailure::AcceptFlag {
                    return (
                        Some(Outcome::Rejected),
                        answers::verification_failed(reason),
                    );
                }
                Verification::Flagged
            }
        };
        if source.answers_challenge
            && verification == Verification::Verified
            && let Some(text) = slack_challenge(&request.body)
        {
            return (None, answers::challenge(text));
        }
        if let Err(refusal) = self.commit.admit() {
            let outcome = match refusal {
                ankusa_wal::Refusal::Full => Outcome::StoreFull,
                _ => Outcome::StoreUnavailable,
            };
            return self.unavailable(outcome);
        }
        let random = self.random_for(&source, &request.body);
        let id = self.minter.mint(received_at_ms, random);
        // A flagged hook has no key: whoever cannot sign must not be able to shadow who can.
        let dedupe = match verification {
            Verification::Flagged => None,
            _ => self.dedupe(&request, &source).await,
        };
        let claim = match &dedupe {
            None => None,
            Some(dedupe) => match self.claim(dedupe.hash, id, started_us).await {
                Ok(claim) => Some(claim),
                Err(answer) => return answer,
            },
        };
        let item = Rc::new(IngestItem {
            id,
            request,
            received_at_ms,
            source,
            dedupe,
            verification,
            claim,
            desk: Rc::clone(&self.desk),
            log: self.commit.log().cloned(),
            host: Rc::clone(&self.host),
            verdict: Cell::new(None),
            waker: RefCell::new(None),
        });
        let queued_us = self.host.mono_us();
        let submitted = self
            .commit
            .submit(Rc::clone(&item) as Rc<dyn Item>, started_us);
        if let Err(refused) = submitted {
            // Nothing was written for it: the key is free.
            if let Some(claim) = item.claim {
                self.desk.release(claim);
            }
            let NotTaken::Intake(reason) = refused else {
                return self.unavailable(Outcome::Overload);
            };
            self.observer.refused(reason.word());
            return self.unavailable(Outcome::IntakeUnavailable);
        }
        match item.verdict().await {
            Verdict::Committed => {
                let micros = self.host.mono_us().saturating_sub(queued_us);
                self.observer.committed(micros);
                (Some(Outcome::Committed), answers::accepted(id))
            }
            Verdict::Overload => self.unavailable(Outcome::Overload),
            Verdict::StoreUnavailable => self.unavailable(Outcome::StoreUnavailable),
            Verdict::IntakeUnavailable => self.unavailable(Outcome::IntakeUnavailable),
        }
    }

    async fn claim(
        &self,
        key: KeyHash,
        id: HookId,
        started_us: u64,
    ) -> Result<crate::claims::Claim, (Option<Outcome>, Response)> {
        if (self.congested)() {
            return Err(self.unavailable(Outcome::Overload));
        }
        let now_s = (self.host.wall_ms() / 1000) as u32;
        let asked = self.desk.claim(key, id, now_s, started_us);
        // Boxed: most connections never wait for a claim, and its future would be in all of them.
        match Box::pin(asked).await {
            Claimed::Granted(claim) => Ok(claim),
            Claimed::Duplicate(original) => {
                if fingerprint::differ(original, id) {
                    self.observer.mismatched();
                }
                Err((Some(Outcome::Duplicate), answers::duplicate(original)))
            }
            Claimed::Carried => {
                self.observer.refused("pending_dedupe");
                Err(self.unavailable(Outcome::IntakePending))
            }
            Claimed::Crowded | Claimed::TimedOut => Err(self.unavailable(Outcome::Overload)),
        }
    }

    /// Random bits for an id; those of a hook that may have a key tell its body from another.
    fn random_for(&self, source: &Source, body: &[u8]) -> u64 {
        let random = self.host.random();
        match source.dedupe {
            Some(_) => fingerprint::mix(random, &self.hash_key, body),
            None => random,
        }
    }

    fn unavailable(&self, outcome: Outcome) -> (Option<Outcome>, Response) {
        let response = answers::unavailable(outcome, self.limits.get().intake_retry_after_s);
        (Some(outcome), response)
    }

    async fn verify(
        &self,
        request: &Request,
        source: &Source,
        now_s: u64,
    ) -> Result<Verified, Reason> {
        let head = request.head();
        let lookup = |name: &str| Lookup::of(name, head.headers());
        let mut check = source.verifier.begin(lookup, now_s)?;
        if request.body.len() <= SHORT_BODY_BYTES {
            check.update(&request.body);
        } else if !check.is_decided() {
            for chunk in request.body.chunks(check.chunk_bytes()) {
                check.update(chunk);
                self.breathe().await;
            }
        }
        while check.step() {
            self.breathe().await;
        }
        check.finish()
    }

    async fn dedupe(&self, request: &Request, source: &Source) -> Option<Dedupe> {
        let (plan, ttl_s) = source.dedupe.as_ref()?;
        let head = request.head();
        let key = match plan.begin(|name| Lookup::of(name, head.headers())) {
            Extraction::Key(key) => Some(key),
            Extraction::Absent => None,
            Extraction::Scan(mut scan) => loop {
                match scan.scan_step(&request.body) {
                    ScanStep::Found(value) => break DedupeKey::of_scalar(value),
                    ScanStep::Absent(_) => break None,
                    ScanStep::Pending => self.breathe().await,
                }
            },
        }?;
        let hash = dedupe_hash(&self.hash_key, &source.tenant, &source.name, key.as_bytes());
        Some(Dedupe {
            key,
            hash: KeyHash(hash),
            ttl_s: *ttl_s,
        })
    }

    /// Lets others run when this task has used up its slice.
    async fn breathe(&self) {
        if self.host.must_yield() {
            self.host.yield_now().await;
        }
    }
}

impl<D: Disk> Handler for Ingest<D> {
    type Admitted = Admitted;

    fn on_head(&self, head: &Head<'_>) -> HeadDecision<Admitted> {
        let limit = self.limits.get().body_bytes_max;
        let (admitted, bytes_max) = match self.sources.borrow().route(head.path()) {
            Route::NotFound => return self.refuse("not_found", answers::not_found()),
            Route::Health | Route::Ready if !matches!(head.method(), b"GET" | b"HEAD") => {
                return self.refuse(NOT_ALLOWED, answers::method_not_allowed("GET, HEAD"));
            }
            Route::Health => (Admitted::Health, 0),
            Route::Ready => (Admitted::Ready, 0),
            _ if head.method() != b"POST" => {
                return self.refuse(NOT_ALLOWED, answers::method_not_allowed("POST"));
            }
            _ if head.content_length().is_some_and(|n| n > limit) => {
                return self.refuse("payload_too_large", answers::payload_too_large(limit));
            }
            Route::UnknownSource => {
                return self.refuse("unknown_source", answers::unknown_source());
            }
            Route::Source(source) => (Admitted::Hook(source), limit),
        };
        HeadDecision::Body {
            bytes_max,
            admitted,
        }
    }

    async fn handle(&self, request: Request, admitted: Admitted) -> Response {
        match admitted {
            Admitted::Hook(source) => self.hook(request, source).await,
            Admitted::Health => Response::fixed(200, self.health_body),
            Admitted::Ready => {
                let readiness = (self.ready)().await;
                let ready = readiness.ready && !self.closing.get();
                let status = if ready { 200 } else { 503 };
                let response = Response::json(status, format_args!("{}", readiness.body));
                if ready {
                    response
                } else {
                    response.retry_after(1)
                }
            }
        }
    }

    fn refusal(&self, refusal: Refusal) -> Response {
        match refusal {
            Refusal::Malformed(doubt) => {
                self.observer.refused("malformed_request");
                self.observer.malformed(doubt);
            }
            Refusal::HeadTooLarge => self.observer.refused("headers_too_large"),
            Refusal::BodyTooLarge { .. } => self.observer.refused("payload_too_large"),
            Refusal::Timeout => self.observer.refused("request_timeout"),
            Refusal::BodyCut => self.observer.refused("body_read_failed"),
            Refusal::Overload => self.observer.refused("overload"),
        }
        answers::refusal(refusal)
    }
}
