//! The built binary, from outside: hooks in, the admin port asked, a sink paused, a dead letter
//! delivered again, a reload, a clean stop. Everything on loopback, the store on a disk.
#![allow(clippy::unwrap_used)]

mod harness;

mod hostile;

mod backups;

mod dual;

use std::fs;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use harness::*;

const SINK: &str = "/v1/tenants/default/sources/app/sinks/out";

#[test]
fn paused_sink_keeps_its_hooks_and_a_resumed_one_gets_them() {
    let sink = Sink::start(200);
    let mut node = Node::start(sink.address);
    let (status, view) = node.order("PATCH", SINK, &json!({ "paused": true }));
    assert_eq!((status, &view["paused"]), (200, &json!(true)));
    let ids: Vec<String> = (0..8)
        .map(|n| node.post("app", &json!({ "n": n })))
        .collect();
    node.until("all wait", || node.get(SINK).1["waiting"] == 8);
    assert_eq!(sink.hits.load(Ordering::SeqCst), 0);

    let path = format!("/v1/hooks/{}", ids[0]);
    let (status, hook) = node.get(&path);
    assert_eq!(status, 200);
    assert_eq!(hook["source"], "app");
    assert_eq!(hook["deliveries"][0]["state"], "due");
    assert_eq!(hook.get("body_base64"), None);
    let shown = node.ask(&["hook", "show", &ids[0], "--body"]);
    assert_eq!(shown["body_base64"], "eyJuIjowfQ==");
    let (_, wal) = node.get("/v1/wal");
    assert_eq!(
        (&wal["instance"], &wal["wal"]["hooks"]),
        (&json!("tested"), &json!(8))
    );
    assert_eq!(wal["shards"].as_array().unwrap().len(), 2);

    let (status, view) = node.order("PATCH", SINK, &json!({ "paused": false }));
    assert_eq!((status, &view["paused"]), (200, &json!(false)));
    node.until("all delivered", || sink.hits.load(Ordering::SeqCst) == 8);
    node.until("nothing is kept", || node.get(&path).0 == 404);
    let (_, audit) = node.get("/v1/audit");
    let actions: Vec<&str> = audit["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["action"].as_str().unwrap())
        .collect();
    assert_eq!(actions, ["sink.resume", "sink.pause"]);
    node.stop();
}

#[test]
fn dead_letters_are_listed_and_a_replay_delivers_them_over_a_restart() {
    let sink = Sink::start(410);
    let mut node = Node::start(sink.address);
    let mut ids: Vec<String> = (0..6)
        .map(|n| node.post("app", &json!({ "n": n })))
        .collect();
    let letters = |node: &Node| node.get("/v1/dlq").1["items"].as_array().unwrap().clone();
    node.until("all dead", || letters(&node).len() == 6);
    assert!(letters(&node).iter().all(|l| l["reason"] == "permanent"));
    assert_eq!(node.get("/v1/dlq?sink=nobody").1["items"], json!([]));
    // Page by page, the same.
    let mut paged = Vec::new();
    let mut path = "/v1/dlq?limit=2".to_string();
    loop {
        let (_, page) = node.get(&path);
        for letter in page["items"].as_array().unwrap() {
            paged.push(letter["id"].as_str().unwrap().to_string());
        }
        match page["next"].as_str() {
            Some(next) => path = format!("/v1/dlq?limit=2&cursor={next}"),
            None => break,
        }
    }
    paged.sort();
    ids.sort();
    assert_eq!(paged, ids);

    let order = json!({ "kind": "dlq", "sink": "nobody" });
    assert_eq!(
        node.order("POST", "/v1/replays", &order).1["error"],
        "unknown_sink"
    );
    sink.status.store(200, Ordering::SeqCst);
    // As slow as can be, so that the restart comes in between.
    let slow = json!({ "kind": "dlq", "source": "app", "per_second": 1 });
    let (status, job) = node.order("POST", "/v1/replays", &slow);
    assert_eq!((status, &job["state"]), (201, &json!("running")));
    let id = job["id"].as_str().unwrap().to_string();
    let paused = node.ask(&["replay", "pause", &id]);
    assert_eq!(
        (&paused["state"], &paused["reason"]),
        (&json!("paused"), &json!("operator"))
    );
    // What was due again at a stop would be delivered without the id of its replay.
    let named = format!("x-ankusa-replay-id: {id}\r\n");
    let count = || {
        let seen = sink.seen.lock().unwrap();
        seen.iter()
            .filter(|(head, _)| head.contains(&named))
            .count()
    };
    node.until("delivered so far", || count() + letters(&node).len() == 6);
    node.stop();
    node.child = Node::spawn(&node.dir, node.ingest, node.admin, node.sink, &[]);
    node.until("ready again", || node.get("/ready").0 == 200);
    let kept = node.ask(&["replay", "show", &id]);
    assert_eq!(
        (&kept["state"], &kept["source"]),
        (&json!("paused"), &json!("app"))
    );
    assert_eq!(node.ask(&["replay", "resume", &id])["state"], "running");
    node.until("done", || {
        node.get(&format!("/v1/replays/{id}")).1["state"] == "done"
    });
    node.until("delivered", || {
        letters(&node).is_empty() && node.get("/v1/wal").1["wal"]["hooks"] == 0
    });
    // Those of the replay say so, those before it do not.
    assert_eq!(count(), 6);
    let seen = sink.seen.lock().unwrap();
    let any = seen
        .iter()
        .filter(|(head, _)| head.contains("x-ankusa-replay-id"));
    assert_eq!(any.count(), 6);
    drop(seen);
    let done = node.ask(&["replay", "show", &id]);
    assert_eq!((&done["moved"], &done["skipped"]), (&json!(6), &json!(0)));
    let again = node.order(
        "PATCH",
        &format!("/v1/replays/{id}"),
        &json!({ "state": "paused" }),
    );
    assert_eq!((again.0, &again.1["error"]), (409, &json!("replay_ended")));
    assert_eq!(
        node.ask(&["replay", "list"])["items"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    node.stop();
}

#[test]
fn replay_whose_deliveries_keep_dying_pauses_itself_and_can_be_resumed() {
    let sink = Sink::start(410);
    let mut node = Node::start(sink.address);
    for n in 0..80 {
        node.post("app", &json!({ "n": n }));
    }
    let dead = |node: &Node| node.metric("ankusa_queue_dead");
    node.until("all dead", || dead(&node) == 80.0);
    let order = json!({ "kind": "dlq", "per_second": 100 });
    let (status, job) = node.order("POST", "/v1/replays", &order);
    assert_eq!(status, 201, "{job}");
    let path = format!("/v1/replays/{}", job["id"].as_str().unwrap());
    let now = |node: &Node| node.get(&path).1;
    node.until("no part runs", || now(&node)["state"] != "running");
    let paused = now(&node);
    assert_eq!(paused["state"], "paused", "{paused}");
    assert_eq!(paused["reason"], "deliveries_keep_dying");
    assert!(paused["moved"].as_u64().unwrap() < 80, "{paused}");

    sink.status.store(200, Ordering::SeqCst);
    node.order("PATCH", &path, &json!({ "state": "running" }));
    node.until("done", || now(&node)["state"] == "done");
    // What died again died after the job began: it is for another one.
    node.order(
        "POST",
        "/v1/replays",
        &json!({ "kind": "dlq", "per_second": 1000 }),
    );
    node.until("delivered", || node.get("/v1/wal").1["wal"]["hooks"] == 0);
    assert_eq!(
        node.get("/v1/replays").1["items"].as_array().unwrap().len(),
        2
    );
    node.stop();
}

#[test]
fn service_manager_hears_of_ready_alive_reloading_and_stopping() {
    let sink = Sink::start(200);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let hear = |word: &str| {
        let mut buffer = [0; 4096];
        loop {
            let got = socket.recv(&mut buffer).unwrap();
            let text = String::from_utf8_lossy(&buffer[..got]).into_owned();
            if text.contains(word) {
                return text;
            }
        }
    };
    let env = [
        ("NOTIFY_SOCKET", path.to_str().unwrap()),
        ("WATCHDOG_USEC", "2000000"),
    ];
    let mut node = Node::start_with(sink.address, &env);
    assert!(hear("READY=1").contains("STATUS=listening"));
    hear("WATCHDOG=1");
    hear("WATCHDOG=1");
    node.signal("-HUP");
    assert!(hear("RELOADING=1").contains("MONOTONIC_USEC="));
    hear("READY=1");
    node.stop();
    hear("STOPPING=1");
}

#[test]
fn reload_takes_sources_over_refuses_a_broken_file_whole_and_buries_what_has_no_sink() {
    let sink = Sink::start(200);
    let mut node = Node::start(sink.address);
    let more = "\x20 more:\n\x20   verify: { type: none }\n\x20   sinks: [ { name: held, type: log, paused: true } ]\n";
    node.config(more);
    node.signal("-HUP");
    node.until("the new source", || {
        node.call(node.ingest, "POST", "/webhooks/more", Some(&json!({})))
            .0
            == 201
    });
    node.until("taken over on every core", || {
        node.get("/v1/tenants/default/sources").1["items"]
            .as_array()
            .unwrap()
            .len()
            == 2
    });

    fs::write(
        node.file(),
        "sources: { app: { verify: { type: nonsense } } }\n",
    )
    .unwrap();
    node.signal("-HUP");
    node.until("refused", || node.log().contains("reload refused"));
    node.post("more", &json!({}));

    node.config("");
    node.signal("-HUP");
    node.until("the source is gone", || {
        node.call(node.ingest, "POST", "/webhooks/more", Some(&json!({})))
            .0
            == 404
    });
    node.until("its rows are dead letters", || {
        let items = node.get("/v1/dlq?source=more").1["items"].clone();
        let items = items.as_array().unwrap();
        !items.is_empty()
            && items.iter().all(|l| l["reason"] == "sink_gone")
            && node.get("/v1/wal").1["wal"]["hooks"] == items.len()
    });

    // They would die at once: a replay leaves them alone, until their sink is back.
    let order = json!({ "kind": "dlq", "source": "more" });
    let replay = || {
        let (_, job) = node.order("POST", "/v1/replays", &order);
        let path = format!("/v1/replays/{}", job["id"].as_str().unwrap());
        node.until("replay done", || node.get(&path).1["state"] == "done");
        node.get(&path).1
    };
    let left = replay();
    assert_eq!(left["moved"], 0);
    assert!(left["skipped"].as_u64().unwrap() >= 2, "{left}");
    node.config(more);
    node.signal("-HUP");
    node.until("the sink is back", || {
        node.get("/v1/tenants/default/sources/more").0 == 200
    });
    assert_eq!(replay()["moved"], left["skipped"]);
    let held = "/v1/tenants/default/sources/more/sinks/held";
    node.until("they wait", || {
        node.get(held).1["waiting"] == left["skipped"]
    });
    node.stop();
}

#[test]
fn families_move_with_traffic() {
    let sink = Sink::start(200);
    let mut node = Node::start(sink.address);
    for n in 0..20 {
        node.post("app", &json!({ "n": n }));
    }
    node.call(node.ingest, "POST", "/webhooks/nobody", Some(&json!({})));
    node.call(node.ingest, "DELETE", "/webhooks/app", None);
    node.until("delivered", || sink.hits.load(Ordering::SeqCst) == 20);
    for series in [
        "ankusa_ingest_requests_total{source_id=\"app\",outcome=\"committed\"}",
        "ankusa_dispatch_deliveries_total{result=\"delivered\",sink=\"out\"}",
    ] {
        node.until(series, || node.metric(series) == 20.0);
    }
    for series in [
        "ankusa_ingest_refused_total{reason=\"unknown_source\"}",
        "ankusa_ingest_refused_total{reason=\"method_not_allowed\"}",
        "ankusa_ingest_duration_seconds_count",
        "ankusa_wal_sync_duration_seconds_count",
        "ankusa_wal_commit_duration_seconds_count",
        "ankusa_wal_commit_batch_size_count",
        "ankusa_dispatch_attempt_duration_seconds_count",
        "ankusa_store_disk_bytes",
        "ankusa_store_free_bytes",
        "ankusa_store_slots",
        "ankusa_store_appended_bytes_total",
        "ankusa_process_resident_memory_bytes",
        "ankusa_process_open_fds",
    ] {
        node.until(series, || node.metric(series) > 0.0);
    }
    let (_, _) = node.order("PATCH", SINK, &json!({ "paused": true }));
    node.post("app", &json!({}));
    for series in [
        "ankusa_store_hooks",
        "ankusa_store_deliveries",
        "ankusa_store_live_bytes",
        "ankusa_queue_pending",
        "ankusa_dispatch_paused_sinks",
        "ankusa_dispatch_paused_hooks",
        "ankusa_dispatch_oldest_due_age_seconds",
    ] {
        node.until(series, || node.metric(series) > 0.0);
    }
    node.stop();
}

#[test]
fn odd_requests_get_a_word_and_change_nothing() {
    let sink = Sink::start(200);
    let mut node = Node::start(sink.address);
    for (method, path, body, status, word) in [
        ("GET", "/v1/nothing", None, 404, "not_found"),
        ("GET", "/v1/wal?x=1", None, 400, "unknown_key"),
        ("GET", "/v1/dlq?limit=0", None, 400, "invalid_value"),
        ("GET", "/v1/dlq?cursor=zz", None, 400, "invalid_value"),
        ("GET", "/v1/hooks/not-an-id", None, 404, "not_found"),
        ("GET", "/v1/replays/12", None, 404, "not_found"),
        ("DELETE", "/v1/replays", None, 405, "method_not_allowed"),
        ("POST", "/v1/replays", Some(json!({})), 400, "invalid_value"),
        (
            "POST",
            "/v1/replays",
            Some(json!({ "kind": "archive" })),
            400,
            "unsupported_kind",
        ),
        (
            "POST",
            "/v1/replays",
            Some(json!({ "kind": "dlq", "a": 1 })),
            400,
            "unknown_key",
        ),
        (
            "POST",
            "/v1/replays",
            Some(json!({ "kind": "dlq", "per_second": 0 })),
            400,
            "invalid_value",
        ),
        (
            "PATCH",
            SINK,
            Some(json!({ "paused": 1 })),
            400,
            "invalid_value",
        ),
        (
            "PATCH",
            "/v1/tenants/default/sources/app/sinks/no",
            Some(json!({ "paused": true })),
            404,
            "unknown_sink",
        ),
        (
            "GET",
            "/v1/tenants/default/sources/no",
            None,
            404,
            "unknown_source",
        ),
    ] {
        let (got, text) = node.call(node.admin, method, path, body.as_ref());
        let answer: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (got, answer["error"].as_str()),
            (status, Some(word)),
            "{method} {path}"
        );
    }
    let long = json!({ "kind": "x".repeat(70_000) });
    let (status, text) = node.call(node.admin, "POST", "/v1/replays", Some(&long));
    assert_eq!(
        (status, text.as_str()),
        (413, "{\"error\":\"payload_too_large\"}")
    );
    assert_eq!(node.get("/v1/audit").1["items"], json!([]));
    node.stop();
}

/// Failpoints and mutations are a cargo feature that nothing but the drills' build switches on.
#[test]
fn a_build_without_the_feature_has_no_failpoints_and_no_mutations() {
    let binary = std::fs::read(env!("CARGO_BIN_EXE_ankusa")).unwrap();
    for name in [
        "ANKUSA_MUTATION",
        "ANKUSA_FAILPOINT",
        "ANKUSA_SYNC_DELAY_MS",
    ] {
        let found = binary.windows(name.len()).any(|w| w == name.as_bytes());
        assert_eq!(found, cfg!(feature = "mutations"), "{name}");
    }
}
