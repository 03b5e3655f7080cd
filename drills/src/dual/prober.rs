//! One hook after another, each timed: what the node answers, when, and how fast.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::ledger::{Answer, Ledger, body};

/// Between two hooks.
const PACE: Duration = Duration::from_millis(15);

/// Processor time of the machine at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct BusyMark {
    idle: u64,
    all: u64,
}

impl BusyMark {
    /// This moment.
    pub fn now() -> BusyMark {
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let line = stat.lines().next().unwrap_or_default();
        let ticks = line.split_ascii_whitespace().skip(1).take(8);
        let ticks: Vec<u64> = ticks.filter_map(|t| t.parse().ok()).collect();
        BusyMark {
            // Idle, and waiting for a disk.
            idle: ticks.iter().skip(3).take(2).sum(),
            all: ticks.iter().sum(),
        }
    }

    /// The idle share since then.
    pub fn idle_since(&self) -> f64 {
        let now = BusyMark::now();
        let all = now.all.saturating_sub(self.all).max(1);
        now.idle.saturating_sub(self.idle) as f64 / all as f64
    }
}

/// One answer.
#[derive(Clone, Debug)]
pub struct Sample {
    /// When the hook was sent.
    pub sent: Instant,
    /// How long the answer took.
    pub took: Duration,
    /// Its status.
    pub status: u16,
    /// The error word.
    pub word: Option<String>,
    /// `Retry-After` was there.
    pub retry_after: bool,
}

/// Sends until it is stopped; everything goes into the ledger too.
pub struct Prober {
    stop: Arc<AtomicBool>,
    samples: Arc<Mutex<Vec<Sample>>>,
    thread: Option<JoinHandle<()>>,
}

impl Prober {
    /// Starts.
    pub fn start(to: SocketAddr, ledger: Ledger, numbers: Arc<AtomicU64>) -> Prober {
        let (stop, samples) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let thread = std::thread::spawn({
            let (stop, samples) = (Arc::clone(&stop), Arc::clone(&samples));
            move || {
                let mut connection = None;
                while !stop.load(Ordering::Relaxed) {
                    probe(&mut connection, to, &ledger, &numbers, &samples);
                    std::thread::sleep(PACE);
                }
            }
        });
        Prober {
            stop,
            samples,
            thread: Some(thread),
        }
    }

    /// What was answered to hooks sent from `from` on.
    pub fn since(&self, from: Instant) -> Vec<Sample> {
        let samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        let samples = samples.iter().filter(|s| s.sent >= from);
        samples.cloned().collect()
    }
}

impl Drop for Prober {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn probe(
    connection: &mut Option<BufReader<TcpStream>>,
    to: SocketAddr,
    ledger: &Ledger,
    numbers: &AtomicU64,
    samples: &Mutex<Vec<Sample>>,
) {
    let number = numbers.fetch_add(1, Ordering::Relaxed);
    let body = body(number, 600);
    ledger.sending(number, &body, None);
    let sent = Instant::now();
    let answer = ask(connection, to, &body);
    let took = sent.elapsed();
    match answer {
        Ok((answer, retry_after)) => {
            let sample = Sample {
                sent,
                took,
                status: answer.status,
                word: answer.error.clone(),
                retry_after,
            };
            ledger.ended(number, Some(answer));
            let mut samples = samples.lock().unwrap_or_else(PoisonError::into_inner);
            samples.push(sample);
        }
        Err(_) => {
            *connection = None;
            ledger.ended(number, None);
        }
    }
}

fn ask(
    connection: &mut Option<BufReader<TcpStream>>,
    to: SocketAddr,
    body: &[u8],
) -> std::io::Result<(Answer, bool)> {
    let reader = match connection {
        Some(reader) => reader,
        None => {
            let stream = TcpStream::connect_timeout(&to, Duration::from_secs(2))?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(Duration::from_secs(20)))?;
            connection.insert(BufReader::new(stream))
        }
    };
    let head = format!(
        "POST /webhooks/drill HTTP/1.1\r\nHost: drill\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let stream = reader.get_mut();
    stream.write_all(&[head.as_bytes(), body].concat())?;
    let (mut line, mut length, mut retry_after) = (String::new(), 0usize, false);
    if reader.read_line(&mut line)? == 0 {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    let status = line.split(' ').nth(1).and_then(|s| s.parse().ok());
    loop {
        line.clear();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else {
            break;
        };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.trim().parse().unwrap_or(0),
            "retry-after" => retry_after = true,
            _ => {}
        }
    }
    let mut bytes = vec![0; length];
    reader.read_exact(&mut bytes)?;
    let json: serde_json::Value = serde_json::from_slice(&bytes).unwrap_or_default();
    let text = |name: &str| json[name].as_str().map(str::to_owned);
    let answer = Answer {
        status: status.unwrap_or(0),
        id: text("id"),
        duplicate: json["duplicate"] == true,
        error: text("error"),
        retry_after: retry_after.then(String::new),
    };
    Ok((answer, retry_after))
}
