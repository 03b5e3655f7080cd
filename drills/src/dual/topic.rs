//! The three brokers and the topic, from outside: `drills/kafka`, a consumer and a producer of the
//! drill's own. Blocking.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Headers, Message};
use rdkafka::producer::{BaseProducer, BaseRecord, DeliveryResult, Producer, ProducerContext};
use rdkafka::{ClientContext, Offset, TopicPartitionList};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Where the brokers of `drills/kafka` listen.
pub const BROKERS: &str = "127.0.0.1:19091,127.0.0.1:19092,127.0.0.1:19093";

/// The script, and the topic of a drill.
#[derive(Clone, Debug)]
pub struct Topic {
    /// `drills/kafka`.
    pub script: PathBuf,
    /// Its name.
    pub name: String,
}

impl Topic {
    /// Runs the script; what it printed.
    pub fn kafka(&self, words: &str) -> Result<String> {
        let output = Command::new(&self.script)
            .args(words.split_whitespace())
            .stdin(Stdio::null())
            .output()
            .with_context(|| self.script.display().to_string())?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            bail!("drills/kafka {words}: {}: {said}", output.status);
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// `drills/kafka topic VERB NAME REST`.
    pub fn topic(&self, verb: &str, rest: &str) -> Result<String> {
        self.kafka(&format!("topic {verb} {} {rest}", self.name))
    }

    /// The position that a partition's next record takes.
    pub fn head(&self, partition: i32) -> Result<i64> {
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", BROKERS)
            .set("group.id", "drill")
            .create()?;
        let (_, high) =
            consumer.fetch_watermarks(&self.name, partition, Duration::from_secs(20))?;
        Ok(high)
    }

    /// The hook ids in a partition, and how often each is in it.
    pub fn ids(&self, partition: i32) -> Result<BTreeMap<String, usize>> {
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", BROKERS)
            .set("group.id", "drill")
            .set("enable.auto.commit", "false")
            .create()?;
        let patience = Duration::from_secs(20);
        let (low, high) = consumer.fetch_watermarks(&self.name, partition, patience)?;
        let mut from = TopicPartitionList::new();
        from.add_partition_offset(&self.name, partition, Offset::Offset(low))?;
        consumer.assign(&from)?;
        let (mut ids, mut at, end) = (BTreeMap::new(), low, Instant::now() + 3 * patience);
        while at < high {
            if Instant::now() > end {
                bail!("read only to {at} of {high}");
            }
            let Some(message) = consumer.poll(Duration::from_millis(200)) else {
                continue;
            };
            let message = message?;
            at = message.offset() + 1;
            let headers = message.headers().into_iter().flat_map(|h| h.iter());
            for header in headers.filter(|h| h.key == "ankusa_intake_id") {
                let id = String::from_utf8_lossy(header.value.unwrap_or_default());
                *ids.entry(id.into_owned()).or_default() += 1;
            }
        }
        Ok(ids)
    }

    /// The moment at which an independent producer first gets a confirm for a partition.
    pub fn first_confirm(&self, partition: i32, patience: Duration) -> Result<Instant> {
        let told = Arc::new(AtomicBool::new(false));
        let producer: BaseProducer<Told> = ClientConfig::new()
            .set("bootstrap.servers", BROKERS)
            .set("acks", "all")
            .set("message.timeout.ms", "1000")
            .set("reconnect.backoff.max.ms", "200")
            .create_with_context(Told(Arc::clone(&told)))?;
        let end = Instant::now() + patience;
        while Instant::now() < end {
            // A record without our headers: not a hook of anyone's.
            let record = BaseRecord::<(), [u8]>::to(&self.name)
                .partition(partition)
                .payload(b"probe".as_slice());
            let _ = producer.send(record);
            for _ in 0..5 {
                producer.poll(Duration::from_millis(20));
                if told.load(Ordering::Acquire) {
                    let now = Instant::now();
                    producer.purge(rdkafka::producer::PurgeConfig::default().queue().inflight());
                    return Ok(now);
                }
            }
        }
        bail!("no confirm in {patience:?}")
    }
}

struct Told(Arc<AtomicBool>);

impl ClientContext for Told {}

impl ProducerContext for Told {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, _: ()) {
        if result.is_ok() {
            self.0.store(true, Ordering::Release);
        }
    }
}
