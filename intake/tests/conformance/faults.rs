//! What only real brokers show: brokers that die, hang or are too few, and bad topic settings.
//!
//! One test, one thing after the other: the brokers are shared. Each prints what it saw.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ankusa_intake::kafka::{KafkaLog, KafkaPublisher, codes::unknown_codes};
use ankusa_intake::{Answer, AskError, From, IntakeLog, Readiness, wait_for};
use bytes::Bytes;

use crate::cases::EXPECTED;
use crate::driver::{Driver, NODE, read_back};
use crate::kafka::{script, settings};

struct Rig {
    script: String,
    topic: String,
    log: KafkaLog,
    driver: Driver<KafkaPublisher>,
    next: u64,
}

/// What a stretch of publishing saw.
#[derive(Debug, Default)]
struct Seen {
    confirmed: u64,
    late: u64,
    failures: std::collections::BTreeMap<&'static str, u64>,
}

impl Rig {
    fn new(script_path: &str, name: &str) -> Rig {
        static RUN: AtomicU64 = AtomicU64::new(0);
        let run = RUN.fetch_add(1, Ordering::Relaxed);
        let topic = format!("{name}.{}.{run}", std::process::id());
        script(script_path, &["topic", "create", &topic]);
        let log = KafkaLog::open(settings(&topic, NODE)).unwrap();
        log.watch(0);
        let mut driver = Driver::new(wait_for(log.publisher(0, 0)).unwrap());
        driver.commit_one(0, b"first");
        Rig {
            script: script_path.to_owned(),
            topic,
            log,
            driver,
            next: 1,
        }
    }

    fn run(&self, args: &[&str]) -> String {
        script(&self.script, args)
    }

    fn leader(&self) -> String {
        let leader = self.run(&["topic", "leader", &self.topic, "0"]);
        leader.trim().to_owned()
    }

    /// Ten records every 10 ms for a while, each with a deadline of two seconds, then the answers.
    fn load(&mut self, during: Duration) -> Seen {
        let first = self.next;
        let begun = Instant::now();
        let group: Vec<Bytes> = (0..10).map(|_| Bytes::from(vec![1; 1000])).collect();
        while begun.elapsed() < during {
            self.driver.publish(self.next, &group, 2_000_000);
            self.next += 10;
            let pause = Instant::now();
            self.driver
                .until("pause", |_| pause.elapsed() >= Duration::from_millis(10));
        }
        let wanted = (self.next - first) as usize;
        self.driver
            .until("all answers", |got| got.range(first..).count() >= wanted);
        let mut seen = Seen::default();
        for answer in self.driver.answers.range(first..).flat_map(|(_, all)| all) {
            match answer {
                Answer::Confirmed { late: false, .. } => seen.confirmed += 1,
                Answer::Confirmed { late: true, .. } => seen.late += 1,
                Answer::Failed { failure, .. } => {
                    *seen.failures.entry(failure.reason).or_default() += 1;
                }
            }
        }
        seen
    }

    /// Publishes one record after the other until one is confirmed; how long that took.
    fn until_confirmed(&mut self) -> Duration {
        let begun = Instant::now();
        loop {
            self.next += 1;
            self.driver
                .publish(self.next, &[Bytes::from_static(b"probe")], 2_000_000);
            let seq = self.next;
            self.driver.until("answer", |got| got.contains_key(&seq));
            if let Answer::Confirmed { .. } = self.driver.answers[&seq][0] {
                return begun.elapsed();
            }
            assert!(
                begun.elapsed() < Duration::from_secs(60),
                "never again confirmed"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn await_ready(&self, wanted: Readiness) {
        let begun = Instant::now();
        while self.log.ready() != wanted {
            assert!(
                begun.elapsed() < Duration::from_secs(60),
                "{}",
                self.log.ready()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Every confirmed record is in the log under the position it was told.
    fn check(&self) {
        let (chunks, _) = read_back(&self.log, NODE, 0, From::Earliest).unwrap();
        let held: std::collections::BTreeMap<u64, u64> = chunks
            .iter()
            .flat_map(|c| &c.records)
            .map(|r| (r.position, r.seq))
            .collect();
        for (seq, answers) in &self.driver.answers {
            for answer in answers {
                if let Answer::Confirmed { confirm, .. } = answer {
                    let position = confirm.position.unwrap();
                    assert_eq!(held.get(&position), Some(seq), "confirmed and not held");
                }
            }
        }
    }
}

fn leader_killed(script: &str) {
    let mut rig = Rig::new(script, "leader-killed");
    let leader = rig.leader();
    rig.run(&["kill", &leader]);
    let seen = rig.load(Duration::from_secs(3));
    let after = rig.until_confirmed();
    println!("leader killed: {seen:?}, confirmed again {after:?} after 3 s of load");
    rig.run(&["start", &leader]);
    rig.check();
}

fn follower_paused(script: &str) {
    let mut rig = Rig::new(script, "follower-paused");
    let leader = rig.leader();
    let follower = ["1", "2", "3"].into_iter().find(|n| *n != leader).unwrap();
    rig.run(&["pause", follower]);
    let seen = rig.load(Duration::from_secs(8));
    let after = rig.until_confirmed();
    println!("follower paused: {seen:?}, confirmed again {after:?} after 8 s of load");
    rig.run(&["resume", follower]);
    rig.check();
}

fn one_down_confirms_and_two_down_do_not(script: &str) {
    let mut rig = Rig::new(script, "two-down");
    let leader = rig.leader();
    let others: Vec<&str> = ["1", "2", "3"]
        .into_iter()
        .filter(|n| *n != leader)
        .collect();
    rig.run(&["stop", others[0]]);
    let seen = rig.load(Duration::from_secs(2));
    println!("one stopped: {seen:?}");
    assert!(seen.confirmed > 0, "{seen:?}");
    // With controllers in the same processes two cannot stop in good order: killed.
    rig.run(&["kill", others[1]]);
    rig.load(Duration::from_secs(4));
    let seen = rig.load(Duration::from_secs(3));
    println!("two down, after 4 s: {seen:?}");
    assert_eq!(seen.confirmed, 0, "confirmed without a quorum: {seen:?}");
    rig.run(&["start", others[0]]);
    let after = rig.until_confirmed();
    println!("two down, one started again: confirmed {after:?} after it answered");
    rig.run(&["start", others[1]]);
    rig.check();
}

fn all_killed_and_started_again(script: &str) {
    let mut rig = Rig::new(script, "all-killed");
    for n in ["1", "2", "3"] {
        rig.run(&["kill", n]);
    }
    let seen = rig.load(Duration::from_secs(3));
    println!("all killed: {seen:?}");
    assert_eq!(seen.confirmed, 0);
    rig.await_ready(Readiness::Unreachable);
    assert!(matches!(
        wait_for(rig.log.bounds(0)),
        Err(AskError::Unreachable(_))
    ));
    rig.run(&["start", "1", "2", "3"]);
    let after = rig.until_confirmed();
    println!("all started: confirmed {after:?} after the last one answered");
    rig.await_ready(Readiness::Up);
    rig.check();
}

fn topic_deleted_is_not_found(script: &str) {
    let mut rig = Rig::new(script, "deleted");
    rig.run(&["topic", "delete", &rig.topic]);
    rig.await_ready(Readiness::NotFound);
    let seen = rig.load(Duration::from_secs(3));
    println!("topic deleted: {seen:?}");
    assert_eq!(seen.confirmed, 0);
    assert!(matches!(
        wait_for(rig.log.verify(EXPECTED)),
        Err(AskError::NotFound(_))
    ));
}

fn verify_refuses_each_bad_setting(script_path: &str) {
    for (setting, found) in [
        ("replicas=2", "replication factor"),
        ("min.insync.replicas=1", "min.insync.replicas"),
        (
            "unclean.leader.election.enable=true",
            "unclean.leader.election.enable",
        ),
        ("retention.ms=7199999", "retention.ms"),
        ("max.message.bytes=9999999", "max.message.bytes"),
        ("cleanup.policy=compact", "cleanup.policy"),
    ] {
        let topic = format!("bad.{}.{}", found.replace(' ', "-"), std::process::id());
        script(script_path, &["topic", "create", &topic, "1", setting]);
        let log = KafkaLog::open(settings(&topic, NODE)).unwrap();
        let verified = wait_for(log.verify(EXPECTED)).unwrap();
        let names: Vec<_> = verified.findings.iter().map(|f| f.setting).collect();
        println!("{setting}: {}", verified.findings[0]);
        assert_eq!(names, [found]);
    }
}

fn a_record_over_the_topics_limit_is_refused_alone(script: &str) {
    let mut rig = Rig::new(script, "too-large");
    rig.run(&["topic", "set", &rig.topic, "max.message.bytes=1500000"]);
    let small = Bytes::from_static(b"small");
    let large = Bytes::from(vec![0; 3_000_000]);
    let group = [small.clone(), small.clone(), large, small.clone(), small];
    let answers = rig.driver.commit(1, &group);
    println!("one too large among small ones: {answers:?}");
    assert!(matches!(
        answers[2],
        Answer::Failed { failure, .. } if failure.class.label() == "permanent"
    ));
    rig.driver.commit_one(50, b"after it");
    rig.check();
}

#[test]
fn the_kafka_adapter_meets_the_fault_table() {
    let Ok(path) = std::env::var("ANKUSA_KAFKA") else {
        println!("skipped: ANKUSA_KAFKA does not name drills/kafka");
        return;
    };
    if std::env::var("ANKUSA_KAFKA_FAULTS").is_err() {
        println!("skipped: ANKUSA_KAFKA_FAULTS=1 lets it kill brokers");
        return;
    }
    verify_refuses_each_bad_setting(&path);
    a_record_over_the_topics_limit_is_refused_alone(&path);
    topic_deleted_is_not_found(&path);
    leader_killed(&path);
    follower_paused(&path);
    one_down_confirms_and_two_down_do_not(&path);
    all_killed_and_started_again(&path);
    assert_eq!(unknown_codes(), 0);
}
