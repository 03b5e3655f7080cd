//! Answers of the admin port: JSON, and for every error a word.
//!
//! Pure.

use ankusa_net::types::{HeaderName, HeaderValue, Response, StatusCode};
use bytes::Bytes;
use http_body_util::Full;
use serde_json::{Value, json};

/// What the admin port answers with.
pub type Reply = Response<Full<Bytes>>;

/// An answer with a body of JSON.
pub fn json_with(status: StatusCode, body: &Value) -> Reply {
    text(status, "application/json", body.to_string())
}

/// 200 with JSON.
pub fn ok(body: &Value) -> Reply {
    json_with(StatusCode::OK, body)
}

/// An answer with any body.
pub fn text(status: StatusCode, content_type: &'static str, body: String) -> Reply {
    let mut reply = Response::new(Full::new(Bytes::from(body)));
    *reply.status_mut() = status;
    let headers = reply.headers_mut();
    headers.insert("content-type", HeaderValue::from_static(content_type));
    // What is told here is of the moment, and some of it is the senders'.
    headers.insert("cache-control", HeaderValue::from_static("no-store"));
    reply
}

/// A refusal: a status, a word, and what it is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The status.
    pub status: StatusCode,
    /// The word.
    pub word: &'static str,
    /// More members of the body.
    pub more: Vec<(&'static str, String)>,
    /// A header that goes with it.
    pub header: Option<(&'static str, String)>,
}

impl Refused {
    /// A refusal without more.
    pub fn new(status: StatusCode, word: &'static str) -> Refused {
        Refused {
            status,
            word,
            more: Vec::new(),
            header: None,
        }
    }

    /// 400.
    pub fn bad(word: &'static str) -> Refused {
        Refused::new(StatusCode::BAD_REQUEST, word)
    }

    /// 404.
    pub fn not_found() -> Refused {
        Refused::new(StatusCode::NOT_FOUND, "not_found")
    }

    /// 503, to be tried again in a second.
    pub fn unavailable(word: &'static str) -> Refused {
        Refused::new(StatusCode::SERVICE_UNAVAILABLE, word).header("retry-after", "1")
    }

    /// With one more member.
    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Refused {
        self.more.push((name, value.into()));
        self
    }

    /// With a header.
    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Refused {
        self.header = Some((name, value.into()));
        self
    }
}

impl From<Refused> for Reply {
    fn from(refused: Refused) -> Reply {
        let mut body = json!({ "error": refused.word });
        for (name, value) in refused.more {
            body[name] = Value::String(value);
        }
        let mut reply = json_with(refused.status, &body);
        if let Some((name, value)) = refused.header
            && let Ok(value) = HeaderValue::from_str(&value)
        {
            reply
                .headers_mut()
                .insert(HeaderName::from_static(name), value);
        }
        reply
    }
}
