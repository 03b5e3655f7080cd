//! The sink's end of a delivery bench: an HTTP server that counts and checks what it is sent.
//!
//! Each delivery's body is hashed and compared with `x-ankusa-body-sha256`; ids seen before are
//! counted as repeats (at-least-once allows them). Keeps 16 bytes per id, nothing else.
//!
//! Runs on a thread of its own, pinned to the load's core, so that the node's core stays its own.

mod head;

use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::load::sha256;
use crate::sys::{self, Epoll, Interest};
use head::{Head, read_head};

const LISTENER: u64 = u64::MAX;
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
const BODY_BYTES_MAX: usize = 64 << 20;

/// What has arrived so far.
#[derive(Debug, Default)]
pub struct SinkCounts {
    /// Deliveries whose body matched its digest.
    pub received: AtomicU64,
    /// Of these, ids that had come before.
    pub repeated: AtomicU64,
    /// Deliveries whose body did not match, or that carried no digest or id.
    pub wrong: AtomicU64,
    /// Body bytes.
    pub bytes: AtomicU64,
}

/// A running sink; stops when dropped.
pub struct Sink {
    /// Where it listens.
    pub address: SocketAddr,
    /// What has arrived.
    pub counts: Arc<SinkCounts>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Sink {
    /// Starts a sink on a free port of loopback, pinned to `core` when one is given.
    pub fn start(core: Option<usize>) -> io::Result<Sink> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let counts = Arc::new(SinkCounts::default());
        let stop = Arc::new(AtomicBool::new(false));
        let mut server = Server::new(listener, Arc::clone(&counts), Arc::clone(&stop))?;
        let thread = std::thread::Builder::new()
            .name("sink".to_owned())
            .spawn(move || {
                if let Some(core) = core {
                    let _ = sys::pin_to_core(core);
                }
                if let Err(e) = server.serve() {
                    eprintln!("ankusa-bench: the sink stopped: {e}");
                }
            })?;
        Ok(Sink {
            address,
            counts,
            stop,
            thread: Some(thread),
        })
    }

    /// Deliveries received and found right.
    pub fn received(&self) -> u64 {
        self.counts.received.load(Ordering::Relaxed)
    }

    /// Different hooks received.
    pub fn distinct(&self) -> u64 {
        self.received() - self.counts.repeated.load(Ordering::Relaxed)
    }

    /// Deliveries that were not what was acked.
    pub fn wrong(&self) -> u64 {
        self.counts.wrong.load(Ordering::Relaxed)
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Server {
    listener: TcpListener,
    epoll: Epoll,
    peers: Vec<Option<Peer>>,
    ids: HashSet<u128>,
    counts: Arc<SinkCounts>,
    stop: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Peer {
    stream: TcpStream,
    input: Vec<u8>,
}

impl Server {
    fn new(
        listener: TcpListener,
        counts: Arc<SinkCounts>,
        stop: Arc<AtomicBool>,
    ) -> io::Result<Server> {
        listener.set_nonblocking(true)?;
        let epoll = Epoll::new(256)?;
        epoll.add(&listener, LISTENER, Interest::Read)?;
        Ok(Server {
            listener,
            epoll,
            peers: Vec::new(),
            ids: HashSet::new(),
            counts,
            stop,
        })
    }

    fn serve(&mut self) -> io::Result<()> {
        let mut scratch = vec![0u8; 256 << 10];
        while !self.stop.load(Ordering::Relaxed) {
            let count = self.epoll.wait(Some(Duration::from_millis(100)))?;
            for at in 0..count {
                let token = self.epoll.ready(at).token;
                if token == LISTENER {
                    self.accept()?;
                } else if !self.on_readable(token as usize, &mut scratch) {
                    self.peers[token as usize] = None;
                }
            }
        }
        Ok(())
    }

    fn accept(&mut self) -> io::Result<()> {
        while let Ok((stream, _)) = self.listener.accept() {
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            let free = self.peers.iter().position(Option::is_none);
            let at = free.unwrap_or(self.peers.len());
            self.epoll.add(&stream, at as u64, Interest::Read)?;
            let peer = Some(Peer {
                stream,
                input: Vec::new(),
            });
            match free {
                Some(at) => self.peers[at] = peer,
                None => self.peers.push(peer),
            }
        }
        Ok(())
    }

    /// False when the connection is over.
    fn on_readable(&mut self, index: usize, scratch: &mut [u8]) -> bool {
        let Some(Some(peer)) = self.peers.get_mut(index) else {
            return true;
        };
        let n = match peer.stream.read(scratch) {
            Ok(0) => return false,
            Ok(n) => n,
            Err(e) => return e.kind() == io::ErrorKind::WouldBlock,
        };
        let own = !peer.input.is_empty();
        if own {
            peer.input.extend_from_slice(&scratch[..n]);
        }
        let bytes = if own { &peer.input[..] } else { &scratch[..n] };
        let mut used = 0;
        loop {
            let rest = &bytes[used..];
            let head = match read_head(rest) {
                Ok(Some(head)) if head.body_bytes <= BODY_BYTES_MAX => head,
                Ok(None) => break,
                Ok(Some(_)) | Err(()) => {
                    self.counts.wrong.fetch_add(1, Ordering::Relaxed);
                    return false;
                }
            };
            let end = head.bytes + head.body_bytes;
            if rest.len() < end {
                break;
            }
            count(&self.counts, &mut self.ids, &head, &rest[head.bytes..end]);
            if peer.stream.write_all(ANSWER).is_err() {
                return false;
            }
            used += end;
        }
        if own {
            peer.input.drain(..used);
        } else {
            peer.input.extend_from_slice(&scratch[used..n]);
        }
        true
    }
}

fn count(counts: &SinkCounts, ids: &mut HashSet<u128>, head: &Head, body: &[u8]) {
    let right = head.id.is_some() && head.sha256 == Some(sha256(body));
    if !right {
        counts.wrong.fetch_add(1, Ordering::Relaxed);
        return;
    }
    if head.id.is_some_and(|id| !ids.insert(id)) {
        counts.repeated.fetch_add(1, Ordering::Relaxed);
    }
    counts.bytes.fetch_add(body.len() as u64, Ordering::Relaxed);
    counts.received.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn deliver(stream: &mut TcpStream, id: u8, body: &[u8], digest: [u8; 32]) {
        let hex: String = digest.iter().map(|b| format!("{b:02x}")).collect();
        let head = format!(
            "POST /in HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\nX-Ankusa-Id: 00000000-0000-7000-8000-0000000000{id:02x}\r\nx-ankusa-body-sha256: {hex}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body).unwrap();
        let mut answer = vec![0u8; ANSWER.len()];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer, ANSWER);
    }

    #[test]
    fn right_repeated_and_altered_deliveries_are_told_apart() {
        let sink = Sink::start(None).unwrap();
        let mut stream = TcpStream::connect(sink.address).unwrap();
        deliver(&mut stream, 1, b"one", sha256(b"one"));
        deliver(
            &mut stream,
            2,
            &vec![7u8; 700_000],
            sha256(&vec![7u8; 700_000]),
        );
        deliver(&mut stream, 1, b"one", sha256(b"one"));
        deliver(&mut stream, 3, b"three", sha256(b"other"));
        assert_eq!((sink.received(), sink.distinct(), sink.wrong()), (3, 2, 1));
    }
}
