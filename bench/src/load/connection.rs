//! One keep-alive connection: at most one request in flight, and its partial input and output.
//!
//! Runs on the load thread. Owns the socket; never blocks on it after the connect.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::response::{self, Answer, Framing, ResponseError};

/// The request in flight on a connection.
#[derive(Clone, Debug)]
pub(super) struct InFlight {
    pub(super) seq: u64,
    /// When it was meant to be sent: latency counts from here.
    pub(super) intended: Instant,
    /// When it was sent: the timeout counts from here.
    pub(super) sent: Instant,
    pub(super) sent_unix_us: u64,
    pub(super) sha256: Option<[u8; 32]>,
    pub(super) measured: bool,
}

/// A connection.
pub(super) struct Connection {
    pub(super) stream: Option<TcpStream>,
    pub(super) in_flight: Option<InFlight>,
    /// When to try to connect again.
    pub(super) retry_at: Option<Instant>,
    rest: Vec<u8>,
    rest_at: usize,
    input: Vec<u8>,
}

/// What a read brought.
pub(super) enum Input {
    /// Nothing that is whole yet.
    Waiting,
    /// A whole answer; its body is in the buffer the variant names.
    Answer(Answer, Where),
    /// The connection is of no more use.
    Lost(&'static str),
}

/// Where an answer's bytes are.
pub(super) enum Where {
    /// In the shared scratch buffer.
    Scratch,
    /// In the connection's own input.
    Own,
}

impl Connection {
    pub(super) fn new() -> Connection {
        Connection {
            stream: None,
            in_flight: None,
            retry_at: None,
            rest: Vec::new(),
            rest_at: 0,
            input: Vec::new(),
        }
    }

    /// Opens the socket; the kernel answers at once on loopback, and within `timeout` elsewhere.
    pub(super) fn open(&mut self, target: SocketAddr, timeout: Duration) -> io::Result<()> {
        self.drop_socket();
        let stream = TcpStream::connect_timeout(&target, timeout)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        self.stream = Some(stream);
        self.retry_at = None;
        Ok(())
    }

    /// Closes the socket and forgets partial input and output, not the request in flight.
    pub(super) fn drop_socket(&mut self) {
        self.stream = None;
        self.rest.clear();
        self.rest_at = 0;
        self.input.clear();
    }

    /// True while a part of the request is still to be sent.
    pub(super) fn is_sending(&self) -> bool {
        self.rest_at < self.rest.len()
    }

    /// Sends what the socket takes; the rest is kept for [`Connection::send_rest`].
    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(mut stream) = self.stream.as_ref() else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let taken = match stream.write(bytes) {
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => 0,
            Err(e) => return Err(e),
        };
        if taken < bytes.len() {
            self.rest.clear();
            self.rest.extend_from_slice(&bytes[taken..]);
            self.rest_at = 0;
        }
        Ok(())
    }

    /// Goes on sending; true when all is sent.
    pub(super) fn send_rest(&mut self) -> io::Result<bool> {
        let Some(mut stream) = self.stream.as_ref() else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        while self.rest_at < self.rest.len() {
            match stream.write(&self.rest[self.rest_at..]) {
                Ok(n) => self.rest_at += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        self.rest.clear();
        self.rest_at = 0;
        Ok(true)
    }

    /// One read. A whole answer takes no copy; a partial one is gathered in the connection.
    pub(super) fn read(&mut self, scratch: &mut [u8]) -> Input {
        let Some(mut stream) = self.stream.as_ref() else {
            return Input::Lost("not_connected");
        };
        let n = match stream.read(scratch) {
            Ok(0) => return Input::Lost("closed"),
            Ok(n) => n,
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                return Input::Waiting;
            }
            Err(_) => return Input::Lost("reset"),
        };
        if self.in_flight.is_none() {
            return Input::Lost("unsolicited");
        }
        let (bytes, place) = if self.input.is_empty() {
            (&scratch[..n], Where::Scratch)
        } else {
            self.input.extend_from_slice(&scratch[..n]);
            (&self.input[..], Where::Own)
        };
        match response::parse(bytes) {
            Ok(Framing::Whole(answer)) if answer.body.end < bytes.len() => {
                Input::Lost("unsolicited")
            }
            Ok(Framing::Whole(answer)) => Input::Answer(answer, place),
            Ok(Framing::Partial) => {
                if matches!(place, Where::Scratch) {
                    self.input.extend_from_slice(&scratch[..n]);
                }
                Input::Waiting
            }
            Err(ResponseError::Malformed) => Input::Lost("malformed_answer"),
            Err(ResponseError::NoLength) => Input::Lost("answer_without_length"),
        }
    }

    /// The gathered input; taken when its answer has been dealt with.
    pub(super) fn take_input(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.input)
    }

    /// Gives the buffer back, emptied, so that it need not be allocated again.
    pub(super) fn give_input(&mut self, mut buffer: Vec<u8>) {
        buffer.clear();
        self.input = buffer;
    }
}
