//! A call to the admin API of the running node, for commands that ask it something.
//!
//! One request, one connection, blocking, with a bound on time and size. It finds the node by the
//! configuration: `admin.ip`, `admin.port`, `admin.token`. HTTP/1.0, so that the answer is never
//! chunked. Runs offline.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

use crate::config::AdminConfig;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
const ANSWER_BYTES_MAX: u64 = 128 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    /// Nobody listens there.
    #[error("no node answers at {0}: {1} (admin.ip and admin.port say where it is)")]
    Unreachable(SocketAddr, io::Error),
    /// The connection broke.
    #[error("the node at {0} did not answer: {1}")]
    Broken(SocketAddr, io::Error),
    /// What came back is not an answer.
    #[error("the answer of {0} is not understood: {1}")]
    Odd(SocketAddr, &'static str),
    /// The node refused.
    #[error("the node answered {status}{}", word.as_deref().map(|w| format!(": {w}")).unwrap_or_default())]
    Refused {
        /// The status.
        status: u16,
        /// The error's word.
        word: Option<String>,
    },
}

/// Where to call a listener: a wildcard address is reached over loopback.
fn address(admin: &AdminConfig) -> SocketAddr {
    let ip = match admin.ip {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, admin.port)
}

/// Asks, and returns the JSON of a 2xx.
pub(super) fn call(
    admin: &AdminConfig,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> Result<Value, CallError> {
    let to = address(admin);
    let broken = |error| CallError::Broken(to, error);
    let mut stream = TcpStream::connect_timeout(&to, CONNECT_TIMEOUT)
        .map_err(|e| CallError::Unreachable(to, e))?;
    stream
        .set_read_timeout(Some(ANSWER_TIMEOUT))
        .map_err(broken)?;
    stream
        .set_write_timeout(Some(ANSWER_TIMEOUT))
        .map_err(broken)?;
    stream
        .write_all(&request(admin, to, method, path, body))
        .map_err(broken)?;
    let mut answer = Vec::new();
    stream
        .take(ANSWER_BYTES_MAX)
        .read_to_end(&mut answer)
        .map_err(broken)?;
    read(to, &answer)
}

fn request(
    admin: &AdminConfig,
    to: SocketAddr,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> Vec<u8> {
    let body = body.map(Value::to_string).unwrap_or_default();
    let mut head =
        format!("{method} {path} HTTP/1.0\r\nhost: {to}\r\naccept: application/json\r\n");
    if let Some(token) = &admin.token {
        head += &format!("authorization: Bearer {}\r\n", token.expose_str());
    }
    if !body.is_empty() {
        head += &format!(
            "content-type: application/json\r\ncontent-length: {}\r\n",
            body.len()
        );
    }
    head += "\r\n";
    let mut bytes = head.into_bytes();
    bytes.extend_from_slice(body.as_bytes());
    bytes
}

fn read(from: SocketAddr, answer: &[u8]) -> Result<Value, CallError> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut response = httparse::Response::new(&mut headers);
    let head = match response.parse(answer) {
        Ok(httparse::Status::Complete(n)) => n,
        _ => return Err(CallError::Odd(from, "it is not HTTP")),
    };
    let status = response.code.unwrap_or(0);
    let body = serde_json::from_slice::<Value>(&answer[head..]);
    match (status, body) {
        (200..=299, Ok(value)) => Ok(value),
        (200..=299, Err(_)) if answer.len() == head => Ok(Value::Null),
        (200..=299, Err(_)) => Err(CallError::Odd(from, "it is not JSON, or it was cut")),
        (status, body) => {
            let word = body
                .ok()
                .and_then(|v| v["error"].as_str().map(str::to_string));
            Err(CallError::Refused { status, word })
        }
    }
}

/// An answer for people: one `key: value` a line, what is inside indented.
pub(super) fn for_people(value: &Value) -> String {
    let mut out = String::new();
    lines(value, 0, &mut out);
    out
}

fn lines(value: &Value, depth: usize, out: &mut String) {
    let lead = "  ".repeat(depth);
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                match value {
                    Value::Object(m) if !m.is_empty() => {
                        *out += &format!("{lead}{key}:\n");
                        lines(value, depth + 1, out);
                    }
                    Value::Array(a) if !a.is_empty() => {
                        *out += &format!("{lead}{key}:\n");
                        lines(value, depth + 1, out);
                    }
                    value => *out += &format!("{lead}{key}: {}\n", plain(value)),
                }
            }
        }
        Value::Array(items) => {
            for (i, item) in items.iter().enumerate() {
                if item.is_object() || item.is_array() {
                    *out += &format!("{lead}{}.\n", i + 1);
                    lines(item, depth + 1, out);
                } else {
                    *out += &format!("{lead}- {}\n", plain(item));
                }
            }
        }
        value => *out += &format!("{lead}{}\n", plain(value)),
    }
}

/// A text without quotes, on one line; what a terminal would act on is escaped.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text
            .chars()
            .flat_map(|c| {
                if c.is_control() {
                    c.escape_default().collect::<Vec<_>>()
                } else {
                    vec![c]
                }
            })
            .collect(),
        value => value.to_string(),
    }
}
