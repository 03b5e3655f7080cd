//! A provider: threads that send hooks over keep-alive connections, retry what got no honest
//! answer when it has a key, and write everything down.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::ledger::{Answer, Ledger, body};

/// How long an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// What to send.
#[derive(Clone, Debug)]
pub struct LoadPlan {
    /// Where.
    pub address: SocketAddr,
    /// Connections, one thread each.
    pub connections: usize,
    /// Bytes of a body.
    pub body_bytes: usize,
    /// Every n-th hook has a dedupe key and is retried until it is acked; 0: none.
    pub keyed_every: u64,
}

/// A load that runs until it is stopped.
pub struct Load {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    /// Starts sending. `numbers` gives each request its own, over many loads.
    pub fn start(plan: LoadPlan, ledger: Ledger, numbers: Arc<AtomicU64>) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let threads = (0..plan.connections)
            .map(|_| {
                let (plan, ledger) = (plan.clone(), ledger.clone());
                let (stop, numbers) = (Arc::clone(&stop), Arc::clone(&numbers));
                std::thread::spawn(move || send_until(&plan, &ledger, &numbers, &stop))
            })
            .collect();
        Load { stop, threads }
    }

    /// Stops after what is in flight; keyed hooks that are not acked yet are given up.
    pub fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            let _ = thread.join();
        }
    }
}

fn send_until(plan: &LoadPlan, ledger: &Ledger, numbers: &AtomicU64, stop: &AtomicBool) {
    let mut connection = None;
    while !stop.load(Ordering::Relaxed) {
        let number = numbers.fetch_add(1, Ordering::Relaxed);
        let keyed = plan.keyed_every > 0 && number.is_multiple_of(plan.keyed_every);
        let key = keyed.then(|| format!("key-{number}"));
        let body = body(number, plan.body_bytes);
        ledger.sending(number, &body, key.as_deref());
        loop {
            let answer = post(&mut connection, plan.address, key.as_deref(), &body);
            let acked = answer.as_ref().is_ok_and(|a| a.status == 201);
            if answer.is_err() {
                connection = None;
            }
            ledger.ended(number, answer.ok());
            if acked || stop.load(Ordering::Relaxed) {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
            if key.is_none() {
                break;
            }
        }
    }
}

/// A keep-alive connection.
pub struct Connection {
    reader: BufReader<TcpStream>,
}

/// Posts one hook to the source `drill`.
pub fn post(
    connection: &mut Option<Connection>,
    address: SocketAddr,
    key: Option<&str>,
    body: &[u8],
) -> io::Result<Answer> {
    if connection.is_none() {
        let stream = TcpStream::connect_timeout(&address, Duration::from_secs(2))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
        *connection = Some(Connection {
            reader: BufReader::new(stream),
        });
    }
    let Some(open) = connection.as_mut() else {
        return Err(io::ErrorKind::NotConnected.into());
    };
    let mut request = format!(
        "POST /webhooks/{} HTTP/1.1\r\nHost: drill\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n",
        if key.is_some() { "keyed" } else { "drill" },
        body.len()
    );
    if let Some(key) = key {
        request.push_str(&format!("X-Event-Id: {key}\r\n"));
    }
    request.push_str("\r\n");
    let mut bytes = request.into_bytes();
    bytes.extend_from_slice(body);
    open.reader.get_mut().write_all(&bytes)?;
    read_answer(&mut open.reader)
}

fn read_answer(reader: &mut impl BufRead) -> io::Result<Answer> {
    let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let status = line
        .split(' ')
        .nth(1)
        .and_then(|s| s.parse().ok())
        .ok_or_else(|| bad("no status"))?;
    let (mut length, mut retry_after) = (0usize, None);
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let header = line.trim_end();
        if header.is_empty() {
            break;
        }
        let Some((name, value)) = header.split_once(':') else {
            continue;
        };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().map_err(|_| bad("length"))?;
        } else if name.eq_ignore_ascii_case("retry-after") {
            retry_after = Some(value.trim().to_owned());
        }
    }
    let mut body = vec![0u8; length];
    reader.read_exact(&mut body)?;
    let json: serde_json::Value = serde_json::from_slice(&body).map_err(|_| bad("not JSON"))?;
    let text = |name: &str| json.get(name).and_then(|v| v.as_str()).map(str::to_owned);
    Ok(Answer {
        status,
        id: text("id"),
        duplicate: json.get("duplicate").and_then(serde_json::Value::as_bool) == Some(true),
        error: text("error"),
        retry_after,
    })
}
