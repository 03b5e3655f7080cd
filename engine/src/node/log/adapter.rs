//! The adapter of the configured log, opened: which one it is, and its settings.
//!
//! Opened on the main thread before the cores are pinned, because the client's threads inherit
//! where they may run. Blocking for some milliseconds; no broker need be there. Afterwards it is
//! asked from the cores, and its side threads answer.

use std::path::PathBuf;
use std::rc::Rc;

use ankusa_intake::memory::{MemoryLog, MemoryOptions};
use ankusa_intake::{AskError, IntakeLog, Publisher};

use crate::config::{Config, IntakeConfig, IntakeType};

#[cfg(feature = "kafka")]
use ankusa_intake::kafka::{KafkaLog, KafkaSettings, Sasl, SaslMechanism, Tls};

/// Partitions of a memory log that is made.
const MEMORY_PARTITIONS: u32 = 8;
/// The oldest records of a memory log go beyond twice this.
const MEMORY_BYTES: u64 = 4 << 30;

/// An opened log. Clones share it.
#[derive(Clone)]
pub enum Adapter {
    /// Kafka.
    #[cfg(feature = "kafka")]
    Kafka(KafkaLog),
    /// Files on this host.
    Memory(MemoryLog),
}

impl Adapter {
    /// Opens the log of a configuration.
    ///
    /// # Errors
    /// A text for the operator: a file or a setting that cannot be used.
    pub fn open(config: &Config, intake: &IntakeConfig) -> Result<Adapter, String> {
        match intake.kind {
            #[cfg(feature = "kafka")]
            IntakeType::Kafka => KafkaLog::open(kafka_settings(intake))
                .map(Adapter::Kafka)
                .map_err(|e| format!("intake.kafka: {e}")),
            IntakeType::Memory => {
                let dir = memory_dir(config, intake);
                let log = MemoryLog::open(MemoryOptions {
                    dir: dir.clone(),
                    partitions: MEMORY_PARTITIONS,
                    sync: true,
                    retention_bytes: Some(MEMORY_BYTES),
                });
                let log = log.map_err(|e| format!("intake.memory ({}): {e}", dir.display()))?;
                super::memory::obey(&log, dir).map_err(|e| format!("intake.memory: {e}"))?;
                Ok(Adapter::Memory(log))
            }
            _ => Err("intake.type: this binary has no such log".into()),
        }
    }

    /// The node's side of it.
    pub fn log(&self) -> &dyn IntakeLog {
        match self {
            #[cfg(feature = "kafka")]
            Adapter::Kafka(log) => log,
            Adapter::Memory(log) => log,
        }
    }

    /// One core's way into a partition.
    ///
    /// # Errors
    /// When no client can be made.
    pub async fn publisher(
        &self,
        core: u16,
        partition: u32,
        node: &str,
    ) -> Result<Rc<dyn Publisher>, AskError> {
        match self {
            #[cfg(feature = "kafka")]
            Adapter::Kafka(log) => {
                let publisher = log.publisher(core, partition).await?;
                Ok(Rc::new(publisher) as Rc<dyn Publisher>)
            }
            Adapter::Memory(log) => Ok(Rc::new(log.publisher(partition, node))),
        }
    }

    /// When the first of the client's certificates ends, seconds since 1970.
    pub fn certificate_ends_s(&self) -> Option<i64> {
        match self {
            #[cfg(feature = "kafka")]
            Adapter::Kafka(log) => log.certificate_ends_s(),
            Adapter::Memory(_) => None,
        }
    }

    /// Whether losing this host loses the log as well.
    pub fn is_on_this_host(&self) -> bool {
        matches!(self, Adapter::Memory(_))
    }
}

/// Beside the data directory, not in it: a lost data directory is what a log is for.
pub fn memory_dir(config: &Config, intake: &IntakeConfig) -> PathBuf {
    intake.memory_dir.clone().unwrap_or_else(|| {
        let mut name = config.node.data_dir.as_os_str().to_owned();
        name.push(".intake");
        PathBuf::from(name)
    })
}

#[cfg(feature = "kafka")]
fn kafka_settings(intake: &IntakeConfig) -> KafkaSettings {
    let kafka = &intake.kafka;
    let small = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    KafkaSettings {
        brokers: kafka.brokers.clone(),
        topic: intake.topic.clone(),
        node: intake.node_id.clone(),
        publish_timeout_ms: small(intake.publish_timeout_ms),
        max_record_bytes: small(intake.max_record_bytes),
        tls: kafka.ssl.as_ref().map(|ssl| Tls {
            ca: ssl.ca.clone(),
            certificate: ssl.cert.clone(),
            key: ssl.key.clone(),
            key_password: None,
        }),
        sasl: kafka.sasl.as_ref().map(|sasl| Sasl {
            mechanism: match sasl.mechanism {
                crate::config::SaslMechanism::Plain => SaslMechanism::Plain,
                crate::config::SaslMechanism::ScramSha256 => SaslMechanism::ScramSha256,
                crate::config::SaslMechanism::ScramSha512 => SaslMechanism::ScramSha512,
                crate::config::SaslMechanism::Oauthbearer => SaslMechanism::Oauthbearer,
            },
            username: sasl.username.clone(),
            password: sasl
                .password
                .as_ref()
                .map_or_else(String::new, |p| p.expose_str().to_owned()),
            token_file: sasl.token_file.clone(),
        }),
    }
}

#[cfg(all(test, feature = "kafka"))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_key_of_the_kafka_client_reaches_it() {
        let yaml = "wal: { type: dual }
http: { ip: 127.0.0.1 }
intake:
  type: kafka
  node_id: n-1
  topic: t
  publish_timeout_ms: 1234
  max_record_bytes: 9000000
  kafka:
    brokers: ['a:1', 'b:2']
    ssl: { ca: /ca, cert: /cert, key: /key }
    sasl: { mechanism: scram_sha_512, username: u, password: p }
backup: { enabled: true, max_age_ms: 1h, store: { type: local, root: /b }, signing_key: k }
";
        let intake = crate::config::for_test(yaml).intake.unwrap();
        let settings = kafka_settings(&intake);
        assert_eq!(settings.brokers, ["a:1", "b:2"]);
        assert_eq!(
            (settings.topic.as_str(), settings.node.as_str()),
            ("t", "n-1")
        );
        assert_eq!(settings.publish_timeout_ms, 1234);
        assert_eq!(settings.max_record_bytes, 9_000_000);
        let tls = settings.tls.unwrap();
        assert_eq!(tls.ca, Some("/ca".into()));
        assert_eq!(tls.certificate, Some("/cert".into()));
        assert_eq!(tls.key, Some("/key".into()));
        let sasl = settings.sasl.unwrap();
        assert_eq!(sasl.mechanism, SaslMechanism::ScramSha512);
        assert_eq!((sasl.username.as_str(), sasl.password.as_str()), ("u", "p"));
    }
}
