//! Requests, messages, answers, and attempts against files and a server of sockets.
#![allow(clippy::unwrap_used)]

use std::cell::Cell;
use std::future::ready;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use ankusa_wal::format::{Envelope, envelope};
use ankusa_wal::hook::{HookDraft, HookExtra, Verification};
use ankusa_wal::host::{Host, LocalFuture, TaskClass};
use ankusa_wal::ids::{HookId, Seq};

use super::*;
use crate::config::{OnVerifyFailure, RetryConfig, Secret, VerifyConfig};

mod answers;
mod files;
mod http_attempts;
mod messages;
mod requests;
mod table;

const ID: &str = "01939b5e-7b5f-7000-8000-000000000001";

/// A host whose every question about yielding is answered yes, so that every path is walked.
#[derive(Default)]
struct EagerHost {
    yields: Cell<u64>,
}

impl Host for EagerHost {
    fn wall_ms(&self) -> u64 {
        1_614_265_330_000
    }

    fn mono_us(&self) -> u64 {
        0
    }

    fn sleep(&self, _: Duration) -> LocalFuture<()> {
        Box::pin(std::future::pending())
    }

    fn spawn(&self, _: TaskClass, _: LocalFuture<()>) {}

    fn must_yield(&self) -> bool {
        true
    }

    fn yield_now(&self) -> LocalFuture<()> {
        self.yields.set(self.yields.get() + 1);
        Box::pin(ready(()))
    }

    fn random(&self) -> u64 {
        4
    }
}

/// What a test says of a hook.
struct HookSpec<'a> {
    tenant: &'a str,
    headers: &'a [(&'a [u8], &'a [u8])],
    content_type: &'a str,
    body: &'a [u8],
    dedupe_key: Option<&'a str>,
    verification: Verification,
}

impl Default for HookSpec<'_> {
    fn default() -> Self {
        HookSpec {
            tenant: "acme",
            headers: &[],
            content_type: "application/json",
            body: b"{}",
            dedupe_key: None,
            verification: Verification::Verified,
        }
    }
}

impl HookSpec<'_> {
    /// The bytes that the store would hold.
    fn envelope(&self) -> Vec<u8> {
        let draft = HookDraft {
            id: HookId::parse(ID).unwrap(),
            received_at_ms: 1_737_500_000_000,
            tenant: self.tenant.as_bytes(),
            source: b"pay",
            method: b"POST",
            target: b"/webhooks/pay",
            headers: &Pairs(self.headers),
            content_type: self.content_type.as_bytes(),
            body: self.body,
            dedupe_key: self.dedupe_key.map(str::as_bytes),
            dedupe_ttl_s: 60,
            verification: self.verification,
            client: SocketAddr::from(([127, 0, 0, 1], 9)),
            extra: HookExtra::default(),
        };
        let mut out = vec![0; envelope::encoded_len(&draft)];
        envelope::encode(&draft, Seq(1), &mut out);
        out
    }
}

fn delivery(envelope: &[u8]) -> Delivery<'_> {
    Delivery {
        hook: Envelope::parse(envelope).unwrap(),
        replay_id: None,
    }
}

/// A source that takes a token in `x-token` and forwards these headers.
fn forwarding(names: &[&str]) -> ForwardRule {
    ForwardRule::new(&SourceConfig {
        forward_headers: Some(names.iter().map(|n| (*n).to_owned()).collect()),
        ..source()
    })
}

fn source() -> SourceConfig {
    SourceConfig {
        name: "pay".into(),
        tenant: "acme".into(),
        verify: VerifyConfig::Bearer {
            secrets: vec![Secret::from("t")],
            header: "x-token".into(),
            scheme: String::new(),
        },
        on_verify_failure: OnVerifyFailure::Reject,
        dedupe: None,
        forward_headers: None,
        retry: RetryConfig {
            base_ms: 100,
            max_ms: 300_000,
            max_attempts: 84,
            jitter: true,
        },
        sinks: Vec::new(),
    }
}

fn sha256(body: &[u8]) -> [u8; 32] {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, body);
    digest.as_ref().try_into().unwrap()
}

struct Pairs<'a>(&'a [(&'a [u8], &'a [u8])]);

impl ankusa_wal::Headers for Pairs<'_> {
    fn visit(&self, each: &mut dyn FnMut(&[u8], &[u8])) {
        for (name, value) in self.0 {
            each(name, value);
        }
    }
}
