//! The Kafka client's settings: what the operator says, and what the product decides.
//!
//! Invariant: nothing here can make a client create a topic, retry on its own, or acknowledge
//! with less than every in-sync replica. Pure.

use std::path::PathBuf;

use rdkafka::ClientConfig;

/// How to reach the log.
#[derive(Clone)]
pub struct KafkaSettings {
    /// `host:port` of some brokers.
    pub brokers: Vec<String>,
    /// The topic.
    pub topic: String,
    /// `intake.node_id`: the records' key, and part of the clients' names.
    pub node: String,
    /// `intake.publish_timeout_ms`: the client's own timeouts stay within it.
    pub publish_timeout_ms: u32,
    /// `intake.max_record_bytes`.
    pub max_record_bytes: u32,
    /// TLS, when the brokers want it.
    pub tls: Option<Tls>,
    /// SASL, when the brokers want it.
    pub sasl: Option<Sasl>,
}

/// TLS files, PEM.
#[derive(Clone, Default)]
pub struct Tls {
    /// Certificates to trust; the system's when none.
    pub ca: Option<PathBuf>,
    /// The client's certificate and its chain.
    pub certificate: Option<PathBuf>,
    /// The client's key.
    pub key: Option<PathBuf>,
    /// The key's password.
    pub key_password: Option<String>,
}

/// Who we are to the brokers.
#[derive(Clone)]
pub struct Sasl {
    /// How it is said.
    pub mechanism: SaslMechanism,
    /// User name; the principal's name under OAUTHBEARER.
    pub username: String,
    /// Password, or a token that stays as it is.
    pub password: String,
    /// Under OAUTHBEARER: a file that holds the token, read whenever a client wants a new one.
    pub token_file: Option<PathBuf>,
}

/// A SASL mechanism.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaslMechanism {
    /// `PLAIN`
    Plain,
    /// `SCRAM-SHA-256`
    ScramSha256,
    /// `SCRAM-SHA-512`
    ScramSha512,
    /// `OAUTHBEARER`
    Oauthbearer,
}

impl SaslMechanism {
    pub(super) fn name(self) -> &'static str {
        match self {
            SaslMechanism::Plain => "PLAIN",
            SaslMechanism::ScramSha256 => "SCRAM-SHA-256",
            SaslMechanism::ScramSha512 => "SCRAM-SHA-512",
            SaslMechanism::Oauthbearer => "OAUTHBEARER",
        }
    }
}

/// Protocol overhead that a record may cost beyond its own bytes.
const RECORD_MARGIN_BYTES: u32 = 65_536;

impl KafkaSettings {
    /// What every client has.
    pub(super) fn common(&self, role: &str) -> ClientConfig {
        let mut config = ClientConfig::new();
        let mut set = |key: &str, value: &str| {
            config.set(key, value);
        };
        set("bootstrap.servers", &self.brokers.join(","));
        set("client.id", &format!("ankusa-{}-{role}", self.node));
        // A topic made by a question would have the brokers' defaults: one replica.
        set("allow.auto.create.topics", "false");
        set("socket.keepalive.enable", "true");
        set("socket.connection.setup.timeout.ms", "1000");
        set("reconnect.backoff.ms", "20");
        set("reconnect.backoff.max.ms", "250");
        set("retry.backoff.ms", "20");
        set("topic.metadata.refresh.fast.interval.ms", "20");
        set("topic.metadata.refresh.interval.ms", "10000");
        set("topic.metadata.propagation.max.ms", "0");
        set("statistics.interval.ms", "0");
        set("log.connection.close", "false");
        set("log_level", "0");
        let protocol = match (&self.tls, &self.sasl) {
            (None, None) => "plaintext",
            (Some(_), None) => "ssl",
            (None, Some(_)) => "sasl_plaintext",
            (Some(_), Some(_)) => "sasl_ssl",
        };
        set("security.protocol", protocol);
        if let Some(tls) = &self.tls {
            for (key, file) in [
                ("ssl.ca.location", &tls.ca),
                ("ssl.certificate.location", &tls.certificate),
                ("ssl.key.location", &tls.key),
            ] {
                if let Some(file) = file {
                    set(key, &file.to_string_lossy());
                }
            }
            if let Some(password) = &tls.key_password {
                set("ssl.key.password", password);
            }
        }
        if let Some(sasl) = &self.sasl {
            set("sasl.mechanism", sasl.mechanism.name());
            if sasl.mechanism != SaslMechanism::Oauthbearer {
                set("sasl.username", &sasl.username);
                set("sasl.password", &sasl.password);
            }
        }
        config
    }

    /// A core's producer. Measured: no linger, five requests in flight and no idempotence confirm
    /// a group soonest, and report each error at once with its own code.
    pub(super) fn producer(&self, core: u16) -> ClientConfig {
        let mut config = self.common(&format!("core{core}"));
        let part = |percent: u32| {
            (self.publish_timeout_ms / 100 * percent)
                .max(50)
                .to_string()
        };
        let mut set = |key: &str, value: &str| {
            config.set(key, value);
        };
        set("acks", "all");
        set("enable.idempotence", "false");
        set("message.send.max.retries", "0");
        set("linger.ms", "0");
        set("max.in.flight.requests.per.connection", "5");
        set("batch.size", "1000000");
        set("batch.num.messages", "10000");
        set("compression.codec", "none");
        let largest = self.max_record_bytes.saturating_add(RECORD_MARGIN_BYTES);
        set(
            "message.max.bytes",
            &largest.clamp(1_000, 1_000_000_000).to_string(),
        );
        set("request.timeout.ms", &part(75));
        set("socket.timeout.ms", &part(85));
        // Only the backstop: the deadline is the caller's own.
        set(
            "message.timeout.ms",
            &self.publish_timeout_ms.max(50).to_string(),
        );
        set(
            "queue.buffering.max.messages",
            &super::publisher::HELD_RECORDS_MAX.to_string(),
        );
        set("queue.buffering.max.kbytes", "262144");
        config
    }

    /// The consumer of a replay.
    pub(super) fn consumer(&self) -> ClientConfig {
        let mut config = self.common("replay");
        let mut set = |key: &str, value: &str| {
            config.set(key, value);
        };
        // Never joined and never committed to: the client wants a name.
        set("group.id", "ankusa-replay");
        set("enable.auto.commit", "false");
        set("enable.auto.offset.store", "false");
        set("auto.offset.reset", "error");
        set("enable.partition.eof", "true");
        set("check.crcs", "true");
        set("fetch.message.max.bytes", "16000000");
        set("fetch.max.bytes", "64000000");
        set("receive.message.max.bytes", "100000000");
        set("queued.min.messages", "1000000");
        set("queued.max.messages.kbytes", "131072");
        set("fetch.queue.backoff.ms", "1");
        config
    }

    /// The files whose change means new clients.
    pub(super) fn watched_files(&self) -> Vec<PathBuf> {
        let tls = self.tls.iter();
        tls.flat_map(|tls| [&tls.ca, &tls.certificate, &tls.key])
            .flatten()
            .cloned()
            .collect()
    }
}
