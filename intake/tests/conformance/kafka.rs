//! The Kafka adapter under the cases, on the brokers that `ANKUSA_KAFKA` names (its script, that
//! is: `drills/kafka`, brought up). Each case has a topic of its own.

use std::process::Command;

use ankusa_intake::kafka::{KafkaLog, KafkaPublisher, KafkaSettings, Sasl, SaslMechanism, Tls};
use ankusa_intake::{AskError, From, IntakeLog, wait_for};
use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use std::time::Duration;

use crate::cases::{EXPECTED, run_all};
use crate::driver::{Driver, Harness, NODE, read_back};

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

/// TLS with a client certificate, and SASL: right, and wrong in each part.
#[test]
fn the_kafka_adapter_speaks_tls_and_sasl() {
    let Ok(path) = std::env::var("ANKUSA_KAFKA") else {
        println!("skipped: ANKUSA_KAFKA does not name drills/kafka");
        return;
    };
    let topic = format!("tls.{}", std::process::id());
    let made = script(&path, &["topic", "create", &topic]);
    assert!(made.contains(&topic));
    let state = script(&path, &["where"]);
    let tls = |name: &str| Some(format!("{}/tls/{name}", state.trim()).into());
    let with = |mechanism, password: &str, certificate: bool| {
        let mut settings = settings(&topic, NODE);
        let secure = BROKERS.split(',').map(|b| b.replace(":190", ":192"));
        settings.brokers = secure.collect();
        settings.tls = Some(Tls {
            ca: tls("ca.crt"),
            certificate: tls("client.crt").filter(|_| certificate),
            key: tls("client.key").filter(|_| certificate),
            key_password: None,
        });
        settings.sasl = Some(Sasl {
            mechanism,
            username: "ankusa".to_owned(),
            password: password.to_owned(),
            token_file: None,
        });
        KafkaLog::open(settings).unwrap()
    };
    for mechanism in [SaslMechanism::Plain, SaslMechanism::ScramSha512] {
        let log = with(mechanism, "secret", true);
        let publisher = wait_for(log.publisher(0, 0)).unwrap();
        Driver::new(publisher).commit_one(1, b"over TLS");
        assert_eq!(wait_for(log.verify(EXPECTED)).unwrap().findings, []);
        let (_, read) = read_back(&log, NODE, 0, From::Earliest).unwrap();
        assert!(read.records >= 1);
        refused(&with(mechanism, "wrong", true), "intake.kafka.sasl");
    }
    // An unsigned token: {"alg":"none"}, {"sub":"ankusa","iat":…,"exp":…}.
    let token =
        "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbmt1c2EiLCJpYXQiOjE2MDAwMDAwMDAsImV4cCI6NDEwMDAwMDAwMH0.";
    let log = with(SaslMechanism::Oauthbearer, token, true);
    let publisher = wait_for(log.publisher(0, 0)).unwrap();
    Driver::new(publisher).commit_one(2, b"by token");
    assert_eq!(wait_for(log.verify(EXPECTED)).unwrap().findings, []);
    assert!(read_back(&log, NODE, 0, From::Earliest).is_ok());
    let ended =
        "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbmt1c2EiLCJpYXQiOjE2MDAwMDAwMDAsImV4cCI6MTYwMDAwMDAwMX0.";
    refused(
        &with(SaslMechanism::Oauthbearer, ended, true),
        "intake.kafka.sasl",
    );
    let log = with(SaslMechanism::Plain, "secret", true);
    let ends_s = log.certificate_ends_s().unwrap();
    let now_s = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs() as i64;
    assert!((1..=30).contains(&((ends_s - now_s) / 86_400)), "{ends_s}");
    let certificate = format!("{}/tls/client.crt", state.trim());
    a_changed_certificate_file_is_picked_up(&log, &certificate);
    let bare = with(SaslMechanism::Plain, "secret", false);
    refused(&bare, "intake.kafka.ssl");
}

/// The brokers refuse us: said as that, with the keys to look at, within a question or two.
fn refused(log: &KafkaLog, keys: &str) {
    let begun = std::time::Instant::now();
    loop {
        let answer = wait_for(log.bounds(0));
        match answer {
            Err(AskError::Denied(text)) => {
                println!("refused after {:?}: {text}", begun.elapsed());
                assert!(text.contains(keys), "{text}");
                return;
            }
            other => assert!(
                begun.elapsed() < Duration::from_secs(30),
                "{keys}: {other:?}"
            ),
        }
    }
}

/// A rotated certificate means a new client under the same publisher, while records are in flight.
fn a_changed_certificate_file_is_picked_up(log: &KafkaLog, certificate: &str) {
    let mut driver = Driver::new(wait_for(log.publisher(0, 1)).unwrap());
    driver.commit_one(1, b"old client");
    let file = std::fs::File::options().write(true).open(certificate);
    file.unwrap()
        .set_modified(std::time::SystemTime::now())
        .unwrap();
    let begun = std::time::Instant::now();
    let mut seq = 2;
    while driver.publisher.rebuilds() == 0 {
        driver.publish(seq, &[bytes::Bytes::from_static(b"meanwhile")], 2_000_000);
        let wanted = seq;
        driver.until("answer", |got| got.contains_key(&wanted));
        seq += 1;
        assert!(begun.elapsed() < Duration::from_secs(60), "never picked up");
    }
    driver.commit_one(seq, b"new client");
    println!(
        "certificate file changed: new client after {:?}",
        begun.elapsed()
    );
}
