//! The client loop that every peer is measured with: connections in an epoll, one request in
//! flight on each, the next sent when the answer is there.
//!
//! Runs on the calling thread, pinned.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use crate::load::{LATENCY_NS_MAX, LoadResult, Outcome};
use crate::measure::Round;
use crate::sys::{self, Epoll, Interest};

/// A connection that hears nothing for so long is lost.
const PATIENCE: Duration = Duration::from_secs(20);

/// What is at the front of a connection's input.
pub(crate) enum Parsed {
    /// Not all of it is there.
    Partial,
    /// So many bytes are one whole answer.
    Whole(usize),
    /// A refusal.
    Wrong(String),
}

/// How to write durably to a peer.
pub(crate) trait Protocol {
    /// What a connection says first.
    fn greet(&self, connection: usize) -> Vec<u8>;

    /// Whether the peer has answered that.
    fn greeted(&self, input: &[u8]) -> Parsed;

    /// Appends the request that writes record `number` of `bytes` bytes.
    fn request(&self, connection: usize, number: u64, bytes: usize, out: &mut Vec<u8>);

    /// Reads the answer that says that it is durable.
    fn answer(&self, input: &[u8]) -> Parsed;
}

struct Connection {
    stream: TcpStream,
    input: Vec<u8>,
    output: Vec<u8>,
    written: usize,
    sent: Instant,
    is_greeted: bool,
    is_open: bool,
    waits_to_write: bool,
}

impl Connection {
    /// Writes what the socket takes. True: all of it.
    fn flush(&mut self) -> io::Result<bool> {
        while self.written < self.output.len() {
            match self.stream.write(&self.output[self.written..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => self.written += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        self.output.clear();
        self.written = 0;
        Ok(true)
    }

    fn fill(&mut self, scratch: &mut [u8]) -> anyhow::Result<()> {
        match self.stream.read(scratch) {
            Ok(0) => bail!("the connection was closed"),
            Ok(n) => self.input.extend_from_slice(&scratch[..n]),
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) => {}
            Err(e) => return Err(e.into()),
        }
        Ok(())
    }
}

/// Makes one round.
pub(crate) fn run(
    address: SocketAddr,
    protocol: &dyn Protocol,
    round: &Round,
) -> anyhow::Result<LoadResult> {
    let _pinned = sys::Pinned::to_core(round.load_core).context("pinning the load thread")?;
    let mut epoll = Epoll::new(512)?;
    let mut connections = Vec::with_capacity(round.connections);
    for index in 0..round.connections {
        let stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        epoll.add(&stream, index as u64, Interest::Read)?;
        let mut connection = Connection {
            stream,
            input: Vec::new(),
            output: protocol.greet(index),
            written: 0,
            sent: Instant::now(),
            is_greeted: false,
            is_open: true,
            waits_to_write: false,
        };
        connection.is_greeted = connection.output.is_empty();
        connection.flush()?;
        connections.push(connection);
    }
    let mut scratch = vec![0u8; 64 << 10];
    greet_all(&mut epoll, &mut connections, protocol, &mut scratch)?;
    let mut load = Load::new(protocol, round);
    for (index, connection) in connections.iter_mut().enumerate() {
        load.send(connection, index, &epoll)?;
    }
    while connections.iter().any(|c| c.is_open) {
        let count = epoll.wait(Some(PATIENCE))?;
        if count == 0 {
            bail!("no answer within {PATIENCE:?}");
        }
        load.turn();
        for at in 0..count {
            let ready = epoll.ready(at);
            let index = ready.token as usize;
            let connection = &mut connections[index];
            if ready.writable && connection.waits_to_write && connection.flush()? {
                connection.waits_to_write = false;
                epoll.modify(&connection.stream, ready.token, Interest::Read)?;
            }
            if ready.readable && connection.is_open {
                connection.fill(&mut scratch)?;
                load.receive(connection, index, &epoll)?;
            }
        }
    }
    Ok(load.finish())
}

fn greet_all(
    epoll: &mut Epoll,
    connections: &mut [Connection],
    protocol: &dyn Protocol,
    scratch: &mut [u8],
) -> anyhow::Result<()> {
    while connections.iter().any(|c| !c.is_greeted) {
        let count = epoll.wait(Some(PATIENCE))?;
        if count == 0 {
            bail!("no greeting within {PATIENCE:?}");
        }
        for at in 0..count {
            let connection = &mut connections[epoll.ready(at).token as usize];
            connection.fill(scratch)?;
            match protocol.greeted(&connection.input) {
                Parsed::Partial => {}
                Parsed::Whole(_) => {
                    connection.input.clear();
                    connection.is_greeted = true;
                }
                Parsed::Wrong(why) => bail!("the greeting was refused: {why}"),
            }
        }
    }
    Ok(())
}

struct Load<'a> {
    protocol: &'a dyn Protocol,
    body_bytes: usize,
    window_from: Instant,
    window_to: Instant,
    cpu_at_open: Option<Duration>,
    cpu_at_close: Option<Duration>,
    number: u64,
    result: LoadResult,
}

impl<'a> Load<'a> {
    fn new(protocol: &'a dyn Protocol, round: &Round) -> Load<'a> {
        let from = Instant::now() + round.warmup;
        let mut result = LoadResult::empty();
        result.window = round.duration;
        Load {
            protocol,
            body_bytes: round.body_bytes,
            window_from: from,
            window_to: from + round.duration,
            cpu_at_open: None,
            cpu_at_close: None,
            number: sys::unix_us() << 8,
            result,
        }
    }

    /// Notes the load thread's own time when the window opens and closes.
    fn turn(&mut self) {
        let now = Instant::now();
        if self.cpu_at_open.is_none() && now >= self.window_from {
            self.cpu_at_open = Some(sys::thread_cpu());
        }
        if self.cpu_at_close.is_none() && now >= self.window_to {
            self.cpu_at_close = Some(sys::thread_cpu());
        }
    }

    fn send(&mut self, connection: &mut Connection, index: usize, epoll: &Epoll) -> io::Result<()> {
        let now = Instant::now();
        if now >= self.window_to {
            connection.is_open = false;
            return Ok(());
        }
        self.number += 1;
        self.protocol
            .request(index, self.number, self.body_bytes, &mut connection.output);
        connection.sent = now;
        self.result.sent += u64::from(now >= self.window_from);
        if !connection.flush()? {
            connection.waits_to_write = true;
            epoll.modify(&connection.stream, index as u64, Interest::ReadWrite)?;
        }
        Ok(())
    }

    fn receive(
        &mut self,
        connection: &mut Connection,
        index: usize,
        epoll: &Epoll,
    ) -> anyhow::Result<()> {
        match self.protocol.answer(&connection.input) {
            Parsed::Partial => return Ok(()),
            Parsed::Wrong(why) => bail!("a write was refused: {why}"),
            Parsed::Whole(bytes) if bytes == connection.input.len() => connection.input.clear(),
            Parsed::Whole(_) => bail!("more than one answer to one request"),
        }
        let now = Instant::now();
        if connection.sent >= self.window_from {
            let ns = now.duration_since(connection.sent).as_nanos() as u64;
            self.result
                .acked
                .saturating_record(ns.clamp(1, LATENCY_NS_MAX));
        }
        if now >= self.window_from && now < self.window_to {
            self.result.acked_in_window += 1;
        }
        Ok(self.send(connection, index, epoll)?)
    }

    fn finish(mut self) -> LoadResult {
        let opened = self.cpu_at_open.unwrap_or_default();
        let closed = self.cpu_at_close.unwrap_or_else(sys::thread_cpu);
        let used = closed.saturating_sub(opened).as_secs_f64();
        self.result.generator_busy = used / self.result.window.as_secs_f64().max(1e-9);
        let acked = Outcome {
            status: 201,
            word: String::new(),
        };
        self.result.outcomes = vec![(acked, self.result.acked.len())];
        self.result
    }
}
