//! Reads one HTTP/1.1 answer out of bytes.
//!
//! Pure. Knows `Content-Length` framing only, which is what the receiver uses; anything else is
//! an error of its own, never a guess.

use std::ops::Range;

/// An answer that is whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// Where the body is.
    pub body: Range<usize>,
    /// The server will close the connection.
    pub close: bool,
}

/// What the bytes so far are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Framing {
    /// More bytes are needed.
    Partial,
    /// An answer, whole.
    Whole(Answer),
}

/// Why bytes are not an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseError {
    /// Not HTTP.
    Malformed,
    /// No `Content-Length`, or one that is not a number.
    NoLength,
}

/// Reads the answer at the front of `bytes`.
pub fn parse(bytes: &[u8]) -> Result<Framing, ResponseError> {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut response = httparse::Response::new(&mut headers);
    let head_bytes = match response.parse(bytes) {
        Ok(httparse::Status::Complete(n)) => n,
        Ok(httparse::Status::Partial) => return Ok(Framing::Partial),
        Err(_) => return Err(ResponseError::Malformed),
    };
    let status = response.code.ok_or(ResponseError::Malformed)?;
    let mut length = None;
    let mut close = response.version == Some(0);
    for header in response.headers.iter() {
        if header.name.eq_ignore_ascii_case("content-length") {
            length = std::str::from_utf8(header.value)
                .ok()
                .and_then(|v| v.trim().parse::<usize>().ok());
            if length.is_none() {
                return Err(ResponseError::NoLength);
            }
        } else if header.name.eq_ignore_ascii_case("connection") {
            close |= header.value.eq_ignore_ascii_case(b"close");
        }
    }
    let length = match length {
        Some(length) => length,
        None if status == 204 || status == 304 => 0,
        None => return Err(ResponseError::NoLength),
    };
    let end = head_bytes
        .checked_add(length)
        .ok_or(ResponseError::NoLength)?;
    if bytes.len() < end {
        return Ok(Framing::Partial);
    }
    Ok(Framing::Whole(Answer {
        status,
        body: head_bytes..end,
        close,
    }))
}

/// The text value of a key in a small flat JSON body; no escapes, which ids and error words do
/// not have.
pub(super) fn json_text<'a>(body: &'a [u8], key: &str) -> Option<&'a str> {
    let value = json_value(body, key)?.strip_prefix('"')?;
    Some(&value[..value.find('"')?])
}

/// Whether a small flat JSON body has `"key": true`.
pub(super) fn json_true(body: &[u8], key: &str) -> bool {
    json_value(body, key).is_some_and(|value| value.starts_with("true"))
}

/// What follows `"key":`.
fn json_value<'a>(body: &'a [u8], key: &str) -> Option<&'a str> {
    let text = std::str::from_utf8(body).ok()?;
    let mut from = 0;
    loop {
        let at = from + text[from..].find(key)?;
        let end = at + key.len();
        if text[..at].ends_with('"') && text[end..].starts_with('"') {
            return Some(text[end + 1..].trim_start().strip_prefix(':')?.trim_start());
        }
        from = end;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const OK: &[u8] = b"HTTP/1.1 201 Created\r\nContent-Length: 4\r\nContent-Type: application/json\r\n\r\n{\"a\"";

    #[test]
    fn every_prefix_of_an_answer_is_partial() {
        for n in 0..OK.len() {
            assert_eq!(parse(&OK[..n]), Ok(Framing::Partial), "{n} bytes");
        }
        let Framing::Whole(answer) = parse(OK).unwrap() else {
            unreachable!()
        };
        assert_eq!(
            (answer.status, &OK[answer.body], answer.close),
            (201, &b"{\"a\""[..], false)
        );
    }

    #[test]
    fn an_answer_without_a_length_is_refused() {
        assert_eq!(
            parse(b"HTTP/1.1 200 OK\r\n\r\n"),
            Err(ResponseError::NoLength)
        );
        assert_eq!(
            parse(b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"),
            Err(ResponseError::NoLength)
        );
        assert_eq!(parse(b"SSH-2.0-OpenSSH\r\n"), Err(ResponseError::Malformed));
    }

    #[test]
    fn connection_close_is_seen() {
        let Framing::Whole(answer) =
            parse(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
                .unwrap()
        else {
            unreachable!()
        };
        assert!(answer.close);
    }

    #[test]
    fn words_are_found_in_flat_json() {
        let body = br#"{"error":"rate_limited", "id" : "x", "duplicate":true}"#;
        assert_eq!(json_text(body, "error"), Some("rate_limited"));
        assert_eq!(json_text(body, "id"), Some("x"));
        assert_eq!(json_text(body, "status"), None);
        assert!(json_true(body, "duplicate"));
        assert!(!json_true(body, "error"));
        assert_eq!(json_text(br#"{"status":"ids","id":"y"}"#, "id"), Some("y"));
    }
}
