//! The node as a child: a generated configuration, start, readiness, its gauges, its end.
//!
//! One shard on one core by default. Ports are free ones of loopback, chosen just before the
//! start. Everything it says goes to `node.log` in its directory.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::process::{Child, ChildError};

/// Where hooks go.
#[derive(Clone, Debug)]
pub enum SinkPlan {
    /// To an HTTP server that is held back: nothing is delivered.
    Paused,
    /// To this HTTP server.
    Http(SocketAddr),
}

/// The intake log of a node under `wal.type: dual`.
#[derive(Clone, Debug)]
pub enum IntakePlan {
    /// In files; what it does is told by its `control` file ([`IntakePlan::confirm_after`]).
    Memory {
        /// Where.
        dir: PathBuf,
    },
    /// On Kafka.
    Kafka {
        /// As `host:port,host:port`.
        brokers: String,
        /// The topic, which is there.
        topic: String,
    },
}

impl IntakePlan {
    /// Lets a log in files confirm so long after a record has come to it. A running node takes
    /// it over within 20 ms.
    pub fn confirm_after(&self, time: Duration) -> io::Result<()> {
        let IntakePlan::Memory { dir } = self else {
            return Ok(());
        };
        fs::create_dir_all(dir)?;
        fs::write(
            dir.join("control.new"),
            format!("latency_ms {}", time.as_millis()),
        )?;
        fs::rename(dir.join("control.new"), dir.join("control"))
    }

    fn configuration(&self, node_dir: &Path) -> String {
        let log = match self {
            IntakePlan::Memory { dir } => {
                format!("type: memory, memory: {{ dir: {} }}", dir.display())
            }
            IntakePlan::Kafka { brokers, topic } => {
                format!("type: kafka, topic: {topic}, kafka: {{ brokers: [{brokers}] }}")
            }
        };
        format!(
            "intake: {{ node_id: bench, {log} }}\n\
             backup: {{ enabled: true, interval_ms: 1d, max_age_ms: 2d, signing_key: only-for-a-bench, \
             store: {{ type: local, root: {} }} }}\n",
            node_dir.join("backup").display()
        )
    }
}

/// How to start a node.
#[derive(Clone, Debug)]
pub struct NodePlan {
    /// The `ankusa` program.
    pub program: PathBuf,
    /// Directory for configuration, log and data.
    pub dir: PathBuf,
    /// The cores, one shard each.
    pub cores: Vec<usize>,
    /// `fdatasync` or `dsync`.
    pub sync: String,
    /// Groups in flight.
    pub groups_inflight: u32,
    /// Where hooks go.
    pub sink: SinkPlan,
    /// Take a dedupe key from this header.
    pub key_header: Option<String>,
    /// `wal.type: dual` with this log; `disk` without.
    pub intake: Option<IntakePlan>,
    /// Only the reactor cores are pinned; other threads run where there is room.
    pub is_floating: bool,
    /// Further environment.
    pub env: Vec<(String, String)>,
}

/// A running node.
pub struct Node {
    child: Child,
    /// The ingest port.
    pub ingest: SocketAddr,
    /// The admin port.
    pub admin: SocketAddr,
    /// From the start of the process to the first 200 of the ingest port's `/ready`.
    pub boot: Duration,
    data: PathBuf,
}

const READY_POLL: Duration = Duration::from_millis(2);

impl NodePlan {
    /// A plan with the defaults of the benches.
    pub fn new(program: PathBuf, dir: PathBuf, core: usize) -> NodePlan {
        NodePlan {
            program,
            dir,
            cores: vec![core],
            sync: "fdatasync".to_owned(),
            groups_inflight: 2,
            sink: SinkPlan::Paused,
            key_header: None,
            intake: None,
            is_floating: false,
            env: Vec::new(),
        }
    }

    /// The data directory of the first shard.
    pub fn shard_dir(&self) -> PathBuf {
        self.dir.join("data").join("shard-000")
    }

    fn configuration(&self, ingest: u16, admin: u16) -> String {
        let (url, paused) = match self.sink {
            SinkPlan::Paused => ("http://127.0.0.1:9/in".to_owned(), true),
            SinkPlan::Http(address) => (format!("http://{address}/in"), false),
        };
        let dedupe = match &self.key_header {
            Some(name) => format!("    dedupe: {{ header: {name} }}\n"),
            None => String::new(),
        };
        let cores: Vec<String> = self.cores.iter().map(usize::to_string).collect();
        format!(
            "node:\n  name: bench\n  data_dir: {data}\n  cores: [{cores}]\n  shards: {shards}\n\
             log:\n  level: info\n  format: json\n\
             http:\n  ip: 127.0.0.1\n  port: {ingest}\n\
             admin:\n  ip: 127.0.0.1\n  port: {admin}\n\
             wal:\n  type: {mode}\n  sync: {sync}\n  groups_inflight: {inflight}\n\
             {intake}\
             egress:\n  allow_http: true\n  allow_private: true\n\
             sources:\n  demo:\n    verify: {{ type: none }}\n{dedupe}    sinks:\n      \
             - {{ name: bench, type: http, url: \"{url}\", paused: {paused}, allow_unsigned: true }}\n",
            data = self.dir.join("data").display(),
            cores = cores.join(", "),
            shards = self.cores.len(),
            sync = self.sync,
            inflight = self.groups_inflight,
            mode = if self.intake.is_some() {
                "dual"
            } else {
                "disk"
            },
            intake = match &self.intake {
                Some(intake) => intake.configuration(&self.dir),
                None => String::new(),
            },
        )
    }

    /// Starts the node on what is in its directory and waits until it is ready.
    pub fn start(&self, patience: Duration) -> Result<Node, ChildError> {
        let io = |what: &str| {
            let what = what.to_owned();
            move |source| ChildError::Io { what, source }
        };
        fs::create_dir_all(&self.dir).map_err(io("making the node's directory"))?;
        let (ingest, admin) = free_ports().map_err(io("finding free ports"))?;
        let config = self.dir.join("ankusa.yml");
        fs::write(&config, self.configuration(ingest, admin))
            .map_err(io("writing the node's configuration"))?;
        let log_path = self.dir.join("node.log");
        let log = File::options()
            .create(true)
            .append(true)
            .open(&log_path)
            .map_err(io("opening the node's log"))?;
        let mut command = Command::new(&self.program);
        command
            .arg("serve")
            .arg("--config")
            .arg(&config)
            .stdin(Stdio::null());
        command
            .stdout(log.try_clone().map_err(io("opening the node's log"))?)
            .stderr(log);
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        let begun = Instant::now();
        let core = (self.cores.len() == 1 && !self.is_floating).then(|| self.cores[0]);
        let mut child = Child::start(command, "ankusa", core)?;
        let [ingest, admin] =
            [ingest, admin].map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        loop {
            let state = match get(ingest, "/ready") {
                Ok((200, _)) => break,
                Ok((status, body)) => format!("{status} {body}"),
                Err(e) => e.to_string(),
            };
            if !child.is_running() {
                return Err(ChildError::Ended {
                    what: "ankusa".to_owned(),
                    last_line: last_line(&log_path),
                });
            }
            if begun.elapsed() > patience {
                return Err(ChildError::NotReady {
                    what: "ankusa".to_owned(),
                    after: patience,
                    state,
                });
            }
            std::thread::sleep(READY_POLL);
        }
        Ok(Node {
            child,
            ingest,
            admin,
            boot: begun.elapsed(),
            data: self.dir.join("data"),
        })
    }
}

impl Node {
    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Stops it in an orderly way; false when it had to be killed or failed.
    pub fn stop(mut self, patience: Duration) -> bool {
        self.child.stop(patience)
    }

    /// Ends it at once, as a crash would.
    pub fn kill(mut self) {
        self.child.kill();
    }

    /// The sum of a metric's series whose labels contain `label` (empty: all of them).
    pub fn metric(&self, name: &str, label: &str) -> Option<f64> {
        let (status, text) = get(self.admin, "/metrics").ok()?;
        if status != 200 {
            return None;
        }
        sum_metric(&text, name, label)
    }

    /// Resident memory in bytes.
    pub fn resident_bytes(&self) -> u64 {
        crate::hostfacts::read(format!("/proc/{}/status", self.pid()))
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .and_then(|rest| rest.trim().split(' ').next()?.parse::<u64>().ok())
            .map_or(0, |kb| kb * 1024)
    }

    /// Undelivered hooks in the store, by its own account (`/v1/wal`).
    pub fn live_hooks(&self) -> Option<u64> {
        let (_, body) = get(self.admin, "/v1/wal").ok()?;
        let value: serde_json::Value = serde_json::from_str(&body).ok()?;
        value["wal"]["hooks"].as_u64()
    }

    /// The data directory.
    pub fn data(&self) -> &Path {
        &self.data
    }
}

/// Two ports nobody listens on right now.
fn free_ports() -> io::Result<(u16, u16)> {
    let first = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let second = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    Ok((first.local_addr()?.port(), second.local_addr()?.port()))
}

/// One GET; the connection is closed after it.
pub fn get(address: SocketAddr, path: &str) -> io::Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(2))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.write_all(
        format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").as_bytes(),
    )?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let text = String::from_utf8_lossy(&answer);
    let bad = || io::Error::new(io::ErrorKind::InvalidData, "not an HTTP answer");
    let status = text
        .get(9..12)
        .and_then(|s| s.parse().ok())
        .ok_or_else(bad)?;
    let body = text
        .split_once("\r\n\r\n")
        .map(|(_, body)| body.to_owned())
        .ok_or_else(bad)?;
    Ok((status, body))
}

fn sum_metric(text: &str, name: &str, label: &str) -> Option<f64> {
    let mut sum = None;
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some(rest) = line.strip_prefix(name) else {
            continue;
        };
        if !rest.starts_with(['{', ' ']) || !rest.contains(label) {
            continue;
        }
        if let Some(value) = rest.rsplit(' ').next().and_then(|v| v.parse::<f64>().ok()) {
            sum = Some(sum.unwrap_or(0.0) + value);
        }
    }
    sum
}

fn last_line(path: &Path) -> String {
    crate::hostfacts::read(path)
        .lines()
        .last()
        .unwrap_or("it said nothing")
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metric_is_the_sum_of_the_series_asked_for() {
        let text = "# TYPE a counter\na{x=\"1\",y=\"2\"} 3\na{x=\"2\"} 4\nab 9\n";
        assert_eq!(sum_metric(text, "a", ""), Some(7.0));
        assert_eq!(sum_metric(text, "a", "x=\"1\""), Some(3.0));
        assert_eq!(sum_metric(text, "b", ""), None);
    }
}
