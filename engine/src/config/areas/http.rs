//! `http.*` and `admin.*`: the two listeners.
//!
//! Runs at boot and offline.

use std::net::IpAddr;
use std::path::PathBuf;

use crate::config::Secret;

/// Which path names a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routing {
    /// `<prefix>/{source}`; the tenant is the source's.
    Path,
    /// `<prefix>/{tenant}/{source}`; the tenant of the path wins.
    TenantPath,
}

/// `http.*`: the ingest listener.
#[derive(Clone, Debug, PartialEq)]
pub struct HttpConfig {
    /// The TCP port.
    pub port: u16,
    /// The address it binds.
    pub ip: IpAddr,
    /// The largest body that is accepted, in bytes.
    pub max_body_bytes: u64,
    /// The path before the source, without a slash at its end; empty for none.
    pub prefix: String,
    /// Which path names a source.
    pub routing: Routing,
    /// TLS, where configured.
    pub tls: Option<TlsConfig>,
    /// Bounds on one request and one connection.
    pub limits: HttpLimits,
}

/// `http.tls.*`.
#[derive(Clone, Debug, PartialEq)]
pub struct TlsConfig {
    /// PEM file of the certificate chain.
    pub cert: PathBuf,
    /// PEM file of the private key.
    pub key: PathBuf,
}

/// `http.limits.*`.
#[derive(Clone, Debug, PartialEq)]
pub struct HttpLimits {
    /// The largest request line and headers together, in bytes.
    pub head_bytes: u64,
    /// The most headers of a request.
    pub header_count: u64,
    /// From the connection, or the end of the last answer once a byte came, to the whole head.
    pub head_timeout_ms: u64,
    /// From the connection to the first byte of the first request.
    pub first_byte_timeout_ms: u64,
    /// From the end of the head to the end of the body.
    pub body_timeout_ms: u64,
    /// How long a connection may stay without a request.
    pub idle_timeout_ms: u64,
    /// The most connections of the node.
    pub connections: u64,
    /// From the whole request to its answer.
    pub request_deadline_ms: u64,
}

/// `admin.*`: the operator's listener.
#[derive(Clone, Debug, PartialEq)]
pub struct AdminConfig {
    /// The TCP port.
    pub port: u16,
    /// The address it binds.
    pub ip: IpAddr,
    /// The bearer token; required when `ip` is not a loopback address.
    pub token: Option<Secret>,
}
