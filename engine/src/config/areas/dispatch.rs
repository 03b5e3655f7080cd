//! `dispatch.*` and `egress.*`: how hooks leave the node, and where they may go.
//!
//! Runs at boot and offline.

use std::net::IpAddr;

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
    /// Rows claimed at once.
    pub batch: u64,
    /// Attempts in flight, per node.
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
                let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix_len)).unwrap_or(0);
                (network.to_bits() ^ ip.to_bits()) & mask == 0
            }
            (IpAddr::V6(network), IpAddr::V6(ip)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix_len)).unwrap_or(0);
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
    /// The host of this name, lower case, whatever it resolves to.
    Host(String),
}

/// `egress.*`: where a sink may go.
#[derive(Clone, Debug, PartialEq)]
pub struct EgressConfig {
    /// Whether plain http is allowed.
    pub allow_http: bool,
    /// Whether private, loopback and link-local addresses are allowed.
    pub allow_private: bool,
    /// Exceptions: what is named here may be reached although it is private, and over plain http.
    pub allow: Vec<EgressRule>,
}
