//! The smallest server that can answer: reads a request, sends a fixed 201.
//!
//! Not an HTTP server: it looks for the end of the head and for `Content-Length`, and checks
//! nothing else. It exists to measure what the load generator itself can do, so that no bench
//! mistakes the generator's limit for the receiver's.
//!
//! Runs as a child process, on one pinned core.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use crate::sys::{Epoll, Interest};

const LISTENER: u64 = u64::MAX;
const ANSWER: &[u8] =
    b"HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: 65\r\n\r\n\
    {\"status\":\"accepted\",\"id\":\"00000000-0000-7000-8000-000000000000\"}";

struct Peer {
    stream: TcpStream,
    /// The head so far, while it is incomplete.
    head: Vec<u8>,
    /// Body bytes still to come.
    body_missing: usize,
}

/// Serves for ever on a free port of loopback; prints `listening <address>` first.
pub fn serve() -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    println!("listening {}", listener.local_addr()?);
    serve_on(listener)
}

/// Serves for ever on a listener.
pub fn serve_on(listener: TcpListener) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let mut epoll = Epoll::new(512)?;
    epoll.add(&listener, LISTENER, Interest::Read)?;
    let mut peers: Vec<Option<Peer>> = Vec::new();
    let mut scratch = vec![0u8; 256 << 10];
    loop {
        let count = epoll.wait(None)?;
        for at in 0..count {
            let token = epoll.ready(at).token;
            if token == LISTENER {
                while let Ok((stream, _)) = listener.accept() {
                    stream.set_nonblocking(true)?;
                    stream.set_nodelay(true)?;
                    epoll.add(&stream, peers.len() as u64, Interest::Read)?;
                    peers.push(Some(Peer {
                        stream,
                        head: Vec::new(),
                        body_missing: 0,
                    }));
                }
                continue;
            }
            let Some(slot) = peers.get_mut(token as usize) else {
                continue;
            };
            let keep = slot
                .as_mut()
                .is_some_and(|peer| peer.on_readable(&mut scratch));
            if !keep {
                *slot = None;
            }
        }
    }
}

impl Peer {
    /// False when the connection is over.
    fn on_readable(&mut self, scratch: &mut [u8]) -> bool {
        let n = match self.stream.read(scratch) {
            Ok(0) => return false,
            Ok(n) => n,
            Err(e) => return e.kind() == io::ErrorKind::WouldBlock,
        };
        let mut rest = &scratch[..n];
        while !rest.is_empty() {
            if self.body_missing > 0 {
                let taken = self.body_missing.min(rest.len());
                self.body_missing -= taken;
                rest = &rest[taken..];
                if self.body_missing == 0 && self.stream.write_all(ANSWER).is_err() {
                    return false;
                }
                continue;
            }
            let gathered;
            let head = if self.head.is_empty() {
                rest
            } else {
                self.head.extend_from_slice(rest);
                gathered = std::mem::take(&mut self.head);
                &gathered[..]
            };
            let Some(end) = find(head, b"\r\n\r\n") else {
                self.head = head.to_vec();
                return self.head.len() < 64 << 10;
            };
            let body_bytes = content_length(&head[..end]);
            let here = (head.len() - end - 4).min(body_bytes);
            self.body_missing = body_bytes - here;
            if self.body_missing == 0 && self.stream.write_all(ANSWER).is_err() {
                return false;
            }
            let used = end + 4 + here;
            rest = &rest[rest.len() - (head.len() - used)..];
        }
        true
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|w| w == what)
}

fn content_length(head: &[u8]) -> usize {
    let Some(at) = find(head, b"Content-Length: ") else {
        return 0;
    };
    head[at + 16..]
        .iter()
        .take_while(|b| b.is_ascii_digit())
        .fold(0, |n, b| n * 10 + usize::from(b - b'0'))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::load::{self, Framing, LoadPlan, NoProbe, Pace, Stop};
    use std::time::Duration;

    fn target() -> std::net::SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || serve_on(listener));
        address
    }

    fn plan(count: u64) -> LoadPlan {
        let mut plan = LoadPlan::new(target(), "/x");
        plan.connections = 3;
        plan.warmup = Duration::ZERO;
        plan.stop = Stop::Count(count);
        plan
    }

    #[test]
    fn the_fixed_answer_is_one_whole_answer() {
        let Framing::Whole(answer) = load::parse(ANSWER).unwrap() else {
            unreachable!()
        };
        assert_eq!((answer.status, answer.body.end), (201, ANSWER.len()));
    }

    #[test]
    fn closed_loop_sends_exactly_the_count_and_every_request_is_answered() {
        let result = load::run(&plan(1000), &mut NoProbe).unwrap();
        assert_eq!(
            (
                result.sent,
                result.acked.len(),
                result.not_acked(),
                result.reopened
            ),
            (1000, 1000, 0, 0)
        );
        assert_eq!(result.acked_in_window, 1000);
    }

    #[test]
    fn open_loop_records_every_request_of_the_window() {
        let mut plan = plan(0);
        plan.pace = Pace::Open {
            rate: 2000.0,
            ramp: Duration::ZERO,
        };
        plan.stop = Stop::After(Duration::from_millis(250));
        let result = load::run(&plan, &mut NoProbe).unwrap();
        assert_eq!(result.sent + result.unsent, 500);
        assert_eq!(result.acked.len(), 500);
    }

    #[test]
    fn bodies_larger_than_a_socket_buffer_arrive_whole() {
        let mut plan = plan(20);
        plan.body.sizes = vec![3_000_000, 10];
        let result = load::run(&plan, &mut NoProbe).unwrap();
        assert_eq!((result.acked.len(), result.not_acked()), (20, 0));
    }

    #[test]
    fn ledger_has_a_line_with_the_digest_of_every_request() {
        let path = std::env::temp_dir().join(format!("ankusa-ledger-{}.csv", std::process::id()));
        let mut plan = plan(50);
        plan.ledger = Some(path.clone());
        load::run(&plan, &mut NoProbe).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let mut digests: Vec<&str> = text
            .lines()
            .skip(1)
            .map(|line| line.split(',').nth(2).unwrap())
            .collect();
        digests.sort_unstable();
        digests.dedup();
        assert_eq!((text.lines().count(), digests.len()), (51, 50));
        assert!(
            text.lines()
                .nth(1)
                .unwrap()
                .contains(",00000000-0000-7000-8000-000000000000,"),
            "{text}"
        );
    }

    #[test]
    fn a_server_that_is_not_there_is_an_error() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        assert!(load::run(&LoadPlan::new(address, "/"), &mut NoProbe).is_err());
    }
}
