//! `sources.<name>.sinks[]`: where hooks are delivered.
//!
//! Runs at boot and offline.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use super::dispatch::DispatchConfig;
use super::verify::decode_whsec;
use crate::config::Secret;
use crate::config::key::{Key, Unit};
use crate::config::problem::Fault;
use crate::config::text;
use crate::config::values::Reader;

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
        format!(
            "{}://{}",
            if self.https { "https" } else { "http" },
            self.authority()
        )
    }
}

impl fmt::Debug for SinkUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let more = if self.path_and_query == "/" {
            "/"
        } else {
            "/[REDACTED]"
        };
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

const HTTP: &[&str] = &["http"];
const KAFKA: &[&str] = &["kafka"];
const BROKERS: &[&str] = &["kafka", "jetstream"];

pub(in crate::config) const KEYS: &[Key] = &[
    Key::word("sources.*.sinks.#.type", &["http", "file", "log", "kafka", "jetstream"], "What the sink is.").required().live(),
    Key::text("sources.*.sinks.#.name", &text::NAME, "With tenant and source, the identity of the sink: of its deliveries, its breaker and its metrics.").or_computed("the type").live(),
    Key::boolean("sources.*.sinks.#.paused", "Lets its hooks wait.").or("false").live(),
    Key::text("sources.*.sinks.#.url", &text::SINK_URL, "Where to deliver.").required().types(HTTP).live(),
    Key::word("sources.*.sinks.#.method", &["post", "put", "patch"], "The method.").or("post").types(HTTP).live(),
    Key::int("sources.*.sinks.#.timeout_ms", 100, 600_000, Unit::Millis, "The longest that an attempt may take; at most `dispatch.attempt_timeout_ms`.").or_computed("dispatch.attempt_timeout_ms").types(HTTP).live(),
    Key::pairs("sources.*.sinks.#.headers", &text::SINK_HEADER, "Headers to add. Their values are never shown.").types(HTTP).live(),
    Key::secrets("sources.*.sinks.#.secret", "The Standard Webhooks secret that deliveries are signed with, or up to 8 of them while they are rotated: base64, with `whsec_` before it or without. Required unless `allow_unsigned`.").types(HTTP).live(),
    Key::boolean("sources.*.sinks.#.allow_unsigned", "Delivers without a signature where there is no secret.").or("false").types(HTTP).live(),
    Key::int("sources.*.sinks.#.max_response_bytes", 0, 16 << 20, Unit::Bytes, "The most that is read of a response.").or("65536").types(HTTP).live(),
    Key::text("sources.*.sinks.#.path", &text::PATH, "The file; made when absent. Relative to the working directory.").required().types(&["file"]).live(),
    Key::texts("sources.*.sinks.#.brokers", &text::BROKER, "The brokers.").required().types(KAFKA).live(),
    Key::text("sources.*.sinks.#.topic", &text::TOPIC, "The topic; it must exist.").required().types(KAFKA).live(),
    Key::text("sources.*.sinks.#.key", &text::ANY, "The key of the records.").or_computed("<tenant>/<source>").types(KAFKA).live(),
    Key::boolean("sources.*.sinks.#.ssl", "Whether to speak TLS.").or("false").types(KAFKA).live(),
    Key::word("sources.*.sinks.#.sasl.mechanism", &["plain", "scram_sha_256", "scram_sha_512"], "The SASL mechanism.").required().live(),
    Key::text("sources.*.sinks.#.sasl.username", &text::ANY, "The user.").required().live(),
    Key::secret("sources.*.sinks.#.sasl.password", "The password.").required().live(),
    Key::map("sources.*.sinks.#.sasl", "SASL; absent: none.").types(KAFKA).live(),
    Key::text("sources.*.sinks.#.server", &text::NATS_URL, "The JetStream server.").required().types(&["jetstream"]).live(),
    Key::text("sources.*.sinks.#.subject", &text::TOPIC, "The subject; a stream must cover it.").required().types(&["jetstream"]).live(),
    Key::int("sources.*.sinks.#.inline_max_bytes", 0, 16 << 20, Unit::Bytes, "The largest body inside the message.").or("8192").types(BROKERS).live(),
    Key::int("sources.*.sinks.#.max_record_bytes", 1 << 10, 64 << 20, Unit::Bytes, "The largest record; a larger one becomes a dead letter.").or("1000000").types(BROKERS).live(),
];

impl SinkConfig {
    pub(in crate::config) fn read(r: &Reader<'_>, dispatch: &DispatchConfig) -> SinkConfig {
        let kind = r.text("type");
        SinkConfig {
            name: r.text_or("name", || kind.clone()),
            paused: r.boolean("paused"),
            kind: match kind.as_str() {
                "http" => SinkKind::Http(HttpSinkConfig::read(r, dispatch)),
                "file" => SinkKind::File {
                    path: r.text("path").into(),
                },
                _ => SinkKind::Log,
            },
        }
    }
}

impl HttpSinkConfig {
    fn read(r: &Reader<'_>, dispatch: &DispatchConfig) -> HttpSinkConfig {
        let secrets = decode_whsec(r, "secret", &r.secrets("secret"));
        let allow_unsigned = r.boolean("allow_unsigned");
        if secrets.is_empty() && !allow_unsigned && !r.values.faulty(&format!("{}.secret", r.path))
        {
            r.fault("secret", Fault::Missing(": deliveries are signed; for a sink that takes unsigned ones set allow_unsigned: true".into()));
        }
        let timeout_ms = r.int_or("timeout_ms", || dispatch.attempt_timeout_ms);
        if timeout_ms > dispatch.attempt_timeout_ms
            && !r.values.faulty("dispatch.attempt_timeout_ms")
        {
            let why = format!(
                "{timeout_ms} ms is more than dispatch.attempt_timeout_ms ({} ms), which would end the attempt first",
                dispatch.attempt_timeout_ms
            );
            r.fault("timeout_ms", Fault::Rule(why));
        }
        let nowhere = SinkUrl {
            https: true,
            host: UrlHost::Name(String::new()),
            port: 443,
            path_and_query: "/".into(),
        };
        HttpSinkConfig {
            url: text::parse_url(&r.text("url")).unwrap_or(nowhere),
            method: match r.text("method").as_str() {
                "put" => SinkMethod::Put,
                "patch" => SinkMethod::Patch,
                _ => SinkMethod::Post,
            },
            timeout_ms,
            headers: r.pairs("headers"),
            secrets,
            allow_unsigned,
            max_response_bytes: r.int("max_response_bytes"),
        }
    }
}
