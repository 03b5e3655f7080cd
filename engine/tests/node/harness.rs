//! A node, its sink, and what the tests ask of them.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Nothing here takes that long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Head and body of a request.
pub(crate) type Request = (String, Vec<u8>);

/// A sink that answers with the status it is told, and keeps what it was given.
#[derive(Clone)]
pub(crate) struct Sink {
    pub(crate) address: SocketAddr,
    pub(crate) status: Arc<AtomicU16>,
    pub(crate) hits: Arc<AtomicUsize>,
    pub(crate) seen: Arc<Mutex<Vec<Request>>>,
}

impl Sink {
    pub(crate) fn start(status: u16) -> Sink {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let sink = Sink {
            address: listener.local_addr().unwrap(),
            status: Arc::new(AtomicU16::new(status)),
            hits: Arc::default(),
            seen: Arc::default(),
        };
        let own = sink.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let own = own.clone();
                std::thread::spawn(move || own.answer(stream.unwrap()));
            }
        });
        sink
    }

    /// One request, one answer, close.
    fn answer(&self, mut stream: TcpStream) {
        let (mut got, mut buffer) = (Vec::new(), [0; 4096]);
        // Where the body begins, and its length.
        let shape = |got: &[u8]| {
            let end = got.windows(4).position(|w| w == b"\r\n\r\n")? + 4;
            let head = String::from_utf8_lossy(&got[..end]).to_ascii_lowercase();
            let length = head.split("content-length: ").nth(1);
            let length = length.and_then(|rest| rest.split("\r\n").next());
            Some((end, length.map_or(0, |n| n.parse().unwrap_or(0))))
        };
        let (end, length) = loop {
            match shape(&got) {
                Some((end, length)) if got.len() >= end + length => break (end, length),
                _ => {}
            }
            match stream.read(&mut buffer) {
                Ok(n) if n > 0 => got.extend_from_slice(&buffer[..n]),
                _ => return,
            }
        };
        let status = self.status.load(Ordering::SeqCst);
        let head = String::from_utf8_lossy(&got[..end]).into_owned();
        let body = got[end..end + length].to_vec();
        self.seen.lock().unwrap().push((head, body));
        self.hits.fetch_add(1, Ordering::SeqCst);
        let text = format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        let _ = stream.write_all(text.as_bytes());
    }
}

pub(crate) struct Node {
    pub(crate) child: Child,
    pub(crate) dir: tempfile::TempDir,
    pub(crate) ingest: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) sink: SocketAddr,
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
            eprintln!("{log}");
        }
    }
}

/// A port that no other test of this run gets, below those that the kernel gives to clients.
pub(crate) fn free_port() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = 12_000 + (std::process::id() % 200) as u16 * 100;
    loop {
        let port = first + NEXT.fetch_add(1, Ordering::SeqCst) % 100;
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", port)) {
            return listener.local_addr().unwrap();
        }
    }
}

pub(crate) fn binary() -> Command {
    Command::new(env!("CARGO_BIN_EXE_ankusa"))
}

impl Node {
    pub(crate) fn start(sink: SocketAddr) -> Node {
        Node::start_with(sink, &[])
    }

    pub(crate) fn start_with(sink: SocketAddr, env: &[(&str, &str)]) -> Node {
        Node::start_as(sink, env, "", "")
    }

    /// With settings of its own and more sources.
    pub(crate) fn start_as(
        sink: SocketAddr,
        env: &[(&str, &str)],
        settings: &str,
        more_sources: &str,
    ) -> Node {
        // Not in /tmp, which may be memory: direct I/O wants a disk.
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let (ingest, admin) = (free_port(), free_port());
        write_config(&dir, (ingest, admin), sink, settings, more_sources);
        let child = Node::run(&dir, env);
        let node = Node {
            child,
            dir,
            ingest,
            admin,
            sink,
        };
        node.until("ready", || node.get("/ready").0 == 200);
        node
    }

    pub(crate) fn spawn(
        dir: &tempfile::TempDir,
        ingest: SocketAddr,
        admin: SocketAddr,
        sink: SocketAddr,
        env: &[(&str, &str)],
    ) -> Child {
        write_config(dir, (ingest, admin), sink, "", "");
        Node::run(dir, env)
    }

    /// Starts it again with the configuration it has.
    pub(crate) fn run_again(&self) -> Child {
        Node::run(&self.dir, &[])
    }

    fn run(dir: &tempfile::TempDir, env: &[(&str, &str)]) -> Child {
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(dir.path().join("log"))
            .unwrap();
        binary()
            .args(["serve", "--config"])
            .arg(dir.path().join("ankusa.yml"))
            .current_dir(dir.path())
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap()
    }

    pub(crate) fn config(&self, more_sources: &str) {
        let ports = (self.ingest, self.admin);
        write_config(&self.dir, ports, self.sink, "", more_sources);
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.dir.path().join("ankusa.yml")
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    pub(crate) fn until(&self, what: &str, holds: impl Fn() -> bool) {
        let end = Instant::now() + PATIENCE;
        while !holds() {
            assert!(Instant::now() < end, "never came: {what}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn call(
        &self,
        to: SocketAddr,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> (u16, String) {
        let body = body.map(Value::to_string).unwrap_or_default();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {to}\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let Ok(mut stream) = TcpStream::connect(to) else {
            return (0, String::new());
        };
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut text = String::new();
        if stream.write_all(head.as_bytes()).is_err() || stream.read_to_string(&mut text).is_err() {
            return (0, String::new());
        }
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).and_then(|s| s.parse().ok());
        (status.unwrap_or(0), body.to_string())
    }

    pub(crate) fn get(&self, path: &str) -> (u16, Value) {
        let (status, body) = self.call(self.admin, "GET", path, None);
        (status, serde_json::from_str(&body).unwrap_or_default())
    }

    pub(crate) fn order(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let (status, text) = self.call(self.admin, method, path, Some(body));
        (status, serde_json::from_str(&text).unwrap_or_default())
    }

    /// Sends a hook and returns its id.
    pub(crate) fn post(&self, source: &str, body: &Value) -> String {
        let path = format!("/webhooks/{source}");
        let (status, text) = self.call(self.ingest, "POST", &path, Some(body));
        assert_eq!(status, 201, "{text}");
        let answer: Value = serde_json::from_str(&text).unwrap();
        answer["id"].as_str().unwrap().to_string()
    }

    pub(crate) fn metric(&self, series: &str) -> f64 {
        let (_, text) = self.call(self.admin, "GET", "/metrics", None);
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no series {series}"))
            .parse()
            .unwrap()
    }

    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args([signal, &pid]).status().unwrap();
        assert!(sent.success());
    }

    pub(crate) fn stop(&mut self) {
        self.signal("-TERM");
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                assert_eq!(status.code(), Some(0), "{}", self.log());
                return;
            }
            assert!(Instant::now() < end, "does not stop\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// A command of the binary that asks the running node.
    pub(crate) fn ask(&self, args: &[&str]) -> Value {
        let done = binary()
            .args(args)
            .arg("--json")
            .arg("--config")
            .arg(self.file())
            .output()
            .unwrap();
        let fault = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.success(), "{args:?}: {fault}");
        serde_json::from_slice(&done.stdout).unwrap()
    }
}

fn write_config(
    dir: &tempfile::TempDir,
    (ingest, admin): (SocketAddr, SocketAddr),
    sink: SocketAddr,
    settings: &str,
    more_sources: &str,
) {
    let (http, admin) = (ingest.port(), admin.port());
    let wal = match settings {
        "" => "wal: { segment_bytes: 16777216 }\n",
        settings => settings,
    };
    let text = format!(
        "node: {{ name: tested, data_dir: ./data, cores: 2 }}\n\
         log: {{ format: json }}\n\
         http: {{ ip: 127.0.0.1, port: {http} }}\n\
         admin: {{ ip: 127.0.0.1, port: {admin} }}\n\
         {wal}\
         egress: {{ allow_http: true, allow_private: true }}\n\
         sources:\n\
         \x20 app:\n\
         \x20   verify: {{ type: none }}\n\
         \x20   sinks: [ {{ name: out, type: http, url: \"http://{sink}/\", allow_unsigned: true }} ]\n\
         {more_sources}"
    );
    fs::write(dir.path().join("ankusa.yml"), text).unwrap();
}
