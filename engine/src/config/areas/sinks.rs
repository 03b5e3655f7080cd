//! `sources.<name>.sinks[]`: where hooks are delivered.
//!
//! Runs at boot and offline.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use crate::config::Secret;

/// One entry of `sources.<name>.sinks`.
#[derive(Clone, Debug, PartialEq)]
pub struct SinkConfig {
    /// With tenant and source, its identity.
    pub name: String,
    /// Whether its hooks wait.
    pub paused: bool,
    /// What it is.
    pub kind: SinkKind,
}

/// What a sink is.
#[derive(Clone, Debug, PartialEq)]
pub enum SinkKind {
    /// An HTTP endpoint.
    Http(HttpSinkConfig),
    /// A file of newline-delimited JSON.
    File {
        /// The file; made when absent.
        path: PathBuf,
    },
    /// The log.
    Log,
}

/// The method of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SinkMethod {
    /// POST.
    Post,
    /// PUT.
    Put,
    /// PATCH.
    Patch,
}

/// The host of a URL.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum UrlHost {
    /// A name, lower case.
    Name(String),
    /// An address.
    Ip(IpAddr),
}

/// The URL of an HTTP sink: no user, no fragment.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct SinkUrl {
    /// Whether the scheme is https.
    pub https: bool,
    /// The host.
    pub host: UrlHost,
    /// The port; the scheme's where the URL states none.
    pub port: u16,
    /// The path, with its query; starts with a slash.
    pub path_and_query: String,
}

impl SinkUrl {
    /// The value of the `Host` header: the port only where it is not the scheme's.
    pub fn authority(&self) -> String {
        let host = match &self.host {
            UrlHost::Name(name) => name.clone(),
            UrlHost::Ip(IpAddr::V4(ip)) => ip.to_string(),
            UrlHost::Ip(IpAddr::V6(ip)) => format!("[{ip}]"),
        };
        match (self.https, self.port) {
            (true, 443) | (false, 80) => host,
            (_, port) => format!("{host}:{port}"),
        }
    }

    /// Scheme, host and port: what may be shown. Paths and queries of sinks often hold tokens.
    pub fn origin(&self) -> String {
        format!("{}://{}", if self.https { "https" } else { "http" }, self.authority())
    }
}

impl fmt::Debug for SinkUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let more = if self.path_and_query == "/" { "/" } else { "/[REDACTED]" };
        write!(f, "{}{more}", self.origin())
    }
}

/// An HTTP sink.
#[derive(Clone, Debug, PartialEq)]
pub struct HttpSinkConfig {
    /// Where to.
    pub url: SinkUrl,
    /// How.
    pub method: SinkMethod,
    /// The longest an attempt may take.
    pub timeout_ms: u64,
    /// Headers to add; values may be secret.
    pub headers: Vec<(String, Secret)>,
    /// Decoded signing keys, at most eight; empty only with `allow_unsigned`.
    pub secrets: Vec<Secret>,
    /// Whether deliveries may go unsigned.
    pub allow_unsigned: bool,
    /// The most that is read of a response.
    pub max_response_bytes: u64,
}
