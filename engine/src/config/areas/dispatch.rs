//! `dispatch.*` and `egress.*`: how hooks leave the node, and where they may go.
//!
//! Runs at boot and offline.

use std::net::IpAddr;

use crate::config::key::{Key, Unit};
use crate::config::text;
use crate::config::values::Reader;

/// Back-off of one delivery: `min(max, base · 2^(n−1))`, times a factor in [0.5, 1.0] with jitter.
#[derive(Clone, Debug, PartialEq)]
pub struct RetryConfig {
    /// The wait after the first failure.
    pub base_ms: u64,
    /// The longest wait.
    pub max_ms: u64,
    /// Attempts before the hook becomes a dead letter.
    pub max_attempts: u32,
    /// Whether the wait is spread.
    pub jitter: bool,
}

/// `dispatch.*`.
#[derive(Clone, Debug, PartialEq)]
pub struct DispatchConfig {
    /// Attempts in flight to one sink, per node.
    pub concurrency: u64,
    /// Rows claimed and not finished, per node.
    pub max_inflight: u64,
    /// Bytes of the hooks of those rows, per node.
    pub max_inflight_bytes: u64,
    /// The longest an attempt may take.
    pub attempt_timeout_ms: u64,
    /// Failures in a row that open a sink's breaker.
    pub breaker_failures: u64,
    /// How long a breaker stays open at first.
    pub breaker_open_ms: u64,
    /// How long a breaker stays open at most.
    pub breaker_max_open_ms: u64,
    /// Back-off of sources that do not state their own.
    pub retry: RetryConfig,
}

/// A block of addresses: those whose first `prefix_len` bits are those of `network`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    /// An address of the block with its host bits zero.
    pub network: IpAddr,
    /// How many bits count.
    pub prefix_len: u8,
}

impl Cidr {
    /// Whether the address is in the block. A v4 address is never in a v6 block.
    pub fn contains(&self, ip: IpAddr) -> bool {
        match (self.network, ip) {
            (IpAddr::V4(network), IpAddr::V4(ip)) => {
                let mask = u32::MAX
                    .checked_shl(32 - u32::from(self.prefix_len))
                    .unwrap_or(0);
                (network.to_bits() ^ ip.to_bits()) & mask == 0
            }
            (IpAddr::V6(network), IpAddr::V6(ip)) => {
                let mask = u128::MAX
                    .checked_shl(128 - u32::from(self.prefix_len))
                    .unwrap_or(0);
                (network.to_bits() ^ ip.to_bits()) & mask == 0
            }
            _ => false,
        }
    }
}

/// One entry of `egress.allow`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EgressRule {
    /// Every address of the block.
    Cidr(Cidr),
    /// The host of this name, lower case, at public, private and loopback addresses.
    Host(String),
}

/// `egress.*`: where a sink may go.
#[derive(Clone, Debug, PartialEq)]
pub struct EgressConfig {
    /// Whether plain http is allowed.
    pub allow_http: bool,
    /// Whether private and loopback addresses are allowed; link-local ones need a block of theirs.
    pub allow_private: bool,
    /// Exceptions: what is named here may be reached although it is private, and over plain http.
    pub allow: Vec<EgressRule>,
}

impl Cidr {
    /// Whether no bit after the prefix is set.
    pub fn host_bits_are_zero(&self) -> bool {
        match self.network {
            IpAddr::V4(ip) => {
                ip.to_bits()
                    .checked_shl(u32::from(self.prefix_len))
                    .unwrap_or(0)
                    == 0
            }
            IpAddr::V6(ip) => {
                ip.to_bits()
                    .checked_shl(u32::from(self.prefix_len))
                    .unwrap_or(0)
                    == 0
            }
        }
    }
}

pub(in crate::config) const KEYS: &[Key] = &[
    Key::int(
        "dispatch.concurrency",
        1,
        100_000,
        Unit::Of("attempts"),
        "Attempts of the node in flight to one sink; each core has its share, at least one.",
    )
    .or("32")
    .live(),
    Key::int(
        "dispatch.max_inflight",
        1,
        10_000_000,
        Unit::Of("deliveries"),
        "Deliveries of the node claimed and not finished.",
    )
    .or("4096")
    .live(),
    Key::int(
        "dispatch.max_inflight_bytes",
        1 << 20,
        1 << 40,
        Unit::Bytes,
        "Bytes of the hooks of those deliveries.",
    )
    .or("128 MiB")
    .live(),
    Key::int(
        "dispatch.attempt_timeout_ms",
        100,
        600_000,
        Unit::Millis,
        "The longest that an attempt may take.",
    )
    .or("30000")
    .live(),
    Key::int(
        "dispatch.breaker_failures",
        1,
        1_000,
        Unit::Of("failures"),
        "Failures in a row that open a sink's breaker.",
    )
    .or("5")
    .live(),
    Key::int(
        "dispatch.breaker_open_ms",
        100,
        3_600_000,
        Unit::Millis,
        "How long a breaker stays open at first; it doubles.",
    )
    .or("30000")
    .live(),
    Key::int(
        "dispatch.breaker_max_open_ms",
        100,
        86_400_000,
        Unit::Millis,
        "How long a breaker stays open at most.",
    )
    .or("300000")
    .live(),
    Key::int(
        "dispatch.retry.base_ms",
        1,
        3_600_000,
        Unit::Millis,
        "The wait after the first failure; it doubles.",
    )
    .or("100")
    .live(),
    Key::int(
        "dispatch.retry.max_ms",
        1,
        86_400_000,
        Unit::Millis,
        "The longest wait.",
    )
    .or("300000")
    .live(),
    Key::int(
        "dispatch.retry.max_attempts",
        1,
        10_000,
        Unit::Of("attempts"),
        "Attempts before the hook becomes a dead letter.",
    )
    .or("84")
    .live(),
    Key::boolean(
        "dispatch.retry.jitter",
        "Spreads a wait over its upper half.",
    )
    .or("true")
    .live(),
];

pub(in crate::config) const EGRESS_KEYS: &[Key] = &[
    Key::boolean("egress.allow_http", "Allows sinks over plain http.")
        .or("false")
        .live(),
    Key::boolean(
        "egress.allow_private",
        "Allows sinks at private and loopback addresses. Link-local ones, where the metadata services of clouds are, need a block in `egress.allow`.",
    )
    .or("false")
    .live(),
    Key::texts(
        "egress.allow",
        &text::EGRESS,
        "Address blocks and host names that sinks may reach whatever the two keys above say.",
    )
    .live(),
];

impl DispatchConfig {
    pub(in crate::config) fn read(r: &Reader<'_>) -> DispatchConfig {
        let retry = r.at("retry");
        DispatchConfig {
            concurrency: r.int("concurrency"),
            max_inflight: r.int("max_inflight"),
            max_inflight_bytes: r.int("max_inflight_bytes"),
            attempt_timeout_ms: r.int("attempt_timeout_ms"),
            breaker_failures: r.int("breaker_failures"),
            breaker_open_ms: r.int("breaker_open_ms"),
            breaker_max_open_ms: r.int("breaker_max_open_ms"),
            retry: RetryConfig {
                base_ms: retry.int("base_ms"),
                max_ms: retry.int("max_ms"),
                max_attempts: retry.small("max_attempts"),
                jitter: retry.boolean("jitter"),
            },
        }
    }
}

impl RetryConfig {
    /// A source's own back-off, over that of `dispatch.retry`.
    pub(in crate::config) fn read_over(r: &Reader<'_>, base: &RetryConfig) -> RetryConfig {
        RetryConfig {
            base_ms: r.int_or("base_ms", || base.base_ms),
            max_ms: r.int_or("max_ms", || base.max_ms),
            max_attempts: u32::try_from(r.int_or("max_attempts", || base.max_attempts.into()))
                .unwrap_or(base.max_attempts),
            jitter: r.boolean_or("jitter", base.jitter),
        }
    }
}

impl EgressConfig {
    pub(in crate::config) fn read(r: &Reader<'_>) -> EgressConfig {
        EgressConfig {
            allow_http: r.boolean("allow_http"),
            allow_private: r.boolean("allow_private"),
            allow: r
                .texts("allow")
                .unwrap_or_default()
                .iter()
                .filter_map(|t| text::parse_egress(t).ok())
                .collect(),
        }
    }
}
