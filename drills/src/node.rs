//! The built binary under a drill: started, asked whether it is ready, killed.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

/// How long a boot may take.
const BOOT_TIMEOUT: Duration = Duration::from_secs(120);

/// Where ports of nodes are taken from.
const PORTS: std::ops::Range<u16> = 20_000..30_000;

/// What a node is started with.
#[derive(Clone, Debug)]
pub struct NodePlan {
    /// The `ankusa` binary.
    pub binary: PathBuf,
    /// Directory for data, configuration and log.
    pub dir: PathBuf,
    /// Where deliveries go.
    pub sink: SocketAddr,
    /// Cores.
    pub cores: usize,
    /// Size of a segment.
    pub segment_bytes: u64,
    /// The sink of the source `keyed` is paused: its hooks stay in the store.
    pub keyed_paused: bool,
    /// More lines of configuration, whole sections.
    pub more: String,
}

/// A running node.
pub struct Node {
    child: Child,
    address: SocketAddr,
    log_file: PathBuf,
}

impl NodePlan {
    /// Writes the configuration and starts the node; does not wait for it.
    pub fn start(&self, env: &[(&str, &str)]) -> Result<Node> {
        fs::create_dir_all(&self.dir)?;
        let (http, admin) = (free_port()?, free_port()?);
        let config = format!(
            "node: {{ name: drill, data_dir: {data}, cores: {cores} }}\n\
             log: {{ format: text }}\n\
             http: {{ ip: 127.0.0.1, port: {http}, max_body_bytes: 262144 }}\n\
             admin: {{ ip: 127.0.0.1, port: {admin} }}\n\
             wal: {{ segment_bytes: {segment}, group_max_bytes: {group} }}\n\
             egress: {{ allow_http: true, allow_private: true }}\n\
             {more}\n\
             sources:\n\
             \x20 drill:\n\
             \x20   verify: {{ type: none }}\n\
             \x20   sinks: [ {{ name: out, type: http, url: \"http://{sink}/\", allow_unsigned: true }} ]\n\
             \x20 keyed:\n\
             \x20   verify: {{ type: none }}\n\
             \x20   dedupe: {{ header: X-Event-Id }}\n\
             \x20   sinks: [ {{ name: out, type: http, url: \"http://{sink}/\", allow_unsigned: true, paused: {paused} }} ]\n",
            data = self.data_dir().display(),
            cores = self.cores,
            segment = self.segment_bytes,
            group = (self.segment_bytes / 2).min(1 << 20),
            more = self.more,
            sink = self.sink,
            paused = self.keyed_paused,
        );
        let file = self.dir.join("ankusa.yml");
        fs::write(&file, config)?;
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log_file())?;
        let mut command = Command::new(&self.binary);
        command
            .arg("serve")
            .arg("--config")
            .arg(&file)
            .current_dir(&self.dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        for (name, value) in env {
            command.env(name, value);
        }
        let child = command
            .spawn()
            .with_context(|| format!("starting {}", self.binary.display()))?;
        Ok(Node {
            child,
            address: SocketAddr::from(([127, 0, 0, 1], http)),
            log_file: self.log_file(),
        })
    }

    /// The data directory.
    pub fn data_dir(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// The node's log.
    pub fn log_file(&self) -> PathBuf {
        self.dir.join("node.log")
    }
}

impl Node {
    /// Where hooks go.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until `GET /ready` says 200. False: the node ended before.
    pub fn wait_ready(&mut self) -> Result<bool> {
        let end = Instant::now() + BOOT_TIMEOUT;
        while Instant::now() < end {
            if self.child.try_wait()?.is_some() {
                return Ok(false);
            }
            if get_status(self.address, "/ready").is_ok_and(|status| status == 200) {
                return Ok(true);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err(self.not_up())
    }

    /// As [`Node::wait_ready`], but a full disk counts as up: such a node refuses hooks, and
    /// delivers those that it has.
    pub fn wait_up(&mut self) -> Result<bool> {
        let end = Instant::now() + BOOT_TIMEOUT;
        while Instant::now() < end {
            if self.child.try_wait()?.is_some() {
                return Ok(false);
            }
            match self.ready_word() {
                Some((200, _)) => return Ok(true),
                Some((_, word)) if word == "full" => return Ok(true),
                _ => std::thread::sleep(Duration::from_millis(20)),
            }
        }
        Err(self.not_up())
    }

    /// Why a boot is given up: what the node says, and the end of its log.
    fn not_up(&self) -> anyhow::Error {
        let said = match self.ready_word() {
            Some((status, word)) => format!("/ready says {status} {word}"),
            None => "/ready does not answer".to_owned(),
        };
        let log = log_tail(&self.log_file);
        anyhow!("the node is not up after {BOOT_TIMEOUT:?}: {said}\n{log}")
    }

    /// Whether `GET /ready` says 200.
    pub fn is_ready(&self) -> bool {
        get_status(self.address, "/ready").is_ok_and(|status| status == 200)
    }

    /// What `GET /ready` says: its status and the word for the store; `None`: no answer.
    pub fn ready_word(&self) -> Option<(u16, String)> {
        let (status, body) = get(self.address, "/ready").ok()?;
        let json: serde_json::Value = serde_json::from_str(&body).ok()?;
        let word = json.get("store").and_then(|word| word.as_str());
        Some((status, word.unwrap_or_default().to_owned()))
    }

    /// SIGKILL, now.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Whether the node has ended by itself.
    pub fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Whether the node has ended by a SIGKILL that came from nobody here: at its failpoint.
    ///
    /// # Errors
    /// It ended in another way.
    pub fn has_died(&mut self) -> Result<bool> {
        match self.child.try_wait()? {
            None => Ok(false),
            Some(status) if status.signal() == Some(libc::SIGKILL) => Ok(true),
            Some(status) => bail!("the node ended by itself: {status}"),
        }
    }

    /// SIGTERM; does not wait.
    pub fn ask_to_stop(&self) {
        #[expect(unsafe_code, reason = "std sends no signal but SIGKILL")]
        // SAFETY: the pid is that of our own child, which has not been waited for.
        unsafe {
            libc::kill(self.child.id() as i32, libc::SIGTERM);
        }
    }

    /// SIGTERM, and waits for the clean end.
    pub fn stop(&mut self) -> Result<bool> {
        self.ask_to_stop();
        let end = Instant::now() + BOOT_TIMEOUT;
        while Instant::now() < end {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status.success());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.kill()?;
        Ok(false)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// The last lines of a node's log.
pub fn log_tail(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(25)..].join("\n")
}

/// A port that nobody listens on, below those that the kernel gives to outgoing connections: one of
/// those could take it between here and the node's bind.
fn free_port() -> Result<u16> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    for _ in 0..PORTS.len() {
        let at = std::process::id() * 13 + NEXT.fetch_add(1, Ordering::Relaxed);
        let port = PORTS.start + (at % PORTS.len() as u32) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no free port in {PORTS:?}")
}

fn get_status(address: SocketAddr, path: &str) -> std::io::Result<u16> {
    get(address, path).map(|(status, _)| status)
}

fn get(address: SocketAddr, path: &str) -> std::io::Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_millis(500))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(
        format!("GET {path} HTTP/1.1\r\nHost: drill\r\nConnection: close\r\n\r\n").as_bytes(),
    )?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let status = text.split(' ').nth(1).and_then(|s| s.parse().ok());
    let body = text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
    status
        .zip(body)
        .ok_or_else(|| std::io::ErrorKind::InvalidData.into())
}
