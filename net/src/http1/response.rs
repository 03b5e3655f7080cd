//! An answer, and its bytes on the wire. Pure.
//!
//! Header names and values are static or numbers and a small body lives inline, so that an
//! ordinary answer allocates nothing and goes out in one write.

use bytes::Bytes;
use http_body_util::Full;
use hyper::StatusCode;
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE};
use hyper::http;

use super::clock::DATE_LEN;

/// Header lines of an answer beside those the server writes itself.
const HEADERS_MAX: usize = 3;
/// Longest body kept inside the answer.
pub const INLINE_BODY_MAX: usize = 126;

/// The value of an answer's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderValue {
    /// A fixed text.
    Static(&'static str),
    /// A decimal number.
    Number(u64),
}

/// A short body without an allocation. Writing more than [`INLINE_BODY_MAX`] bytes fails.
#[derive(Clone, Copy)]
pub struct InlineBody {
    len: u8,
    bytes: [u8; INLINE_BODY_MAX],
}

impl InlineBody {
    /// An empty one.
    pub fn new() -> Self {
        InlineBody {
            len: 0,
            bytes: [0; INLINE_BODY_MAX],
        }
    }

    /// What was written.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl Default for InlineBody {
    fn default() -> Self {
        InlineBody::new()
    }
}

impl std::fmt::Write for InlineBody {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let start = usize::from(self.len);
        let room = self
            .bytes
            .get_mut(start..start + text.len())
            .ok_or(std::fmt::Error)?;
        room.copy_from_slice(text.as_bytes());
        self.len += text.len() as u8;
        Ok(())
    }
}

/// The body of an answer.
#[derive(Clone)]
pub enum Body {
    /// A fixed text.
    Static(&'static str),
    /// A short text made for this answer.
    Inline(InlineBody),
    /// Anything else.
    Bytes(Bytes),
}

impl Body {
    fn as_slice(&self) -> &[u8] {
        match self {
            Body::Static(text) => text.as_bytes(),
            Body::Inline(inline) => inline.as_slice(),
            Body::Bytes(bytes) => bytes,
        }
    }
}

/// An answer. The server adds `Date`, `Content-Length` and `Connection`.
#[derive(Clone)]
pub struct Response {
    status: u16,
    content_type: &'static str,
    headers: [Option<(&'static str, HeaderValue)>; HEADERS_MAX],
    body: Body,
    close: bool,
}

impl Response {
    /// An answer with a JSON body known beforehand.
    pub fn fixed(status: u16, json: &'static str) -> Self {
        Response::new(status, Body::Static(json))
    }

    /// An answer with a JSON body made now, without an allocation if it is short.
    pub fn json(status: u16, body: std::fmt::Arguments<'_>) -> Self {
        let mut inline = InlineBody::new();
        match std::fmt::Write::write_fmt(&mut inline, body) {
            Ok(()) => Response::new(status, Body::Inline(inline)),
            Err(_) => Response::new(status, Body::Bytes(Bytes::from(body.to_string()))),
        }
    }

    /// An answer with any JSON body.
    pub fn new(status: u16, body: Body) -> Self {
        debug_assert!((200..600).contains(&status));
        Response {
            status,
            content_type: "application/json",
            headers: [None; HEADERS_MAX],
            body,
            close: false,
        }
    }

    /// Another content type than JSON.
    pub fn content_type(mut self, content_type: &'static str) -> Self {
        self.content_type = content_type;
        self
    }

    /// One more header line.
    ///
    /// # Panics
    /// When it is the fourth: a slip of the program, never of a request.
    pub fn header(mut self, name: &'static str, value: HeaderValue) -> Self {
        let free = self.headers.iter_mut().find(|h| h.is_none());
        *free.expect("an answer takes three headers of its own") = Some((name, value));
        self
    }

    /// `Retry-After`, seconds.
    pub fn retry_after(self, seconds: u64) -> Self {
        self.header("Retry-After", HeaderValue::Number(seconds))
    }

    /// Close the connection after this answer.
    pub fn close(mut self) -> Self {
        self.close = true;
        self
    }

    /// The status code.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// What it tells the client to wait, seconds.
    pub fn retry_after_s(&self) -> Option<u64> {
        let mut headers = self.headers.iter().flatten();
        headers.find_map(|header| match header {
            ("Retry-After", HeaderValue::Number(seconds)) => Some(*seconds),
            _ => None,
        })
    }

    /// The body's bytes.
    pub fn body(&self) -> &[u8] {
        self.body.as_slice()
    }

    /// The same answer for HTTP/2.
    pub(crate) fn into_http2(self, without_body: bool) -> hyper::Response<Full<Bytes>> {
        let bytes = match self.body {
            Body::Static(text) => Bytes::from_static(text.as_bytes()),
            Body::Inline(inline) => Bytes::copy_from_slice(inline.as_slice()),
            Body::Bytes(bytes) => bytes,
        };
        let mut response = hyper::Response::new(Full::default());
        *response.status_mut() = StatusCode::from_u16(self.status).unwrap_or_default();
        let headers = response.headers_mut();
        headers.insert(CONTENT_LENGTH, http::HeaderValue::from(bytes.len()));
        if !bytes.is_empty() {
            headers.insert(
                CONTENT_TYPE,
                http::HeaderValue::from_static(self.content_type),
            );
        }
        for (name, value) in self.headers.into_iter().flatten() {
            let value = match value {
                HeaderValue::Static(text) => http::HeaderValue::from_static(text),
                HeaderValue::Number(n) => http::HeaderValue::from(n),
            };
            if let Ok(name) = http::HeaderName::try_from(name) {
                headers.insert(name, value);
            }
        }
        if !without_body {
            *response.body_mut() = Full::new(bytes);
        }
        response
    }

    pub(crate) fn closes(&self) -> bool {
        self.close
    }

    /// Appends the bytes of this answer to `out`.
    pub(crate) fn encode(&self, out: &mut Vec<u8>, how: &Encoding) {
        let body = self.body.as_slice();
        out.extend_from_slice(b"HTTP/1.1 ");
        push_number(out, u64::from(self.status));
        out.push(b' ');
        out.extend_from_slice(reason(self.status).as_bytes());
        out.extend_from_slice(b"\r\nDate: ");
        out.extend_from_slice(&how.date);
        if self.status != 204 && self.status != 304 {
            out.extend_from_slice(b"\r\nContent-Length: ");
            push_number(out, body.len() as u64);
        }
        if !body.is_empty() {
            out.extend_from_slice(b"\r\nContent-Type: ");
            out.extend_from_slice(self.content_type.as_bytes());
        }
        for (name, value) in self.headers.iter().flatten() {
            out.extend_from_slice(b"\r\n");
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(b": ");
            match value {
                HeaderValue::Static(text) => out.extend_from_slice(text.as_bytes()),
                HeaderValue::Number(n) => push_number(out, *n),
            }
        }
        match how.connection {
            ConnectionHeader::None => {}
            ConnectionHeader::KeepAlive => out.extend_from_slice(b"\r\nConnection: keep-alive"),
            ConnectionHeader::Close => out.extend_from_slice(b"\r\nConnection: close"),
        }
        out.extend_from_slice(b"\r\n\r\n");
        if !how.without_body && self.status != 204 && self.status != 304 {
            out.extend_from_slice(body);
        }
    }
}

/// What the connection adds to an answer.
pub(crate) struct Encoding {
    pub(crate) date: [u8; DATE_LEN],
    pub(crate) connection: ConnectionHeader,
    /// The request was a HEAD.
    pub(crate) without_body: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionHeader {
    /// HTTP/1.1 keeps the connection without saying so.
    None,
    /// HTTP/1.0 has to be told.
    KeepAlive,
    Close,
}

fn push_number(out: &mut Vec<u8>, mut n: u64) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        204 => "No Content",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        409 => "Conflict",
        411 => "Length Required",
        413 => "Content Too Large",
        415 => "Unsupported Media Type",
        422 => "Unprocessable Content",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "Status",
    }
}

#[cfg(test)]
mod tests;
