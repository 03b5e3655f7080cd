//! The node over HTTP, with the same client loop.

use std::net::SocketAddr;

use super::body;
use super::client::{Parsed, Protocol};
use crate::load::{Framing, parse};

/// Posts to the node's source.
pub(crate) struct Http {
    host: SocketAddr,
}

impl Http {
    /// For the node that listens there.
    pub(crate) fn new(host: SocketAddr) -> Http {
        Http { host }
    }
}

impl Protocol for Http {
    fn greet(&self, _connection: usize) -> Vec<u8> {
        Vec::new()
    }

    fn greeted(&self, _input: &[u8]) -> Parsed {
        Parsed::Whole(0)
    }

    fn request(&self, _connection: usize, number: u64, bytes: usize, out: &mut Vec<u8>) {
        let mut record = Vec::with_capacity(bytes);
        body(number, bytes, &mut record);
        let head = format!(
            "POST /webhooks/demo HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            self.host,
            record.len()
        );
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(&record);
    }

    fn answer(&self, input: &[u8]) -> Parsed {
        match parse(input) {
            Ok(Framing::Partial) => Parsed::Partial,
            Ok(Framing::Whole(answer)) if answer.status == 201 => Parsed::Whole(answer.body.end),
            Ok(Framing::Whole(answer)) => Parsed::Wrong(format!("status {}", answer.status)),
            Err(error) => Parsed::Wrong(format!("{error:?}")),
        }
    }
}
