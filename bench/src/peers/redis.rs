//! Redis: `RPUSH` into a list, append-only file, `appendfsync always`.

use std::path::Path;
use std::process::Command;

use super::client::{Parsed, Protocol};
use super::server::{Server, free_address, make};
use super::{Peer, body};

const SETTINGS: [(&str, &str); 6] = [
    ("appendonly", "yes"),
    ("appendfsync", "always"),
    ("save", ""),
    ("io-threads", "1"),
    ("auto-aof-rewrite-percentage", "0"),
    ("daemonize", "no"),
];

/// Starts it with its data in `dir`.
pub(crate) fn start(program: &Path, dir: &Path, core: usize) -> anyhow::Result<Peer> {
    make(dir)?;
    let address = free_address()?;
    let mut command = Command::new(program);
    command
        .arg("--port")
        .arg(address.port().to_string())
        .args(["--bind", "127.0.0.1", "--dir"])
        .arg(dir);
    for (key, value) in SETTINGS {
        command.arg(format!("--{key}")).arg(value);
    }
    let settings: Vec<String> = SETTINGS.iter().map(|(k, v)| format!("{k} {v}")).collect();
    Ok(Peer {
        name: "redis",
        settings: format!("RPUSH; {}", settings.join(", ")),
        server: Server::start(command, "redis", dir, address, core)?,
        protocol: Box::new(Resp),
    })
}

struct Resp;

impl Protocol for Resp {
    fn greet(&self, _connection: usize) -> Vec<u8> {
        Vec::new()
    }

    fn greeted(&self, _input: &[u8]) -> Parsed {
        Parsed::Whole(0)
    }

    fn request(&self, _connection: usize, number: u64, bytes: usize, out: &mut Vec<u8>) {
        let mut record = Vec::with_capacity(bytes);
        body(number, bytes, &mut record);
        let head = format!("*3\r\n$5\r\nRPUSH\r\n$5\r\nhooks\r\n${}\r\n", record.len());
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(&record);
        out.extend_from_slice(b"\r\n");
    }

    fn answer(&self, input: &[u8]) -> Parsed {
        let Some(end) = input.windows(2).position(|w| w == b"\r\n") else {
            return Parsed::Partial;
        };
        if input[0] == b':' {
            Parsed::Whole(end + 2)
        } else {
            Parsed::Wrong(String::from_utf8_lossy(&input[..end]).into_owned())
        }
    }
}
