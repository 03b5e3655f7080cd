//! `intake.*`, `backup.*`: the second durable home of a hook, and the copies of the store.
//!
//! What of it is not built yet is refused by the list of what is not built. Runs at boot and
//! offline.

use std::path::PathBuf;

use crate::config::Secret;
use crate::config::key::{Key, Unit};
use crate::config::problem::Fault;
use crate::config::text;
use crate::config::values::Reader;

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
    /// The user; the principal's name under OAUTHBEARER.
    pub username: String,
    /// The password, or a token that stays.
    pub password: Option<Secret>,
    /// The file of a token that somebody renews.
    pub token_file: Option<PathBuf>,
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
    /// Where the memory log keeps its files, if not beside the data directory.
    pub memory_dir: Option<PathBuf>,
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

const OBJECTS: &[&str] = &["local", "s3"];

pub(in crate::config) const KEYS: &[Key] = &[
    Key::map("intake", "The intake log of `wal.type: dual`."),
    Key::word("intake.type", &["kafka", "jetstream", "memory"], "Which log; required under `wal.type: dual`."),
    Key::text("intake.node_id", &text::LOG_NAME, "The stable identity of this node in the log; required under `wal.type: dual`."),
    Key::text("intake.fleet", &text::LOG_NAME, "The fleet.").or("default"),
    Key::text("intake.topic", &text::TOPIC, "The topic.").or_computed("ankusa.intake.<fleet>"),
    Key::texts("intake.kafka.brokers", &text::BROKER, "The brokers."),
    Key::map_or("intake.kafka.ssl", "enabled", "TLS; `true` for the host's authorities."),
    Key::boolean("intake.kafka.ssl.enabled", "Whether to speak TLS.").or("true"),
    Key::text("intake.kafka.ssl.ca", &text::PATH, "PEM file of the accepted authorities; absent: the host's."),
    Key::text("intake.kafka.ssl.cert", &text::PATH, "PEM file of the client's certificate and its chain. A changed file is taken over without a restart."),
    Key::text("intake.kafka.ssl.key", &text::PATH, "PEM file of the client's key."),
    Key::map("intake.kafka.sasl", "SASL; absent: none."),
    Key::word("intake.kafka.sasl.mechanism", &["plain", "scram_sha_256", "scram_sha_512", "oauthbearer"], "The mechanism.").required(),
    Key::text("intake.kafka.sasl.username", &text::ANY, "The user; under oauthbearer the principal (`ankusa`, where not set)."),
    Key::secret("intake.kafka.sasl.password", "The password; under oauthbearer a token that does not change."),
    Key::text("intake.kafka.sasl.token_file", &text::PATH, "Under oauthbearer: a file with the token, read again whenever the client needs a new one."),
    Key::text("intake.jetstream.url", &text::NATS_URL, "The server."),
    Key::text("intake.jetstream.stream", &text::TOPIC, "The stream."),
    Key::secret("intake.jetstream.credentials", "The text of a credentials file."),
    Key::boolean("intake.memory.allow_unsafe", "Lets the memory log, which is lost with this host, serve a listener off loopback.").or("false"),
    Key::text("intake.memory.dir", &text::PATH, "Where the memory log keeps its files.").or_computed("<node.data_dir>.intake"),
    Key::int("intake.publish_timeout_ms", 100, 60_000, Unit::Millis, "The longest that a publish may take; below `http.limits.request_deadline_ms`.").or("2000"),
    Key::int("intake.reconcile_deadline_ms", 1_000, 600_000, Unit::Millis, "How long a half may be missing before its claim is given up; below `fleet.pending_ttl_ms` under `dedupe.scope: fleet`.").or("20000"),
    Key::int("intake.breaker_failures", 1, 100, Unit::Of("failures"), "Failures in a row that open the breaker.").or("3"),
    Key::int("intake.probe_ms", 100, 60_000, Unit::Millis, "Between two probes of an open breaker.").or("1000"),
    Key::int("intake.retry_after_s", 1, 300, Unit::Seconds, "What a refused client is told to wait.").or("2"),
    Key::int("intake.offset_flush_ms", 100, 60_000, Unit::Millis, "Between two writes of the offset.").or("1000"),
    Key::int("intake.pending.max_records", 1, 10_000_000, Unit::Of("hooks"), "Hooks not confirmed in both places.").or("50000"),
    Key::int("intake.pending.max_bytes", 1 << 20, 1 << 40, Unit::Bytes, "Bytes of them.").or("256 MiB"),
    Key::int("intake.max_record_bytes", 65_537, 128 << 20, Unit::Bytes, "The largest record; at least `http.max_body_bytes` + 65536.").or("10000000"),
    Key::boolean("intake.recover_on_boot", "Whether a boot replays the log.").or("true"),
    Key::boolean("intake.verify_topic", "Whether the topic's settings are checked.").or("true"),
    Key::boolean("backup.enabled", "Whether backups are taken; required under `wal.type: dual`.").or("false"),
    Key::int("backup.interval_ms", 1_000, 86_400_000, Unit::Millis, "Between two backups.").or("60000"),
    Key::int("backup.max_age_ms", 1_000, 2_592_000_000, Unit::Millis, "How old the last backup may be; required under `wal.type: dual`."),
    Key::boolean("backup.require_fresh", "Whether a stale backup makes the node unready.").or("false"),
    Key::int("backup.keep", 1, 1_000, Unit::Of("backups"), "How many are kept.").or("3"),
    Key::map("backup.store", "Where backups go."),
    Key::word("backup.store.type", OBJECTS, "A folder or a bucket.").required(),
    Key::text("backup.store.root", &text::PATH, "The folder.").required().types(&["local"]),
    Key::map("backup.store.s3", "The bucket.").required().types(&["s3"]),
    Key::text("backup.store.s3.bucket", &text::TOPIC, "Its name.").required(),
    Key::text("backup.store.s3.region", &text::TOPIC, "Its region.").required(),
    Key::text("backup.store.s3.endpoint", &text::ENDPOINT, "Its endpoint, where it is not the region's."),
    Key::secret("backup.store.s3.access_key_id", "The key's id.").live(),
    Key::secret("backup.store.s3.secret_access_key", "The key.").live(),
    Key::map("backup.secondary", "Where backups go as well."),
    Key::word("backup.secondary.type", OBJECTS, "A folder or a bucket.").required(),
    Key::text("backup.secondary.root", &text::PATH, "The folder.").required().types(&["local"]),
    Key::map("backup.secondary.s3", "The bucket.").required().types(&["s3"]),
    Key::text("backup.secondary.s3.bucket", &text::TOPIC, "Its name.").required(),
    Key::text("backup.secondary.s3.region", &text::TOPIC, "Its region.").required(),
    Key::text("backup.secondary.s3.endpoint", &text::ENDPOINT, "Its endpoint, where it is not the region's."),
    Key::secret("backup.secondary.s3.access_key_id", "The key's id.").live(),
    Key::secret("backup.secondary.s3.secret_access_key", "The key.").live(),
    Key::secret("backup.signing_key", "The key of the backups' signature."),
    Key::opaque("storage", "The archive."),
    Key::opaque("archive", "The archive."),
    Key::opaque("quarantine", "The pen for hooks that failed verification."),
    Key::opaque("rate_limits", "Limits per tenant, source and client."),
];

impl IntakeConfig {
    pub(in crate::config) fn read(r: &Reader<'_>) -> IntakeConfig {
        let fleet = r.text("fleet");
        let (kafka, jetstream) = (r.at("kafka"), r.at("jetstream"));
        IntakeConfig {
            kind: match r.text("type").as_str() {
                "kafka" => IntakeType::Kafka,
                "jetstream" => IntakeType::Jetstream,
                _ => IntakeType::Memory,
            },
            node_id: r.text("node_id"),
            topic: r.text_or("topic", || format!("ankusa.intake.{fleet}")),
            fleet,
            kafka: KafkaConfig::read(&kafka),
            jetstream: JetstreamConfig {
                url: jetstream.text("url"),
                stream: jetstream.text("stream"),
                credentials: jetstream.secret("credentials"),
            },
            memory_allow_unsafe: r.at("memory").boolean("allow_unsafe"),
            memory_dir: r.at("memory").text_opt("dir").map(PathBuf::from),
            publish_timeout_ms: r.int("publish_timeout_ms"),
            reconcile_deadline_ms: r.int("reconcile_deadline_ms"),
            breaker_failures: r.int("breaker_failures"),
            probe_ms: r.int("probe_ms"),
            retry_after_s: r.int("retry_after_s"),
            offset_flush_ms: r.int("offset_flush_ms"),
            pending_max_records: r.at("pending").int("max_records"),
            pending_max_bytes: r.at("pending").int("max_bytes"),
            max_record_bytes: r.int("max_record_bytes"),
            recover_on_boot: r.boolean("recover_on_boot"),
            verify_topic: r.boolean("verify_topic"),
        }
    }
}

impl KafkaConfig {
    fn read(r: &Reader<'_>) -> KafkaConfig {
        let (ssl, sasl) = (r.at("ssl"), r.at("sasl"));
        let path = |name: &str| ssl.text_opt(name).map(PathBuf::from);
        if ssl.has("cert") != ssl.has("key") {
            ssl.fault(
                if ssl.has("cert") { "key" } else { "cert" },
                Fault::Missing(": a certificate and its key belong together".into()),
            );
        }
        KafkaConfig {
            brokers: r.texts("brokers").unwrap_or_default(),
            ssl: (ssl.present() && ssl.boolean("enabled")).then(|| TlsClientConfig {
                ca: path("ca"),
                cert: path("cert"),
                key: path("key"),
            }),
            sasl: sasl.present().then(|| SaslConfig {
                mechanism: match sasl.text("mechanism").as_str() {
                    "scram_sha_256" => SaslMechanism::ScramSha256,
                    "scram_sha_512" => SaslMechanism::ScramSha512,
                    "oauthbearer" => SaslMechanism::Oauthbearer,
                    _ => SaslMechanism::Plain,
                },
                username: sasl.text("username"),
                password: sasl.secret("password"),
                token_file: sasl.text_opt("token_file").map(PathBuf::from),
            }),
        }
    }
}

impl BackupConfig {
    pub(in crate::config) fn read(r: &Reader<'_>) -> BackupConfig {
        BackupConfig {
            enabled: r.boolean("enabled"),
            interval_ms: r.int("interval_ms"),
            max_age_ms: r.int_opt("max_age_ms"),
            require_fresh: r.boolean("require_fresh"),
            keep: r.int("keep"),
            store: ObjectStoreConfig::read(&r.at("store")),
            secondary: ObjectStoreConfig::read(&r.at("secondary")),
            signing_key: r.secret("signing_key"),
        }
    }
}

impl ObjectStoreConfig {
    fn read(r: &Reader<'_>) -> Option<ObjectStoreConfig> {
        let s3 = r.at("s3");
        match (r.present(), r.text("type").as_str()) {
            (false, _) => None,
            (true, "s3") => Some(ObjectStoreConfig::S3 {
                bucket: s3.text("bucket"),
                region: s3.text("region"),
                endpoint: s3.text_opt("endpoint"),
                access_key_id: s3.secret("access_key_id"),
                secret_access_key: s3.secret("secret_access_key"),
            }),
            (true, _) => Some(ObjectStoreConfig::Local {
                root: r.text("root").into(),
            }),
        }
    }
}
