//! The node under `wal.type: dual`, from outside, over the memory log, which does what its control
//! file says. And one over a Kafka that is not there.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use super::*;

use ankusa_intake::memory::{MemoryLog, MemoryOptions};
use ankusa_intake::{From, IntakeLog, ReplayRequest, wait_for};

/// A node and what its file says of its log.
struct Dual(Node);

const MEMORY: &str = "type: memory, node_id: n-1, publish_timeout_ms: 500, retry_after_s: 3";

fn config(ingest: SocketAddr, admin: SocketAddr, sink: SocketAddr, intake: &str) -> String {
    let (http, admin) = (ingest.port(), admin.port());
    format!(
        "node: {{ name: tested, data_dir: ./data, cores: 2 }}\n\
         log: {{ format: json }}\n\
         http: {{ ip: 127.0.0.1, port: {http} }}\n\
         admin: {{ ip: 127.0.0.1, port: {admin} }}\n\
         wal: {{ type: dual, segment_bytes: 16777216 }}\n\
         intake: {{ {intake} }}\n\
         backup: {{ enabled: true, max_age_ms: 1h, signing_key: a-key-of-some-length, store: {{ type: local, root: ./backup }} }}\n\
         egress: {{ allow_http: true, allow_private: true }}\n\
         sources:\n\
         \x20 app:\n\
         \x20   verify: {{ type: none }}\n\
         \x20   dedupe: {{ header: X-Id }}\n\
         \x20   sinks: [ {{ name: out, type: http, url: \"http://{sink}/\", allow_unsigned: true }} ]\n"
    )
}

/// Status, `Retry-After` and body of an answer.
type Answer = (u16, Option<u64>, Value);

impl Dual {
    /// Started; not waited for.
    fn launch(sink: SocketAddr, intake: &str) -> Dual {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let (ingest, admin) = (free_port(), free_port());
        let text = config(ingest, admin, sink, intake);
        fs::write(dir.path().join("ankusa.yml"), text).unwrap();
        let child = Dual::spawn(&dir);
        Dual(Node {
            child,
            dir,
            ingest,
            admin,
            sink,
        })
    }

    fn start(sink: SocketAddr, intake: &str) -> Dual {
        let dual = Dual::launch(sink, intake);
        dual.until_ready();
        dual
    }

    fn spawn(dir: &tempfile::TempDir) -> Child {
        let path = dir.path().join("log");
        let log = fs::OpenOptions::new().create(true).append(true).open(path);
        binary()
            .args(["serve", "--config", "ankusa.yml"])
            .current_dir(dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.unwrap())
            .spawn()
            .unwrap()
    }

    fn until_ready(&self) {
        self.0.until("ready", || self.0.get("/ready").0 == 200);
    }

    fn restart(&mut self) {
        self.0.child = Dual::spawn(&self.0.dir);
        self.until_ready();
    }

    /// Another file from the next start on.
    fn intake(&self, intake: &str) {
        let text = config(self.0.ingest, self.0.admin, self.0.sink, intake);
        fs::write(self.0.file(), text).unwrap();
    }

    /// The log does so from now on; waits until the node has seen it.
    fn log_does(&self, what: &str, state: &str) {
        let path = self.0.dir.path().join("data.intake");
        fs::write(path.join("control.new"), what).unwrap();
        fs::rename(path.join("control.new"), path.join("control")).unwrap();
        self.0.until(state, || self.view()["log"] == state);
        // The file is looked at every 20 ms; readiness shows only some of what it says.
        std::thread::sleep(Duration::from_millis(100));
    }

    fn view(&self) -> Value {
        self.0.get("/v1/wal").1["intake"].clone()
    }

    fn post(&self, key: &str) -> Answer {
        let body = "{}";
        let to = self.0.ingest;
        let head = format!(
            "POST /webhooks/app HTTP/1.1\r\nhost: {to}\r\nconnection: close\r\nx-id: {key}\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut stream = TcpStream::connect(to).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(head.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let after = head.lines().find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            name.eq_ignore_ascii_case("retry-after")
                .then(|| value.parse().unwrap())
        });
        (status, after, serde_json::from_str(body).unwrap())
    }

    fn accepted(&self, key: &str) -> String {
        let (status, _, body) = self.post(key);
        assert_eq!(status, 201, "{body}");
        assert_eq!(body.get("duplicate"), None, "{body}");
        body["id"].as_str().unwrap().to_string()
    }

    fn refused(&self, key: &str, word: &str, after_s: u64) {
        let expected = (503, Some(after_s), json!({ "error": word }));
        assert_eq!(self.post(key), expected);
    }

    fn pause(&self, paused: bool) {
        let (status, _) = self.0.order("PATCH", SINK, &json!({ "paused": paused }));
        assert_eq!(status, 200);
    }

    /// The log of a node that does not run.
    fn log_of_stopped(&self) -> MemoryLog {
        MemoryLog::open(MemoryOptions {
            dir: self.0.dir.path().join("data.intake"),
            partitions: 8,
            sync: false,
            retention_bytes: None,
        })
        .unwrap()
    }

    fn kill(&mut self) {
        self.0.child.kill().unwrap();
        self.0.child.wait().unwrap();
    }

    /// The ids in the node's partition of the stopped node's log, in the log's order.
    fn ids_in_the_log(&self) -> Vec<String> {
        let log = self.log_of_stopped();
        let partition = wait_for(log.assign_partition("n-1")).unwrap();
        let mut replay = log.replay(ReplayRequest {
            node: "n-1".into(),
            partition,
            from: From::Earliest,
            chunk_records: 500,
            chunk_bytes: 1 << 20,
        });
        let mut ids = Vec::new();
        while let Some(chunk) = wait_for(replay.next()) {
            let records = chunk.unwrap().records.into_iter();
            ids.extend(records.map(|record| ankusa_wal::HookId(record.id).to_string()));
        }
        ids
    }
}

#[test]
fn ack_means_both_halves_and_everything_says_so() {
    let sink = Sink::start(200);
    let mut dual = Dual::start(sink.address, MEMORY);
    let (status, ready) = dual.0.get("/ready");
    assert_eq!(status, 200);
    assert_eq!(
        (&ready["store"], &ready["intake"]),
        (&json!("up"), &json!("up"))
    );
    dual.pause(true);
    let ids: Vec<String> = (0..6).map(|n| dual.accepted(&n.to_string())).collect();
    let (_, hook) = dual.0.get(&format!("/v1/hooks/{}", ids[0]));
    assert_eq!(hook["halves"]["local"], "durable");
    // In the watermark's own time.
    dual.0.until("confirmed", || {
        ids.iter().all(|id| {
            let (_, hook) = dual.0.get(&format!("/v1/hooks/{id}"));
            hook["halves"] == json!({ "local": "durable", "log": "confirmed" })
        })
    });
    dual.0.until("offset at the head", || {
        let view = dual.view();
        view["head"] == 6 && view["offset"] == 5
    });
    let view = dual.view();
    assert_eq!(
        (&view["node"], &view["state"]),
        (&json!("n-1"), &json!("up"))
    );
    assert_eq!((&view["pending"], &view["stuck"]), (&json!(0), &json!(0)));
    let (_, wal) = dual.0.get("/v1/wal");
    let shards = wal["shards"].as_array().unwrap();
    let of = |key: &str| shards.iter().map(|s| s[key].as_u64().unwrap()).sum::<u64>();
    assert_eq!(of("next_seq") - shards.len() as u64, 6);
    assert_eq!(of("watermark"), 6);
    assert_eq!(dual.0.metric("ankusa_intake_ready"), 1.0);
    assert_eq!(
        dual.0
            .metric("ankusa_intake_publish_duration_seconds_count{outcome=\"ok\"}"),
        6.0
    );
    assert!(dual.0.log().contains("AND confirmed in the intake log"));
    dual.0.stop();
    let mut in_the_log = dual.ids_in_the_log();
    let mut sent = ids;
    in_the_log.sort();
    sent.sort();
    assert_eq!(in_the_log, sent, "each of them once");

    // A clean stop left the offset at the head: nothing is read again, nothing published again.
    dual.restart();
    assert_eq!(dual.view()["offset"], 5);
    assert_eq!(
        dual.0
            .metric("ankusa_intake_replay_total{result=\"present\"}"),
        0.0
    );
    dual.0
        .until("all delivered", || sink.hits.load(Ordering::SeqCst) == 6);
    dual.0.stop();
    assert_eq!(dual.ids_in_the_log().len(), 6);
}

#[test]
fn silent_log_withholds_the_ack_and_the_repeat_waits_for_it() {
    let sink = Sink::start(200);
    let mut dual = Dual::start(sink.address, MEMORY);
    dual.log_does("silent", "up");
    dual.refused("k", "intake_unavailable", 3);
    dual.refused("k", "intake_pending", 1);
    // It is in the store, and delivered as any other.
    dual.0
        .until("delivered", || sink.hits.load(Ordering::SeqCst) == 1);
    dual.0.until("carried", || dual.view()["carried"] == 1);
    assert_eq!(dual.view()["pending"], 1);
    assert_eq!(
        dual.0
            .metric("ankusa_intake_refused_total{reason=\"pending_dedupe\"}"),
        1.0
    );
    dual.log_does("", "up");
    dual.0
        .until("published again", || dual.view()["pending"] == 0);
    let (status, _, body) = dual.post("k");
    assert_eq!((status, &body["duplicate"]), (201, &json!(true)));
    assert_eq!(
        dual.0
            .metric("ankusa_intake_reconciled_total{half=\"log\"}"),
        1.0
    );
    dual.0.stop();
    let first = body["id"].as_str().unwrap().to_string();
    let in_the_log = dual.ids_in_the_log();
    assert!(!in_the_log.is_empty() && in_the_log.iter().all(|id| *id == first));
    assert_eq!(sink.hits.load(Ordering::SeqCst), 1);
}

#[test]
fn log_that_is_down_refuses_before_anything_is_written_and_the_node_says_so() {
    let sink = Sink::start(200);
    let mut dual = Dual::start(sink.address, MEMORY);
    dual.log_does("down", "no broker answers");
    dual.0.until("not ready", || dual.0.get("/ready").0 == 503);
    let (_, ready) = dual.0.get("/ready");
    assert_eq!(
        (&ready["store"], &ready["intake"]),
        (&json!("up"), &json!("down"))
    );
    assert_eq!(
        ready["intake_reason"],
        "the intake log: no broker answers; the breaker is open"
    );
    // Each core hears of it on its own.
    let on_ingest = || dual.0.call(dual.0.ingest, "GET", "/ready", None);
    dual.0.until("not ready there", || on_ingest().0 == 503);
    let said: Value = serde_json::from_str(&on_ingest().1).unwrap();
    assert_eq!(said["intake"], json!("down"));
    let hidden = said.get("intake_reason");
    assert_eq!(hidden, None, "not on a port that anybody reaches");
    for _ in 0..3 {
        dual.refused("k", "intake_unavailable", 3);
    }
    let (_, wal) = dual.0.get("/v1/wal");
    assert_eq!(wal["wal"]["next_seq"], 1, "nothing was handed out");
    assert_eq!(wal["intake"]["breaker"], "open");
    assert_eq!(
        dual.0
            .metric("ankusa_intake_refused_total{reason=\"breaker\"}"),
        3.0
    );
    assert_eq!(dual.0.metric("ankusa_intake_ready"), 0.0);
    dual.log_does("", "up");
    // The claim was let go of: the same key is a new hook.
    dual.0.until("accepted", || dual.post("k").0 == 201);
    dual.until_ready();
    dual.0.stop();
    assert_eq!(dual.ids_in_the_log().len(), 1);
}

#[test]
fn failed_publishes_open_the_breaker_and_the_reconciler_closes_it() {
    let sink = Sink::start(200);
    let mut dual = Dual::start(sink.address, &format!("{MEMORY}, probe_ms: 100"));
    dual.log_does("refuse", "up");
    dual.0.until("open", || {
        let (status, after, _) = dual.post(&format!("{:?}", Instant::now()));
        assert_eq!((status, after), (503, Some(3)));
        dual.0
            .metric("ankusa_intake_refused_total{reason=\"breaker\"}")
            > 0.0
    });
    // Open for failures, and the log answers: a drained node must still get the hook that probes.
    assert_eq!(dual.0.get("/ready").0, 200);
    dual.log_does("", "up");
    dual.0
        .until("closed", || dual.view()["breaker"] == "closed");
    dual.0
        .until("nothing is carried", || dual.view()["pending"] == 0);
    dual.accepted("after");
    dual.0.stop();
}

#[test]
fn more_than_may_be_pending_is_refused_and_the_rest_unharmed() {
    let sink = Sink::start(200);
    let intake =
        "type: memory, node_id: n-1, publish_timeout_ms: 10000, pending: { max_records: 1 }";
    let mut dual = Dual::start(sink.address, intake);
    dual.log_does("latency_ms 1500", "up");
    std::thread::scope(|scope| {
        let first = scope.spawn(|| dual.post("first"));
        dual.0.until("pending", || dual.view()["pending"] == 1);
        dual.refused("second", "intake_unavailable", 2);
        assert_eq!(first.join().unwrap().0, 201);
    });
    assert_eq!(
        dual.0
            .metric("ankusa_intake_refused_total{reason=\"backlog\"}"),
        1.0
    );
    dual.log_does("", "up");
    dual.accepted("second");
    dual.0.stop();
}

#[test]
fn log_that_is_made_anew_under_a_running_node_gets_everything_again() {
    let sink = Sink::start(200);
    let mut dual = Dual::start(sink.address, MEMORY);
    dual.pause(true);
    let mut ids: Vec<String> = (0..5).map(|n| dual.accepted(&n.to_string())).collect();
    dual.0
        .until("the head is known", || dual.view()["head"] == 5);
    let known = || {
        let facts = fs::read(dual.0.dir.path().join("data/store.json")).unwrap();
        let facts: serde_json::Value = serde_json::from_slice(&facts).unwrap();
        facts["intake_log"].clone()
    };
    let before = known();
    dual.log_does("recreate 1", "up");
    ids.push(dual.accepted("after"));
    dual.0.until("the new log has them all", || {
        let view = dual.view();
        view["pending"] == 0 && view["head"].as_u64() >= Some(6) && view["offset"].is_u64()
    });
    // Else the next boot would find another log once more, and publish everything again.
    dual.0
        .until("the store knows which log it is", || known() != before);
    dual.0.stop();
    let mut in_the_log = dual.ids_in_the_log();
    in_the_log.sort();
    in_the_log.dedup();
    ids.sort();
    assert_eq!(in_the_log, ids);
}

#[test]
fn emptied_host_is_made_whole_from_the_log() {
    let sink = Sink::start(500);
    let mut dual = Dual::start(sink.address, MEMORY);
    let ids: Vec<String> = (0..5).map(|n| dual.accepted(&n.to_string())).collect();
    dual.kill();
    fs::remove_dir_all(dual.0.dir.path().join("data")).unwrap();
    sink.status.store(200, Ordering::SeqCst);
    sink.hits.store(0, Ordering::SeqCst);
    dual.restart();
    assert_eq!(
        dual.0
            .metric("ankusa_intake_replay_total{result=\"applied\"}"),
        5.0
    );
    dual.0
        .until("all delivered", || sink.hits.load(Ordering::SeqCst) == 5);
    // And their keys are known.
    let (status, _, body) = dual.post("0");
    assert_eq!((status, &body["id"]), (201, &json!(ids[0])));
    dual.0.stop();
}

/// What the log no longer reaches back to may be gone: nobody decides that but an operator. The
/// process stays, so that somebody can ask it.
#[test]
fn emptied_host_whose_log_is_cut_off_stays_unready_and_says_why_and_so_does_the_next_start() {
    let sink = Sink::start(500);
    let mut dual = Dual::start(sink.address, MEMORY);
    (0..5).for_each(|n| drop(dual.accepted(&n.to_string())));
    dual.kill();
    fs::remove_dir_all(dual.0.dir.path().join("data")).unwrap();
    let log = dual.log_of_stopped();
    let partition = wait_for(log.assign_partition("n-1")).unwrap();
    wait_for(log.drop_below(partition, 3)).unwrap();
    drop(log);
    for _ in 0..2 {
        dual.0.child = Dual::spawn(&dual.0.dir);
        dual.0.until("refused", || {
            let (status, ready) = dual.0.get("/ready");
            let why = ready["intake_reason"].as_str().unwrap_or_default();
            status == 503 && ready["intake"] == "down" && why.starts_with("intake_truncated")
        });
        assert_eq!(dual.0.get("/health").0, 200);
        assert!(
            TcpStream::connect(dual.0.ingest).is_err(),
            "no hook is taken"
        );
        dual.0.stop();
    }
}

#[test]
fn store_of_another_node_is_refused_by_name() {
    let sink = Sink::start(200);
    let mut dual = Dual::start(sink.address, MEMORY);
    dual.0.stop();
    dual.intake(&MEMORY.replace("n-1", "n-2"));
    dual.0.child = Dual::spawn(&dual.0.dir);
    let end = Instant::now() + PATIENCE;
    let status = loop {
        match dual.0.child.try_wait().unwrap() {
            Some(status) => break status,
            None => std::thread::sleep(Duration::from_millis(20)),
        }
        assert!(Instant::now() < end, "does not refuse\n{}", dual.0.log());
    };
    assert_eq!(status.code(), Some(1));
    let log = dual.0.log();
    assert!(log.contains("intake_node_mismatch"), "{log}");
    assert!(log.contains("`n-1`") && log.contains("`n-2`"), "{log}");
}

#[test]
fn store_without_a_log_is_published_when_it_gets_one() {
    let sink = Sink::start(200);
    let mut dual = Dual::start(sink.address, MEMORY);
    dual.0.stop();
    let both = fs::read_to_string(dual.0.file()).unwrap();
    fs::write(dual.0.file(), both.replace("type: dual", "type: disk")).unwrap();
    dual.restart();
    assert_eq!(dual.0.get("/ready").1.get("intake"), None);
    assert_eq!(dual.0.get("/v1/wal").1.get("intake"), None);
    dual.pause(true);
    let ids: Vec<String> = (0..4).map(|n| dual.accepted(&n.to_string())).collect();
    dual.0.stop();
    assert_eq!(dual.ids_in_the_log(), [""; 0]);
    fs::write(dual.0.file(), both).unwrap();
    dual.restart();
    dual.0.stop();
    let (mut found, mut sent) = (dual.ids_in_the_log(), ids);
    found.sort();
    sent.sort();
    assert_eq!(found, sent);
}

#[test]
fn topic_that_is_not_as_it_must_be_is_named_and_waited_for() {
    let sink = Sink::start(200);
    let mut dual = Dual::start(sink.address, MEMORY);
    dual.log_does("bad_topic", "up");
    dual.0.stop();
    dual.0.child = Dual::spawn(&dual.0.dir);
    dual.0.until("a finding", || {
        let (status, ready) = dual.0.get("/ready");
        let why = ready["intake_reason"].as_str().unwrap_or_default();
        status == 503
            && ready["intake"] == "recovering"
            && why.contains("unclean.leader.election.enable is true, must be false: ")
    });
    dual.log_does("", "up");
    dual.until_ready();
    dual.accepted("k");
    dual.0.stop();
}

#[test]
fn unverified_topic_is_said_in_the_start_up_line() {
    let sink = Sink::start(200);
    let mut dual = Dual::start(sink.address, &format!("{MEMORY}, verify_topic: false"));
    let log = dual.0.log();
    assert!(log.contains("intake topic settings UNVERIFIED"), "{log}");
    dual.0.stop();
}

/// A boot without a broker is alive, says what it waits for, and can be stopped.
#[cfg(feature = "kafka")]
#[test]
fn brokers_that_do_not_answer_at_boot_are_waited_for() {
    let sink = Sink::start(200);
    let closed = free_port();
    let intake = format!("type: kafka, node_id: n-1, kafka: {{ brokers: ['{closed}'] }}");
    let mut dual = Dual::launch(sink.address, &intake);
    dual.0.until("alive", || dual.0.get("/health").0 == 200);
    dual.0.until("a reason", || {
        let (status, ready) = dual.0.get("/ready");
        status == 503
            && ready["intake"] == "recovering"
            && ready["intake_reason"]
                .as_str()
                .is_some_and(|why| why.contains("does not answer"))
    });
    let order = json!({ "kind": "dlq" });
    let (status, answer) = dual.0.order("POST", "/v1/replays", &order);
    assert_eq!((status, answer), (503, json!({ "error": "starting" })));
    assert!(
        TcpStream::connect(dual.0.ingest).is_err(),
        "no hook is taken"
    );
    dual.0.stop();
}
