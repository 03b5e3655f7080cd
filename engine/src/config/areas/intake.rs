//! `intake.*`, `backup.*`: the second durable home of a hook, and the copies of the store.
//!
//! Not built yet in this version: every key is read and checked, and setting one is refused by the
//! list of what is not built. Runs at boot and offline.

use std::path::PathBuf;

use crate::config::Secret;

/// Which log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntakeType {
    /// Kafka.
    Kafka,
    /// JetStream.
    Jetstream,
    /// A file on this host, for tests and try-outs.
    Memory,
}

/// How a client proves who it is.
#[derive(Clone, Debug, PartialEq)]
pub struct SaslConfig {
    /// The mechanism.
    pub mechanism: SaslMechanism,
    /// The user.
    pub username: String,
    /// The password, or the token.
    pub password: Secret,
}

/// A SASL mechanism.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaslMechanism {
    /// PLAIN.
    Plain,
    /// SCRAM-SHA-256.
    ScramSha256,
    /// SCRAM-SHA-512.
    ScramSha512,
    /// OAUTHBEARER.
    Oauthbearer,
}

/// Files of a TLS client.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TlsClientConfig {
    /// PEM file of the accepted authorities; `None`: the host's.
    pub ca: Option<PathBuf>,
    /// PEM file of the client's certificate.
    pub cert: Option<PathBuf>,
    /// PEM file of the client's key.
    pub key: Option<PathBuf>,
}

/// `intake.kafka.*`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KafkaConfig {
    /// `host:port` each.
    pub brokers: Vec<String>,
    /// TLS, where on.
    pub ssl: Option<TlsClientConfig>,
    /// SASL, where on.
    pub sasl: Option<SaslConfig>,
}

/// `intake.jetstream.*`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JetstreamConfig {
    /// `nats://host:port` or `tls://host:port`.
    pub url: String,
    /// The stream.
    pub stream: String,
    /// The text of a credentials file.
    pub credentials: Option<Secret>,
}

/// `intake.*`.
#[derive(Clone, Debug, PartialEq)]
pub struct IntakeConfig {
    /// Which log.
    pub kind: IntakeType,
    /// The stable identity of this node in the log.
    pub node_id: String,
    /// The fleet.
    pub fleet: String,
    /// The topic.
    pub topic: String,
    /// Kafka's keys.
    pub kafka: KafkaConfig,
    /// JetStream's keys.
    pub jetstream: JetstreamConfig,
    /// Whether the memory log may serve a listener off loopback.
    pub memory_allow_unsafe: bool,
    /// The longest a publish may take.
    pub publish_timeout_ms: u64,
    /// How long a half may be missing before its claim is given up.
    pub reconcile_deadline_ms: u64,
    /// Failures in a row that open the breaker.
    pub breaker_failures: u64,
    /// Between two probes of an open breaker.
    pub probe_ms: u64,
    /// What a refused client is told to wait.
    pub retry_after_s: u64,
    /// Between two writes of the offset.
    pub offset_flush_ms: u64,
    /// Hooks not confirmed in both places.
    pub pending_max_records: u64,
    /// Bytes of them.
    pub pending_max_bytes: u64,
    /// The largest record.
    pub max_record_bytes: u64,
    /// Whether a boot replays the log.
    pub recover_on_boot: bool,
    /// Whether the topic's settings are checked.
    pub verify_topic: bool,
}

/// An object store.
#[derive(Clone, Debug, PartialEq)]
pub enum ObjectStoreConfig {
    /// A folder.
    Local {
        /// The folder.
        root: PathBuf,
    },
    /// A bucket.
    S3 {
        /// The bucket.
        bucket: String,
        /// The region.
        region: String,
        /// The endpoint, where it is not the region's.
        endpoint: Option<String>,
        /// The key's id, where it is stated here.
        access_key_id: Option<Secret>,
        /// The key, where it is stated here.
        secret_access_key: Option<Secret>,
    },
}

/// `backup.*`.
#[derive(Clone, Debug, PartialEq)]
pub struct BackupConfig {
    /// Whether backups are taken.
    pub enabled: bool,
    /// Between two.
    pub interval_ms: u64,
    /// How old the last one may be.
    pub max_age_ms: Option<u64>,
    /// Whether a stale backup makes the node unready.
    pub require_fresh: bool,
    /// How many are kept.
    pub keep: u64,
    /// Where they go.
    pub store: Option<ObjectStoreConfig>,
    /// Where they go as well.
    pub secondary: Option<ObjectStoreConfig>,
    /// The key of their signature.
    pub signing_key: Option<Secret>,
}
