//! PostgreSQL: one row per commit, a prepared insert on each connection.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use super::client::{Parsed, Protocol};
use super::server::{Server, free_address, make};
use super::{Peer, body};

const START_PATIENCE: Duration = Duration::from_secs(30);

const SETTINGS: [(&str, &str); 8] = [
    ("fsync", "on"),
    ("synchronous_commit", "on"),
    ("full_page_writes", "on"),
    ("wal_sync_method", "fdatasync"),
    ("shared_buffers", "256MB"),
    ("max_wal_size", "8GB"),
    ("max_connections", "400"),
    ("unix_socket_directories", ""),
];

/// Starts it with its data in `dir` and makes the table.
pub(crate) fn start(programs: Option<&Path>, dir: &Path, core: usize) -> anyhow::Result<Peer> {
    let programs = match programs {
        Some(dir) => dir.to_owned(),
        None => newest()?,
    };
    make(dir)?;
    let data = dir.join("data");
    let owner = owner()?;
    if let Some((uid, gid)) = owner {
        chown(dir, Some(uid), Some(gid))?;
    }
    let run_as = |command: &mut Command| {
        if let Some((uid, gid)) = owner {
            command.uid(uid).gid(gid);
        }
        command.current_dir(dir);
    };
    let mut initdb = Command::new(programs.join("initdb"));
    initdb
        .args(["-A", "trust", "-U", "bench", "--no-sync", "-D"])
        .arg(&data);
    run_as(&mut initdb);
    let made = initdb.output().context("starting initdb")?;
    if !made.status.success() {
        bail!("initdb: {}", String::from_utf8_lossy(&made.stderr));
    }
    let address = free_address()?;
    let mut command = Command::new(programs.join("postgres"));
    command
        .arg("-D")
        .arg(&data)
        .args(["-h", "127.0.0.1", "-p"])
        .arg(address.port().to_string());
    for (key, value) in SETTINGS {
        command.arg("-c").arg(format!("{key}={value}"));
    }
    run_as(&mut command);
    let server = Server::start(command, "postgres", dir, address, core)?;
    let begun = Instant::now();
    // It listens before it takes queries.
    while let Err(why) = make_table(address) {
        if begun.elapsed() > START_PATIENCE || !why.to_string().contains("starting up") {
            return Err(why);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let settings: Vec<String> = SETTINGS.iter().map(|(k, v)| format!("{k}={v}")).collect();
    Ok(Peer {
        name: "postgresql",
        settings: format!("one INSERT per commit; {}", settings.join(", ")),
        server,
        protocol: Box::new(Rows),
    })
}

/// The newest installation of the distribution.
fn newest() -> anyhow::Result<PathBuf> {
    let mut found: Vec<(u32, PathBuf)> = std::fs::read_dir("/usr/lib/postgresql")
        .context("no PostgreSQL is installed")?
        .flatten()
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .collect();
    found.sort();
    found
        .pop()
        .map(|(_, path)| path)
        .context("no PostgreSQL is installed")
}

/// Whom to run it as: it refuses to run as root.
fn owner() -> anyhow::Result<Option<(u32, u32)>> {
    use std::os::unix::fs::MetadataExt as _;
    if std::fs::metadata("/proc/self")?.uid() != 0 {
        return Ok(None);
    }
    let users = std::fs::read_to_string("/etc/passwd")?;
    for name in ["postgres:", "nobody:"] {
        let line = users.lines().find(|line| line.starts_with(name));
        let mut fields = line.unwrap_or_default().split(':').skip(2);
        let mut next = || fields.next().and_then(|n| n.parse().ok());
        if let (Some(uid), Some(gid)) = (next(), next()) {
            return Ok(Some((uid, gid)));
        }
    }
    bail!("it does not run as root, and there is no other user to run it as")
}

fn message(kind: u8, payload: &[u8], out: &mut Vec<u8>) {
    if kind != 0 {
        out.push(kind);
    }
    out.extend_from_slice(&(payload.len() as u32 + 4).to_be_bytes());
    out.extend_from_slice(payload);
}

fn startup(out: &mut Vec<u8>) {
    let mut payload = 196_608u32.to_be_bytes().to_vec();
    payload.extend_from_slice(b"user\0bench\0database\0postgres\0\0");
    message(0, &payload, out);
}

fn make_table(address: SocketAddr) -> anyhow::Result<()> {
    let mut socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut ask = Vec::new();
    startup(&mut ask);
    let table = b"CREATE TABLE hooks (id bigserial PRIMARY KEY, body text NOT NULL)\0";
    message(b'Q', table, &mut ask);
    socket.write_all(&ask)?;
    let mut said = Vec::new();
    let mut scratch = [0u8; 4096];
    loop {
        match readies(&said, 2) {
            Parsed::Whole(_) => return Ok(()),
            Parsed::Wrong(why) => bail!("the table was not made: {why}"),
            Parsed::Partial => {}
        }
        let n = socket.read(&mut scratch)?;
        if n == 0 {
            bail!("the connection was closed");
        }
        said.extend_from_slice(&scratch[..n]);
    }
}

/// Whole messages up to the `count`th that says that it is ready for the next query.
fn readies(input: &[u8], count: usize) -> Parsed {
    let (mut at, mut seen) = (0, 0);
    while let Some(head) = input.get(at..at + 5) {
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        let end = at + 1 + length;
        let Some(payload) = input.get(at + 5..end) else {
            return Parsed::Partial;
        };
        if head[0] == b'E' {
            return Parsed::Wrong(String::from_utf8_lossy(payload).replace('\0', " "));
        }
        at = end;
        seen += usize::from(head[0] == b'Z');
        if seen == count {
            return Parsed::Whole(at);
        }
    }
    Parsed::Partial
}

struct Rows;

impl Protocol for Rows {
    fn greet(&self, _connection: usize) -> Vec<u8> {
        let mut out = Vec::new();
        startup(&mut out);
        message(
            b'P',
            b"put\0INSERT INTO hooks (body) VALUES ($1)\0\0\0",
            &mut out,
        );
        message(b'S', b"", &mut out);
        out
    }

    fn greeted(&self, input: &[u8]) -> Parsed {
        readies(input, 2)
    }

    fn request(&self, _connection: usize, number: u64, bytes: usize, out: &mut Vec<u8>) {
        let mut bind = b"\0put\0\0\0\0\x01".to_vec();
        let at = bind.len();
        bind.extend_from_slice(&[0; 4]);
        body(number, bytes, &mut bind);
        let length = (bind.len() - at - 4) as u32;
        bind[at..at + 4].copy_from_slice(&length.to_be_bytes());
        bind.extend_from_slice(&[0, 0]);
        message(b'B', &bind, out);
        message(b'E', b"\0\0\0\0\0", out);
        message(b'S', b"", out);
    }

    fn answer(&self, input: &[u8]) -> Parsed {
        readies(input, 1)
    }
}
