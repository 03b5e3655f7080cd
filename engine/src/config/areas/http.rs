//! `http.*` and `admin.*`: the two listeners.
//!
//! Runs at boot and offline.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use crate::config::Secret;
use crate::config::key::{Key, Unit};
use crate::config::text;
use crate::config::values::Reader;

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
    /// From the first byte of a request to the end of its head.
    pub head_timeout_ms: u64,
    /// From a new connection to its first byte.
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

pub(in crate::config) const KEYS: &[Key] = &[
    Key::int("http.port", 1, 65_535, Unit::Of(""), "The TCP port of the ingest listener.").or("4000"),
    Key::text("http.ip", &text::IP, "The address the ingest listener binds. `127.0.0.1` where there is no configuration file.").or("0.0.0.0"),
    Key::int("http.max_body_bytes", 1, 64 << 20, Unit::Bytes, "The largest body that is accepted; a larger one is answered 413.").or("8000000").live(),
    Key::text("http.prefix", &text::PREFIX, "The path before the source; `/` for none.").or("/webhooks"),
    Key::word("http.routing", &["path", "tenant_path"], "`path`: `<prefix>/{source}` and `<prefix>/{tenant}/{source}`. `tenant_path`: only the latter. The tenant is the source's own; a path that names another is unknown.").or("path"),
    Key::map("http.tls", "TLS on the ingest listener."),
    Key::text("http.tls.cert", &text::PATH, "PEM file of the certificate chain.").required(),
    Key::text("http.tls.key", &text::PATH, "PEM file of the private key.").required(),
    Key::int("http.limits.head_bytes", 1 << 10, 65_535, Unit::Bytes, "The largest request line and headers together; more is answered 431.").or("32768"),
    Key::int("http.limits.header_count", 8, 128, Unit::Of("headers"), "The most headers of a request; more is answered 431.").or("100"),
    Key::int("http.limits.first_byte_timeout_ms", 100, 600_000, Unit::Millis, "From a new connection to its first byte.").or("10000"),
    Key::int("http.limits.head_timeout_ms", 100, 600_000, Unit::Millis, "From the first byte of a request to the end of its head; later is answered 408.").or("10000"),
    Key::int("http.limits.body_timeout_ms", 100, 3_600_000, Unit::Millis, "From the end of the head to the end of the body; later is answered 408.").or("60000"),
    Key::int("http.limits.idle_timeout_ms", 100, 3_600_000, Unit::Millis, "How long a connection may stay without a request.").or("75000"),
    Key::int("http.limits.connections", 1, 1_000_000, Unit::Of("connections"), "The most connections of the node; above it none is accepted.").or("10000"),
    Key::int("http.limits.request_deadline_ms", 1_000, 60_000, Unit::Millis, "From a whole request to its answer; a commit that has not ended by then is answered 503 and goes on.").or("15000"),
    Key::int("admin.port", 1, 65_535, Unit::Of(""), "The TCP port of the admin listener.").or("4002"),
    Key::text("admin.ip", &text::IP, "The address the admin listener binds.").or("127.0.0.1"),
    Key::secret("admin.token", "The bearer token of the admin listener; required when `admin.ip` is not a loopback address.").live(),
];

impl HttpConfig {
    pub(in crate::config) fn read(r: &Reader<'_>) -> HttpConfig {
        let prefix = r.text("prefix");
        let tls = r.at("tls");
        HttpConfig {
            port: r.small("port"),
            ip: ip(r, "ip"),
            max_body_bytes: r.int("max_body_bytes"),
            prefix: if prefix == "/" { String::new() } else { prefix },
            routing: match r.text("routing").as_str() {
                "tenant_path" => Routing::TenantPath,
                _ => Routing::Path,
            },
            tls: tls.present().then(|| TlsConfig {
                cert: tls.text("cert").into(),
                key: tls.text("key").into(),
            }),
            limits: HttpLimits::read(&r.at("limits")),
        }
    }
}

impl HttpLimits {
    fn read(r: &Reader<'_>) -> HttpLimits {
        HttpLimits {
            head_bytes: r.int("head_bytes"),
            header_count: r.int("header_count"),
            head_timeout_ms: r.int("head_timeout_ms"),
            first_byte_timeout_ms: r.int("first_byte_timeout_ms"),
            body_timeout_ms: r.int("body_timeout_ms"),
            idle_timeout_ms: r.int("idle_timeout_ms"),
            connections: r.int("connections"),
            request_deadline_ms: r.int("request_deadline_ms"),
        }
    }
}

impl AdminConfig {
    pub(in crate::config) fn read(r: &Reader<'_>) -> AdminConfig {
        AdminConfig {
            port: r.small("port"),
            ip: ip(r, "ip"),
            token: r.secret("token"),
        }
    }
}

fn ip(r: &Reader<'_>, name: &str) -> IpAddr {
    r.text(name)
        .parse()
        .unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}
