//! `sources.<name>`: one provider endpoint each: how it is verified, deduplicated and delivered.
//!
//! Runs at boot and offline.

use crate::config::key::{Key, Unit};
use crate::config::problem::Fault;
use crate::config::text;
use crate::config::values::Reader;

use super::dispatch::{DispatchConfig, RetryConfig};
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

pub(in crate::config) const KEYS: &[Key] = &[
    Key::text("sources.*.tenant", &text::NAME, "Whose the source is.").or("default").live(),
    Key::map("sources.*.verify", "How a request is verified.").required().live(),
    Key::word("sources.*.on_verify_failure", &["reject", "quarantine", "accept_flag"], "What becomes of a request that fails: answered 401, held in the pen, or accepted and flagged.").or("reject").live(),
    Key::map_or("sources.*.dedupe", "preset", "Where the dedupe key is found: a preset, a header or a path into the JSON body. Absent: hooks have none.").live(),
    Key::word("sources.*.dedupe.preset", PRESETS, "The provider's documented event id.").live(),
    Key::text("sources.*.dedupe.header", &text::HEADER, "The header that holds the key.").live(),
    Key::text("sources.*.dedupe.json", &text::JSON_PATH, "The path of the key in the JSON body, with dots between members.").live(),
    Key::int("sources.*.dedupe.ttl_seconds", 1, 31_536_000, Unit::Seconds, "How long a key is remembered.").or("259200").live(),
    Key::word("sources.*.dedupe.on_fleet_down", &["refuse", "node"], "Under `dedupe.scope: fleet`, while Redis is down: answer 503, or fall back to this node's keys.").or("refuse").live(),
    Key::texts("sources.*.forward_headers", &text::HEADER, "The provider's headers that are forwarded. Absent: every one but authorization, cookies, framing, hop-by-hop and `x-ankusa-*`.").live(),
    Key::int("sources.*.retry.base_ms", 1, 3_600_000, Unit::Millis, "The wait after the first failure; it doubles.").or_computed("dispatch.retry.base_ms").live(),
    Key::int("sources.*.retry.max_ms", 1, 86_400_000, Unit::Millis, "The longest wait.").or_computed("dispatch.retry.max_ms").live(),
    Key::int("sources.*.retry.max_attempts", 1, 10_000, Unit::Of("attempts"), "Attempts before the hook becomes a dead letter.").or_computed("dispatch.retry.max_attempts").live(),
    Key::boolean("sources.*.retry.jitter", "Spreads a wait over its upper half.").or_computed("dispatch.retry.jitter").live(),
    Key::list("sources.*.sinks", 1, 64, "Where the hooks go.").required().live(),
];

const PRESETS: &[&str] = &["github", "standard_webhooks", "svix", "shopify", "stripe"];

impl SourceConfig {
    pub(in crate::config) fn read(
        r: &Reader<'_>,
        name: &str,
        dispatch: &DispatchConfig,
    ) -> SourceConfig {
        let verify = VerifyConfig::read(&r.at("verify"));
        let dedupe = r.at("dedupe");
        let dedupe = dedupe
            .present()
            .then(|| SourceDedupeConfig::read(&dedupe, &verify))
            .flatten();
        let list = r.at("sinks");
        let sinks: Vec<SinkConfig> = (0..list.len())
            .map(|i| SinkConfig::read(&list.item(i), dispatch))
            .collect();
        let named = |i: usize| {
            let item = list.item(i);
            let is_map = !item.names().is_empty();
            let item = item.path;
            is_map
                && !r.values.faulty(&format!("{item}.name"))
                && !r.values.faulty(&format!("{item}.type"))
        };
        for (i, sink) in sinks.iter().enumerate().filter(|(i, _)| named(*i)) {
            let first = (0..i).find(|&j| named(j) && sinks[j].name == sink.name);
            if let Some(first) = first {
                let why = format!(
                    "the name {} is already that of sinks[{first}]; give each sink of a source a name of its own",
                    sink.name
                );
                list.item(i).fault("name", Fault::Rule(why));
            }
        }
        SourceConfig {
            name: name.to_string(),
            tenant: r.text("tenant"),
            verify,
            on_verify_failure: match r.text("on_verify_failure").as_str() {
                "quarantine" => OnVerifyFailure::Quarantine,
                "accept_flag" => OnVerifyFailure::AcceptFlag,
                _ => OnVerifyFailure::Reject,
            },
            dedupe,
            forward_headers: r
                .texts("forward_headers")
                .map(|names| names.iter().map(|n| n.to_ascii_lowercase()).collect()),
            retry: RetryConfig::read_over(&r.at("retry"), &dispatch.retry),
            sinks,
        }
    }
}

impl SourceDedupeConfig {
    fn read(r: &Reader<'_>, verify: &VerifyConfig) -> Option<SourceDedupeConfig> {
        let ways = ["preset", "header", "json"];
        let given: Vec<&str> = ways.into_iter().filter(|way| r.has(way)).collect();
        if given.len() != 1 {
            // A way that was there and faulty has been reported already.
            if !ways
                .iter()
                .any(|way| r.values.faulty(&format!("{}.{way}", r.path)))
            {
                r.fault(
                    "",
                    Fault::Rule("needs exactly one of preset, header and json".into()),
                );
            }
            return None;
        }
        let key = match given[0] {
            "header" => DedupeKeyFrom::Header(r.text("header").to_ascii_lowercase()),
            "json" => DedupeKeyFrom::Json(r.text("json").split('.').map(str::to_string).collect()),
            _ => match r.text("preset").as_str() {
                "github" => DedupeKeyFrom::GitHub,
                "shopify" => DedupeKeyFrom::Shopify,
                "stripe" => DedupeKeyFrom::Stripe,
                _ => DedupeKeyFrom::StandardWebhooks,
            },
        };
        let ttl_seconds: u32 = r.small("ttl_seconds");
        // A request stamped at the far edge of the future stays valid for twice the tolerance.
        if let Some(tolerance) = verify
            .tolerance_seconds()
            .filter(|t| u64::from(ttl_seconds) < 2 * t)
        {
            let why = format!(
                "{ttl_seconds} s is less than twice verify.tolerance_seconds ({tolerance} s): a request could be sent again after its key is forgotten; allowed: {} s or more",
                2 * tolerance
            );
            r.fault("ttl_seconds", Fault::Rule(why));
        }
        let on_fleet_down = if r.text("on_fleet_down") == "node" {
            OnFleetDown::Node
        } else {
            OnFleetDown::Refuse
        };
        Some(SourceDedupeConfig {
            key,
            ttl_seconds,
            on_fleet_down,
        })
    }
}
