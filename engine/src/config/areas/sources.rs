//! `sources.<name>`: one provider endpoint each: how it is verified, deduplicated and delivered.
//!
//! Runs at boot and offline.

use super::dispatch::RetryConfig;
use super::sinks::SinkConfig;
use super::verify::VerifyConfig;

/// What becomes of a hook whose verification failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnVerifyFailure {
    /// 401; nothing is stored.
    Reject,
    /// 202; held in the pen.
    Quarantine,
    /// Accepted and flagged, without a dedupe key.
    AcceptFlag,
}

/// Where a hook's dedupe key is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DedupeKeyFrom {
    /// `x-github-delivery`.
    GitHub,
    /// `webhook-id`, else `svix-id`.
    StandardWebhooks,
    /// `x-shopify-event-id`, else `x-shopify-webhook-id`.
    Shopify,
    /// `id` of the JSON body.
    Stripe,
    /// The header of this name, lower case.
    Header(String),
    /// This path into the JSON body, one entry a member.
    Json(Vec<String>),
}

/// What to do while the fleet's claims cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFleetDown {
    /// 503.
    Refuse,
    /// This node's claims alone.
    Node,
}

/// `sources.<name>.dedupe`.
#[derive(Clone, Debug, PartialEq)]
pub struct SourceDedupeConfig {
    /// Where the key is found.
    pub key: DedupeKeyFrom,
    /// How long a key is remembered, in seconds.
    pub ttl_seconds: u32,
    /// What to do while the fleet's claims cannot be reached.
    pub on_fleet_down: OnFleetDown,
}

/// `sources.<name>`.
#[derive(Clone, Debug, PartialEq)]
pub struct SourceConfig {
    /// Its name: the last part of its path.
    pub name: String,
    /// Whose it is.
    pub tenant: String,
    /// Under `http.routing: tenant_path`: whether any sender may name any tenant.
    pub trust_url_tenant: bool,
    /// How a request is verified.
    pub verify: VerifyConfig,
    /// What becomes of a hook whose verification failed.
    pub on_verify_failure: OnVerifyFailure,
    /// Where its dedupe key is found; `None`: it has none.
    pub dedupe: Option<SourceDedupeConfig>,
    /// Headers, lower case, that are kept and forwarded; `None`: every one but authorization,
    /// cookies, framing, hop-by-hop and `x-ankusa-*`.
    pub forward_headers: Option<Vec<String>>,
    /// Back-off of its deliveries.
    pub retry: RetryConfig,
    /// Where its hooks go; at least one, names unique.
    pub sinks: Vec<SinkConfig>,
}
