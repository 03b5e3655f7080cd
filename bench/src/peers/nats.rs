//! NATS JetStream: a publish to a file-backed stream, answered after its sync.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::bail;

use super::client::{Parsed, Protocol};
use super::server::{Server, free_address, make};
use super::{Peer, body};

const CONNECT: &str =
    "CONNECT {\"verbose\":false,\"pedantic\":false,\"lang\":\"bench\",\"version\":\"1\"}\r\n";

/// Starts it with its data in `dir` and makes the stream.
pub(crate) fn start(program: &Path, dir: &Path, core: usize) -> anyhow::Result<Peer> {
    make(dir)?;
    let address = free_address()?;
    let config = dir.join("nats.conf");
    std::fs::write(
        &config,
        format!(
            "listen: \"{address}\"\njetstream {{\n  store_dir: \"{}\"\n  sync_interval: always\n  max_file_store: 64GB\n}}\n",
            dir.display()
        ),
    )?;
    let mut command = Command::new(program);
    command.arg("-c").arg(&config);
    let server = Server::start(command, "nats", dir, address, core)?;
    make_stream(address)?;
    Ok(Peer {
        name: "nats",
        settings: "JetStream, file storage, 1 replica, sync_interval always".to_owned(),
        server,
        protocol: Box::new(JetStream),
    })
}

fn make_stream(address: SocketAddr) -> anyhow::Result<()> {
    let stream = r#"{"name":"hooks","subjects":["hooks"],"retention":"limits","storage":"file","num_replicas":1,"max_consumers":-1,"max_msgs":-1,"max_bytes":-1,"max_age":0,"discard":"old"}"#;
    let mut socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(Duration::from_secs(10)))?;
    let ask = format!(
        "{CONNECT}SUB _INBOX.s 1\r\nPUB $JS.API.STREAM.CREATE.hooks _INBOX.s {}\r\n{stream}\r\n",
        stream.len()
    );
    socket.write_all(ask.as_bytes())?;
    let mut said = Vec::new();
    let mut scratch = [0u8; 4096];
    loop {
        let n = socket.read(&mut scratch)?;
        said.extend_from_slice(&scratch[..n]);
        let text = String::from_utf8_lossy(&said);
        if text.contains("\"error\"") || text.contains("-ERR") || n == 0 {
            bail!("the stream was not made: {text}");
        }
        if text.contains("stream_create_response") {
            return Ok(());
        }
    }
}

struct JetStream;

impl Protocol for JetStream {
    fn greet(&self, connection: usize) -> Vec<u8> {
        format!("{CONNECT}SUB _INBOX.c{connection} 1\r\nPING\r\n").into_bytes()
    }

    fn greeted(&self, input: &[u8]) -> Parsed {
        let text = String::from_utf8_lossy(input);
        match (text.contains("PONG\r\n"), text.contains("-ERR")) {
            (_, true) => Parsed::Wrong(text.into_owned()),
            (true, _) => Parsed::Whole(input.len()),
            _ => Parsed::Partial,
        }
    }

    fn request(&self, connection: usize, number: u64, bytes: usize, out: &mut Vec<u8>) {
        let mut record = Vec::with_capacity(bytes);
        body(number, bytes, &mut record);
        let head = format!("PUB hooks _INBOX.c{connection} {}\r\n", record.len());
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(&record);
        out.extend_from_slice(b"\r\n");
    }

    fn answer(&self, input: &[u8]) -> Parsed {
        // MSG <subject> <sid> <bytes>\r\n<payload>\r\n
        let Some(end) = input.windows(2).position(|w| w == b"\r\n") else {
            return Parsed::Partial;
        };
        let head = String::from_utf8_lossy(&input[..end]);
        let length = head
            .strip_prefix("MSG ")
            .and_then(|rest| rest.rsplit(' ').next()?.parse::<usize>().ok());
        let Some(length) = length else {
            return Parsed::Wrong(head.into_owned());
        };
        let whole = end + 2 + length + 2;
        if input.len() < whole {
            return Parsed::Partial;
        }
        let payload = String::from_utf8_lossy(&input[end + 2..end + 2 + length]);
        if payload.contains("\"seq\"") {
            Parsed::Whole(whole)
        } else {
            Parsed::Wrong(payload.into_owned())
        }
    }
}
