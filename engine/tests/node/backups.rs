//! Backups of a live node, and a store restored from them elsewhere.

use std::fs;
use std::net::SocketAddr;
use std::process::{Child, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use super::{Node, SINK, Sink, binary, free_port};

const HOURLY: &str = "interval_ms: 3600000, max_age_ms: 7200000, require_fresh: true";

struct Backed {
    node: Node,
    backup: String,
}

fn configure(
    dir: &std::path::Path,
    ports: (SocketAddr, SocketAddr),
    sink: SocketAddr,
    data: &str,
    backup: &str,
) {
    let text = format!(
        "node: {{ name: tested, data_dir: ./{data}, cores: 2 }}\n\
         log: {{ format: json, level: debug }}\n\
         http: {{ ip: 127.0.0.1, port: {} }}\n\
         admin: {{ ip: 127.0.0.1, port: {} }}\n\
         wal: {{ segment_bytes: 16777216 }}\n\
         egress: {{ allow_http: true, allow_private: true }}\n\
         backup: {{ enabled: true, {backup}, store: {{ type: local, root: ./backups }}, signing_key: \"a key for the backups\" }}\n\
         sources:\n\
         \x20 app:\n\
         \x20   verify: {{ type: none }}\n\
         \x20   sinks: [ {{ name: out, type: http, url: \"http://{sink}/\", allow_unsigned: true, paused: true }} ]\n",
        ports.0.port(),
        ports.1.port(),
    );
    fs::write(dir.join("ankusa.yml"), text).unwrap();
}

fn spawn(dir: &std::path::Path) -> Child {
    let log = fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(dir.join("log"))
        .unwrap();
    binary()
        .args(["serve", "--config", "ankusa.yml"])
        .current_dir(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap()
}

impl Backed {
    /// A node whose sink is paused, so that every hook stays.
    fn start(sink: SocketAddr, backup: &str, prepare: impl Fn(&std::path::Path)) -> Backed {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let (ingest, admin) = (free_port(), free_port());
        configure(dir.path(), (ingest, admin), sink, "data", backup);
        prepare(dir.path());
        let child = spawn(dir.path());
        Backed {
            node: Node {
                child,
                dir,
                ingest,
                admin,
                sink,
            },
            backup: backup.into(),
        }
    }

    fn until_ready(&self) {
        self.node
            .until("ready", || self.node.get("/ready").0 == 200);
    }

    /// The same node, on another data directory from here on.
    fn on(&mut self, data: &str) {
        let node = &self.node;
        configure(
            node.dir.path(),
            (node.ingest, node.admin),
            node.sink,
            data,
            &self.backup,
        );
    }

    fn serve(&mut self) {
        self.node.child = spawn(self.node.dir.path());
    }

    fn kill(&mut self) {
        self.node.child.kill().unwrap();
        self.node.child.wait().unwrap();
    }

    fn run(&self, args: &[&str]) -> Output {
        binary()
            .args(args)
            .args(["--config", "ankusa.yml"])
            .current_dir(self.node.dir.path())
            .output()
            .unwrap()
    }

    /// A command that must fail; what it said.
    fn refused(&self, args: &[&str]) -> String {
        let done = self.run(args);
        assert!(!done.status.success(), "{args:?}");
        String::from_utf8(done.stderr).unwrap()
    }

    fn ask(&self, args: &[&str]) -> Value {
        let done = self.run(&[args, &["--json"]].concat());
        let fault = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(
            done.status.success(),
            "{args:?}: {fault}\n{}",
            self.node.log()
        );
        serde_json::from_slice(&done.stdout).unwrap()
    }

    fn has(&self, id: &str) -> bool {
        self.node.get(&format!("/v1/hooks/{id}")).0 == 200
    }
}

#[test]
fn store_restored_elsewhere_has_every_hook_acked_before_the_backup_began() {
    let sink = Sink::start(200);
    let mut backed = Backed::start(sink.address, HOURLY, |_| {});
    // Ready at all means that the first backup was taken.
    backed.until_ready();
    assert_eq!(backed.node.get("/ready").1["backup"], "fresh");
    let acked = Mutex::new(Vec::new());
    let stop = AtomicBool::new(false);
    let before = std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    let id = backed.node.post("app", &json!({ "n": 1 }));
                    acked.lock().unwrap().push(id);
                }
            });
        }
        backed
            .node
            .until("some hooks", || acked.lock().unwrap().len() > 200);
        let before = acked.lock().unwrap().clone();
        let run = backed.ask(&["backup", "now"]);
        assert_eq!(run["failed"], Value::Null);
        assert_eq!(run["backup"], 2);
        let sent_once = run["bytes_sent"].as_u64().unwrap();
        let again = backed.ask(&["backup", "now"]);
        assert!(again["bytes"].as_u64() >= Some(sent_once), "{again}");
        stop.store(true, Ordering::SeqCst);
        before
    });
    assert!(
        backed
            .node
            .metric("ankusa_backup_runs_total{result=\"ok\"}")
            >= 3.0
    );
    let (_, audit) = backed.node.get("/v1/audit");
    assert_eq!(audit["items"][0]["action"], "backup.start");

    let said = backed.refused(&["restore"]);
    assert!(
        said.contains("another process") || said.contains("not empty"),
        "{said}"
    );
    // The host is lost.
    backed.kill();
    let said = backed.refused(&["restore"]);
    assert!(said.contains("not empty"), "{said}");
    assert_eq!(backed.ask(&["backup", "verify"])["sound"], true);
    let listed = backed.ask(&["backup", "list"]);
    assert_eq!(listed["items"][0]["backup"], 3);
    assert!(
        backed
            .refused(&["restore", "--from", "secondary"])
            .contains("not in this version")
    );
    backed.on("elsewhere");
    let restored = backed.ask(&["restore", "--manifest", "2"]);
    assert_eq!(
        (&restored["incarnation"], &restored["shards"]),
        (&json!(2), &json!(2))
    );
    let facts = backed.node.dir.path().join("elsewhere/store.json");
    let facts: Value = serde_json::from_str(&fs::read_to_string(facts).unwrap()).unwrap();
    assert_eq!(
        (&facts["origin"], &facts["incarnation"]),
        (&json!("restored"), &json!(2))
    );
    backed.serve();
    backed.until_ready();
    for id in &before {
        assert!(backed.has(id), "{id} is lost");
    }
    let new = backed.node.post("app", &json!({}));
    assert!(backed.has(&new));
    let hooks = backed.node.get("/v1/wal").1["wal"]["hooks"]
        .as_u64()
        .unwrap() as usize;
    backed
        .node
        .order("PATCH", SINK, &json!({ "paused": false }));
    backed.node.until("all delivered", || {
        sink.hits.load(Ordering::SeqCst) == hooks
    });
    backed.node.stop();

    // The lost host comes back with its old store.
    backed.on("data");
    backed.serve();
    backed.node.until("refused", || {
        let failed = &backed.node.get("/v1/backups").1["last"]["failed"];
        failed["error"] == "prefix_shared"
    });
    backed.kill();
}

#[test]
fn clean_stop_ends_with_a_backup_of_the_last_hook() {
    let sink = Sink::start(200);
    let mut backed = Backed::start(sink.address, HOURLY, |_| {});
    backed.until_ready();
    let id = backed.node.post("app", &json!({ "last": true }));
    let first = backed.ask(&["backup", "list"])["items"]
        .as_array()
        .unwrap()
        .len();
    backed.node.stop();
    let listed = backed.ask(&["backup", "list"]);
    assert_eq!(listed["items"].as_array().unwrap().len(), first + 1);
    assert_eq!(backed.ask(&["backup", "verify"])["sound"], true);

    // What is changed by one byte is not restored, and nothing is written.
    let prefix = backed.node.dir.path().join("backups/tested");
    backed.on("elsewhere");
    let newest = prefix.join("manifests/0000000002.manifest");
    let manifest = fs::read_to_string(&newest).unwrap();
    let (_, body) = manifest.split_once('\n').unwrap();
    let body: Value = serde_json::from_str(body).unwrap();
    let object = &body["shards"][0]["files"][0]["parts"][0]["object"];
    let object = prefix.join(object.as_str().unwrap());
    for (path, word) in [(object, "damaged_backup"), (newest, "bad_signature")] {
        let whole = fs::read(&path).unwrap();
        let mut odd = whole.clone();
        let middle = odd.len() / 2;
        odd[middle] ^= 1;
        fs::write(&path, &odd).unwrap();
        let said = backed.refused(&["restore"]);
        assert!(said.contains(word), "{said}");
        assert!(backed.refused(&["backup", "verify"]).contains(word));
        assert!(!backed.node.dir.path().join("elsewhere").exists());
        fs::write(&path, &whole).unwrap();
    }
    backed.ask(&["restore"]);
    backed.serve();
    backed.until_ready();
    assert!(backed.has(&id));
    backed.node.stop();
}

#[test]
fn node_that_must_have_fresh_backups_is_not_ready_without_one_and_another_store_is_left_alone() {
    let sink = Sink::start(200);
    let mut backed = Backed::start(
        sink.address,
        "interval_ms: 1000, max_age_ms: 7200000, require_fresh: true",
        // A file where the folder should be.
        |dir| fs::write(dir.join("backups"), b"").unwrap(),
    );
    backed.node.until("a failed backup", || {
        backed.node.get("/v1/backups").1["last"]["failed"]["error"] == "io"
    });
    let (status, body) = backed.node.get("/ready");
    assert_eq!(
        (status, &body["store"], &body["backup"]),
        (503, &json!("up"), &json!("none"))
    );
    assert!(
        backed
            .node
            .metric("ankusa_backup_runs_total{result=\"failed\"}")
            >= 1.0
    );
    fs::remove_file(backed.node.dir.path().join("backups")).unwrap();
    backed.until_ready();
    backed.node.stop();

    // A fresh store under the same name does not push the old backups out.
    backed.on("fresh");
    backed.serve();
    backed.node.until("refused", || {
        let failed = &backed.node.get("/v1/backups").1["last"]["failed"];
        failed["error"] == "foreign_backup"
    });
    backed.kill();
}

#[test]
fn node_killed_again_and_again_while_it_is_backed_up_leaves_a_sound_backup() {
    let sink = Sink::start(200);
    let mut backed = Backed::start(
        sink.address,
        "interval_ms: 1000, max_age_ms: 7200000",
        |_| {},
    );
    let acked = Mutex::new(Vec::new());
    for round in 0..4u64 {
        backed.until_ready();
        let from = acked.lock().unwrap().len();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !stop.load(Ordering::SeqCst) {
                        let body = json!({ "pad": "x".repeat(20_000) });
                        acked.lock().unwrap().push(backed.node.post("app", &body));
                    }
                });
            }
            // Killed in a run, or close to one.
            let runs = backed.node.get("/v1/backups").1["runs_begun"]
                .as_u64()
                .unwrap();
            backed.node.until("a run under load", || {
                let now = backed.node.get("/v1/backups").1;
                now["runs_begun"].as_u64() > Some(runs) && acked.lock().unwrap().len() > from + 50
            });
            stop.store(true, Ordering::SeqCst);
        });
        std::thread::sleep(std::time::Duration::from_millis(round * 7));
        backed.kill();
        assert_eq!(backed.ask(&["backup", "verify"])["sound"], true);
        backed.serve();
    }
    backed.until_ready();
    backed.ask(&["backup", "now"]);
    backed.kill();
    backed.on("elsewhere");
    backed.ask(&["restore"]);
    backed.serve();
    backed.until_ready();
    for id in acked.lock().unwrap().iter() {
        assert!(backed.has(id), "{id} is lost");
    }
    backed.kill();
}
