//! The verifier of one source, and one request's way through it.
//!
//! Pure computation, on the core of the request; keys are prepared once, when the source is built.
//!
//! The order within a request: signature header, timestamp window, then the hash. A request out of
//! the window or without a readable signature costs no hash of its body.

use aws_lc_rs::{constant_time, digest, hmac, signature};

use super::encoding::{SIGNATURE_BYTES_MAX, decode_base64};
use super::header::Lookup;
use super::plan::{Plan, Reading};
use super::{Reason, Verified};

/// Hashed between two chances to yield, over all secrets: about a third of a millisecond.
const SLICE_BYTES: usize = 256 * 1024;

/// Decides whether a request comes from the holder of a source's secret.
pub struct Verifier {
    pub(super) scheme: &'static str,
    pub(super) kind: Kind,
}

pub(super) enum Kind {
    /// Accept everything: the operator wrote `none`.
    Open,
    /// Refuse everything: the secret is not usable.
    Refusing,
    Signed {
        plans: Vec<Plan>,
        keys: Keys,
    },
    Bearer {
        header: Box<str>,
        /// Before the token; empty for none.
        word: Box<[u8]>,
        tokens: Vec<digest::Digest>,
    },
    Basic {
        credentials: Vec<digest::Digest>,
    },
}

pub(super) enum Keys {
    Hmac(Vec<hmac::Key>),
    Ed25519(Vec<signature::ParsedPublicKey>),
}

impl Keys {
    fn signature_bytes(&self) -> usize {
        match self {
            Keys::Hmac(keys) => keys.first().map_or(0, |k| k.algorithm().tag_len()),
            Keys::Ed25519(_) => SIGNATURE_BYTES_MAX,
        }
    }

    fn begin(&self, reading: Reading) -> Result<Check<'_>, Reason> {
        Ok(Check(match self {
            Keys::Hmac(keys) => {
                let mut contexts: Vec<_> = keys.iter().map(hmac::Context::with_key).collect();
                contexts.iter_mut().for_each(|c| c.update(&reading.before));
                State::Hmac { contexts, reading }
            }
            Keys::Ed25519(keys) => State::Ed25519 {
                keys,
                reading,
                is_whole: false,
                tried: 0,
                matched: None,
            },
        }))
    }
}

impl Verifier {
    /// What stands in for a source whose secret cannot be used: refuses everything as
    /// `bad_secret`, so that a source from the admin API whose key file went missing fails closed.
    pub fn refusing(scheme: &'static str) -> Verifier {
        Verifier {
            scheme,
            kind: Kind::Refusing,
        }
    }

    /// The word of the scheme.
    pub fn scheme(&self) -> &'static str {
        self.scheme
    }

    /// The header in which the secret itself arrives, lower case: never to be stored or passed on.
    pub fn credential_header(&self) -> Option<&str> {
        match &self.kind {
            Kind::Bearer { header, .. } => Some(header),
            Kind::Basic { .. } => Some("authorization"),
            Kind::Open | Kind::Refusing | Kind::Signed { .. } => None,
        }
    }

    /// Everything that can be said before the body is hashed. `now_s` is the time of receipt, also
    /// when a quarantined hook is looked at again later.
    pub fn begin<'v, 'h>(
        &'v self,
        headers: impl Fn(&str) -> Lookup<'h>,
        now_s: u64,
    ) -> Result<Check<'v>, Reason> {
        let passed = |signed, secret_index| {
            Ok(Check(State::Passed(Verified {
                signed,
                secret_index,
                timestamp_s: None,
            })))
        };
        match &self.kind {
            Kind::Open => passed(false, 0),
            Kind::Refusing => Err(Reason::BadSecret),
            Kind::Bearer {
                header,
                word,
                tokens,
            } => {
                let token = credentials(headers(header).required()?, word)?;
                passed(true, position(tokens, &sha256(&[token]))?)
            }
            Kind::Basic { credentials: known } => {
                let encoded = credentials(headers("authorization").required()?, b"basic")?;
                let pair = decode_base64(encoded).ok_or(Reason::MalformedSignature)?;
                passed(true, position(known, &sha256(&[&pair]))?)
            }
            Kind::Signed { plans, keys } => {
                let present = |plan: &&Plan| headers(&plan.header) != Lookup::Absent;
                let plan = plans.iter().find(present).ok_or(Reason::MissingSignature)?;
                keys.begin(plan.read(keys.signature_bytes(), headers, now_s)?)
            }
        }
    }

    /// Verifies a whole body at once: for short bodies and for work off the request path.
    pub fn verify<'h>(
        &self,
        headers: impl Fn(&str) -> Lookup<'h>,
        body: &[u8],
        now_s: u64,
    ) -> Result<Verified, Reason> {
        let mut check = self.begin(headers, now_s)?;
        check.update(body);
        check.finish()
    }
}

/// One request under verification: fed the body in order, then asked.
///
/// Dropping it costs nothing and means nothing.
pub struct Check<'v>(State<'v>);

enum State<'v> {
    Passed(Verified),
    Hmac {
        contexts: Vec<hmac::Context>,
        reading: Reading,
    },
    /// Ed25519 reads its message twice, so the signed string has to be put together in
    /// `reading.before`: one copy of the body.
    Ed25519 {
        keys: &'v [signature::ParsedPublicKey],
        reading: Reading,
        is_whole: bool,
        /// Pairs of a key and a signature that were looked at.
        tried: usize,
        matched: Option<usize>,
    },
}

impl Check<'_> {
    /// How much body to feed between two yields.
    pub fn chunk_bytes(&self) -> usize {
        match &self.0 {
            State::Hmac { contexts, .. } => SLICE_BYTES / contexts.len().max(1),
            _ => SLICE_BYTES,
        }
    }

    /// True when the answer does not depend on the body, so that feeding it can be skipped.
    pub fn is_decided(&self) -> bool {
        matches!(self.0, State::Passed(_))
    }

    /// The next bytes of the body, exactly as received.
    pub fn update(&mut self, body: &[u8]) {
        match &mut self.0 {
            State::Passed(_) => {}
            State::Hmac { contexts, .. } => contexts.iter_mut().for_each(|c| c.update(body)),
            State::Ed25519 { reading, .. } => reading.before.extend_from_slice(body),
        }
    }

    /// Once the whole body was fed: the next piece of the work that [`Check::finish`] would do at
    /// once; false when there is none. Ed25519 reads the body for every key and every signature,
    /// and whoever sends the request chooses how many of those there are.
    pub fn step(&mut self) -> bool {
        let State::Ed25519 {
            keys,
            reading,
            is_whole,
            tried,
            matched,
        } = &mut self.0
        else {
            return false;
        };
        if !std::mem::replace(is_whole, true) {
            reading.before.extend_from_slice(&reading.after);
        }
        let count = reading.candidates.iter().count().max(1);
        let Some(key) = keys.get(*tried / count).filter(|_| matched.is_none()) else {
            return false;
        };
        if let Some(candidate) = reading.candidates.iter().nth(*tried % count)
            && key.verify_sig(&reading.before, candidate).is_ok()
        {
            *matched = Some(*tried / count);
        }
        *tried += 1;
        true
    }

    /// The answer, once the whole body was fed.
    pub fn finish(mut self) -> Result<Verified, Reason> {
        while self.step() {}
        let (matched, timestamp_s) = match self.0 {
            State::Passed(verified) => return Ok(verified),
            State::Hmac { contexts, reading } => {
                let mut matched = None;
                for (secret_index, mut context) in contexts.into_iter().enumerate() {
                    context.update(&reading.after);
                    let tag = context.sign();
                    for candidate in reading.candidates.iter() {
                        let equal = constant_time::verify_slices_are_equal(tag.as_ref(), candidate);
                        matched = matched.or(equal.is_ok().then_some(secret_index));
                    }
                }
                (matched, reading.timestamp_s)
            }
            State::Ed25519 {
                reading, matched, ..
            } => (matched, reading.timestamp_s),
        };
        let secret_index = matched.ok_or(Reason::NoMatch)?;
        Ok(Verified {
            signed: true,
            secret_index,
            timestamp_s,
        })
    }
}

/// What follows the scheme's word; the whole value when there is no word.
fn credentials<'h>(value: &'h [u8], scheme: &[u8]) -> Result<&'h [u8], Reason> {
    if scheme.is_empty() {
        return Ok(value);
    }
    let (word, rest) = value
        .split_at_checked(scheme.len())
        .ok_or(Reason::BadScheme)?;
    if !word.eq_ignore_ascii_case(scheme) || !(rest.is_empty() || rest.starts_with(b" ")) {
        return Err(Reason::BadScheme);
    }
    match rest.trim_ascii() {
        b"" => Err(Reason::MalformedSignature),
        token => Ok(token),
    }
}

/// Digests are compared, not the tokens: neither content nor length shows in the time taken.
fn position(known: &[digest::Digest], given: &digest::Digest) -> Result<usize, Reason> {
    let mut matched = None;
    for (index, digest) in known.iter().enumerate() {
        let equal = constant_time::verify_slices_are_equal(digest.as_ref(), given.as_ref());
        matched = matched.or(equal.is_ok().then_some(index));
    }
    matched.ok_or(Reason::NoMatch)
}

pub(super) fn sha256(parts: &[&[u8]]) -> digest::Digest {
    let mut context = digest::Context::new(&digest::SHA256);
    parts.iter().for_each(|part| context.update(part));
    context.finish()
}
