//! A consumer: a small HTTP server that writes down every delivery before it confirms it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::oracle::Delivered;

/// The sink.
#[derive(Clone)]
pub struct Sink {
    address: SocketAddr,
    delivered: Arc<Mutex<Vec<Delivered>>>,
    stop: Arc<AtomicBool>,
}

impl Sink {
    /// Listens on a free port of the loopback.
    pub fn start() -> std::io::Result<Sink> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let sink = Sink {
            address: listener.local_addr()?,
            delivered: Arc::default(),
            stop: Arc::default(),
        };
        let serving = sink.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if serving.stop.load(Ordering::Relaxed) {
                    return;
                }
                let serving = serving.clone();
                std::thread::spawn(move || {
                    // The node goes away in every drill: a broken connection is ordinary.
                    let _ = serving.serve(stream);
                });
            }
        });
        Ok(sink)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Deliveries so far.
    pub fn count(&self) -> usize {
        self.delivered
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .len()
    }

    /// A copy of all deliveries.
    pub fn delivered(&self) -> Vec<Delivered> {
        self.delivered
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Takes no more connections.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect_timeout(&self.address, Duration::from_millis(200));
    }

    fn serve(&self, stream: TcpStream) -> std::io::Result<()> {
        stream.set_nodelay(true)?;
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        loop {
            line.clear();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let (mut length, mut id, mut idempotency_key) = (0usize, String::new(), String::new());
            loop {
                line.clear();
                if reader.read_line(&mut line)? == 0 {
                    return Ok(());
                }
                let header = line.trim_end();
                if header.is_empty() {
                    break;
                }
                if let Some((name, value)) = header.split_once(':') {
                    match name.to_ascii_lowercase().as_str() {
                        "content-length" => length = value.trim().parse().unwrap_or(0),
                        "x-ankusa-id" => id = value.trim().to_owned(),
                        "x-ankusa-idempotency-key" => idempotency_key = value.trim().to_owned(),
                        _ => {}
                    }
                }
            }
            let mut body = vec![0u8; length];
            reader.read_exact(&mut body)?;
            self.delivered
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(Delivered {
                    id,
                    body,
                    idempotency_key,
                });
            reader
                .get_mut()
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")?;
        }
    }
}
