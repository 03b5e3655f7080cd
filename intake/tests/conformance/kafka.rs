//! The Kafka adapter under the cases, on the brokers that `ANKUSA_KAFKA` names (its script, that
//! is: `drills/kafka`, brought up). Each case has a topic of its own.

use std::process::Command;

use ankusa_intake::kafka::{KafkaLog, KafkaPublisher, KafkaSettings};
use ankusa_intake::{IntakeLog, wait_for};
use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use std::time::Duration;

use crate::cases::run_all;
use crate::driver::{Harness, NODE};

const BROKERS: &str = "127.0.0.1:19091,127.0.0.1:19092,127.0.0.1:19093";

/// Runs `drills/kafka`; its output.
pub fn script(script: &str, args: &[&str]) -> String {
    let out = Command::new(script).args(args).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(
        out.status.success(),
        "{args:?}: {text}{}",
        String::from_utf8_lossy(&out.stderr)
    );
    text
}

pub fn settings(topic: &str, node: &str) -> KafkaSettings {
    KafkaSettings {
        brokers: BROKERS.split(',').map(str::to_owned).collect(),
        topic: topic.to_owned(),
        node: node.to_owned(),
        publish_timeout_ms: 2_000,
        max_record_bytes: 10_000_000,
        tls: None,
        sasl: None,
    }
}

struct Kafka {
    script: String,
    topic: String,
    log: KafkaLog,
}

impl Harness for Kafka {
    type Publisher = KafkaPublisher;

    fn log(&self) -> &dyn IntakeLog {
        &self.log
    }

    fn publisher(&self, partition: u32, node: &str) -> KafkaPublisher {
        if node == NODE {
            return wait_for(self.log.publisher(0, partition)).unwrap();
        }
        let other = KafkaLog::open(settings(&self.topic, node)).unwrap();
        wait_for(other.publisher(0, partition)).unwrap()
    }

    fn append_raw(&self, partition: u32, headers: &[(&str, &[u8])], value: &[u8]) {
        let producer: BaseProducer = ClientConfig::new()
            .set("bootstrap.servers", BROKERS)
            .set("acks", "all")
            .create()
            .unwrap();
        let mut owned = OwnedHeaders::new();
        for (key, value) in headers {
            owned = owned.insert(Header {
                key,
                value: Some(*value),
            });
        }
        let record = BaseRecord::to(&self.topic)
            .partition(partition as i32)
            .key("raw")
            .payload(value)
            .headers(owned);
        producer.send(record).map_err(|(e, _)| e).unwrap();
        producer.flush(Duration::from_secs(20)).unwrap();
    }

    fn drop_below(&self, partition: u32, position: u64) {
        let (partition, position) = (partition.to_string(), position.to_string());
        script(
            &self.script,
            &["topic", "trim", &self.topic, &partition, &position],
        );
    }

    fn recreate(&self) {
        script(&self.script, &["topic", "delete", &self.topic]);
        // The name stays taken for a moment.
        script(&self.script, &["topic", "create", &self.topic]);
    }
}

#[test]
fn the_kafka_adapter_passes_every_case() {
    let Ok(path) = std::env::var("ANKUSA_KAFKA") else {
        println!("skipped: ANKUSA_KAFKA does not name drills/kafka");
        return;
    };
    let run = std::process::id();
    run_all(|case| {
        let topic = format!("{}.{run}", &case[..case.len().min(60)]);
        script(&path, &["topic", "create", &topic]);
        let log = KafkaLog::open(settings(&topic, NODE)).unwrap();
        Kafka {
            script: path.clone(),
            topic,
            log,
        }
    });
}
