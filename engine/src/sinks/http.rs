//! One attempt over HTTP: resolve, check, dial, send, judge.
//!
//! The name is resolved for every attempt (a short cache in the resolver aside), the egress rules
//! are applied to the addresses it resolved to, and only an address that passed is dialled: also
//! when a kept connection to it is used again. Redirects are not followed. An exchange has the
//! sink's timeout; the whole attempt, resolving and further addresses included, is bounded by who
//! asks for it (dispatch sweeps the deadlines of all attempts together, without a timer for each).
//!
//! Runs on a shard core, in the delivery's task.

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;

use ankusa_net::client::{Answer, Call, CallError, Chunks, Destination, Scheme};
use hyper::header::{HeaderMap, RETRY_AFTER};
use hyper::{Method, Uri};

use super::answer::judge;
use super::forward::ForwardRule;
use super::outcome::{Cause, Outcome};
use super::request::{OwnHeaders, request_headers};
use super::stamp::{Signer, stamp};
use super::{Delivery, SinkContext, SinkError};
use crate::config::{HttpSinkConfig, SinkMethod, SinkUrl, UrlHost};
use crate::egress;

/// Addresses of one name that an attempt dials before it gives up.
const ADDRESSES_MAX: usize = 3;

/// The longest that one address may take to connect to.
const CONNECT_MS_MAX: u64 = 5_000;

/// How soon a delivery that found no free connection is tried again.
const BUSY_AGAIN_MS: u64 = 1_000;

/// An HTTP endpoint.
pub struct HttpSink {
    url: SinkUrl,
    target: Uri,
    method: Method,
    own: OwnHeaders,
    signer: Signer,
    forward: ForwardRule,
    timeout_ms: u64,
    response_bytes_max: usize,
    context: SinkContext,
    destination: RefCell<Option<Rc<Destination>>>,
}

impl HttpSink {
    /// Makes one from its validated configuration.
    pub fn new(
        config: &HttpSinkConfig,
        forward: ForwardRule,
        context: &SinkContext,
    ) -> Result<HttpSink, SinkError> {
        let target = config
            .url
            .path_and_query
            .parse()
            .map_err(|_| SinkError::Target)?;
        Ok(HttpSink {
            url: config.url.clone(),
            target,
            method: match config.method {
                SinkMethod::Post => Method::POST,
                SinkMethod::Put => Method::PUT,
                SinkMethod::Patch => Method::PATCH,
            },
            own: OwnHeaders::new(&config.headers).ok_or(SinkError::Header)?,
            signer: Signer::new(&config.secrets),
            forward,
            timeout_ms: config.timeout_ms,
            response_bytes_max: usize::try_from(config.max_response_bytes).unwrap_or(usize::MAX),
            context: context.clone(),
            destination: RefCell::new(None),
        })
    }

    /// Makes one attempt.
    ///
    /// # Cancel safety
    /// Dropping it closes the connection; the endpoint may have received the hook.
    pub async fn deliver(&self, delivery: &Delivery<'_>) -> Outcome {
        let addresses = match self.resolve().await {
            Ok(addresses) => addresses,
            Err(outcome) => return outcome,
        };
        let host = &*self.context.host;
        let id = delivery.hook.id.to_string();
        let timestamp_s = host.wall_ms() / 1000;
        let body = delivery.hook.body;
        let stamp = stamp(host, &self.signer, &id, timestamp_s, body, true).await;
        let headers = request_headers(delivery, &self.forward, &self.own, &stamp, timestamp_s);
        let mut request = Some((headers, Chunks::new(stamp.chunks)));
        let mut last = Outcome::retry(Cause::Connect);
        let mut addresses = addresses.into_iter().peekable();
        while let Some(ip) = addresses.next() {
            // Copied only for another address.
            let one = match addresses.peek() {
                Some(_) => request.clone(),
                None => request.take(),
            };
            let Some((headers, body)) = one else { break };
            match self.call(ip, headers, body).await {
                Ok(answer) => {
                    let retry_after = answer.headers.get(RETRY_AFTER).map(|v| v.as_bytes());
                    return judge(answer.status.as_u16(), retry_after, host.wall_ms());
                }
                Err(error) => {
                    tracing::debug!(%error, %ip, hook = %id, to = self.url.origin(), "delivery");
                    last = outcome_of(&error);
                    if !never_sent(&error) {
                        return last;
                    }
                }
            }
        }
        last
    }

    /// The addresses that may be dialled, in the resolver's order.
    async fn resolve(&self) -> Result<Vec<IpAddr>, Outcome> {
        let all = match &self.url.host {
            UrlHost::Ip(ip) => Rc::from([*ip]),
            UrlHost::Name(name) => match self.context.resolver.resolve(name).await {
                Ok(addresses) => addresses,
                Err(error) => {
                    tracing::debug!(%error, to = self.url.origin(), "delivery");
                    return Err(Outcome::retry(Cause::Resolve));
                }
            },
        };
        let mut allowed = Vec::new();
        for ip in all.iter() {
            match egress::decide(&self.context.egress, self.url.https, &self.url.host, *ip) {
                Ok(()) => allowed.push(ip.to_canonical()),
                Err(refusal) => {
                    tracing::debug!(%refusal, to = self.url.origin(), "delivery refused");
                }
            }
        }
        allowed.truncate(ADDRESSES_MAX);
        if allowed.is_empty() {
            // The rules or the name may be put right; until then nothing is lost.
            return Err(Outcome::retry(Cause::Egress));
        }
        Ok(allowed)
    }

    /// The endpoint at this address; the last one asked for is kept.
    fn destination(&self, ip: IpAddr) -> Rc<Destination> {
        let mut last = self.destination.borrow_mut();
        if let Some(last) = last.as_ref().filter(|last| last.ip == ip) {
            return Rc::clone(last);
        }
        let destination = Rc::new(Destination {
            scheme: if self.url.https {
                Scheme::Https
            } else {
                Scheme::Http
            },
            host: match &self.url.host {
                UrlHost::Name(name) => name.clone(),
                UrlHost::Ip(ip) => ip.to_string(),
            },
            port: self.url.port,
            ip,
        });
        *last = Some(Rc::clone(&destination));
        destination
    }

    async fn call(
        &self,
        ip: IpAddr,
        headers: HeaderMap,
        body: Chunks,
    ) -> Result<Answer, CallError> {
        let destination = self.destination(ip);
        let call = Call {
            method: self.method.clone(),
            target: self.target.clone(),
            headers,
            body,
            connect_ms: self.timeout_ms.min(CONNECT_MS_MAX),
            total_ms: self.timeout_ms,
            response_bytes_max: self.response_bytes_max,
        };
        self.context.client.call(&destination, call).await
    }
}

/// Whether the next address may be tried without sending the hook twice.
fn never_sent(error: &CallError) -> bool {
    matches!(error, CallError::Connect(_) | CallError::ConnectTimeout(_))
}

fn outcome_of(error: &CallError) -> Outcome {
    Outcome::retry(match error {
        CallError::Connect(_) | CallError::ConnectTimeout(_) => Cause::Connect,
        CallError::Tls(_) | CallError::NoTls => Cause::Tls,
        CallError::HostName => Cause::Unsendable,
        CallError::Timeout(_) => Cause::Timeout,
        CallError::Http(_) => Cause::Protocol,
        CallError::TooManyConnections => {
            return Outcome::NotMade {
                cause: Cause::Busy,
                again_ms: BUSY_AGAIN_MS,
            };
        }
    })
}
