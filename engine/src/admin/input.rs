//! What comes with a request: the query and the JSON body, both checked against the keys that the
//! route knows. An unknown or repeated key is refused, never passed over.
//!
//! Pure.

use ankusa_net::types::StatusCode;
use serde_json::{Map, Value};

use super::reply::Refused;
use crate::config::is_name;

/// Items of a list where the request does not say.
const LIMIT_DEFAULT: usize = 100;
/// Most items of a list.
const LIMIT_MAX: usize = 1000;

/// The query of a request.
#[derive(Debug, Default)]
pub struct Query<'a> {
    pairs: Vec<(&'a str, &'a str)>,
}

impl<'a> Query<'a> {
    /// Reads a query whose keys are among `known`. No value that is taken here needs an escape,
    /// so one with an escape is refused.
    pub fn parse(query: &'a str, known: &[&str]) -> Result<Query<'a>, Refused> {
        let mut pairs: Vec<(&str, &str)> = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            if !known.contains(&key) {
                return Err(Refused::bad("unknown_key").with("key", key));
            }
            if pairs.iter().any(|(name, _)| *name == key) {
                return Err(Refused::bad("repeated_key").with("key", key));
            }
            pairs.push((key, value));
        }
        Ok(Query { pairs })
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&'a str> {
        let mut pairs = self.pairs.iter();
        pairs.find(|(name, _)| *name == key).map(|(_, v)| *v)
    }

    /// The value of a key that must be a name.
    pub fn name(&self, key: &str) -> Result<Option<String>, Refused> {
        match self.get(key) {
            Some(value) if is_name(value) => Ok(Some(value.to_string())),
            Some(_) => Err(invalid(key)),
            None => Ok(None),
        }
    }

    /// `limit`.
    pub fn limit(&self) -> Result<usize, Refused> {
        match self.get("limit") {
            None => Ok(LIMIT_DEFAULT),
            Some(text) => match text.parse() {
                Ok(limit) if (1..=LIMIT_MAX).contains(&limit) => Ok(limit),
                _ => Err(invalid("limit")),
            },
        }
    }

    /// A key that is `true` or `false`.
    pub fn flag(&self, key: &str) -> Result<bool, Refused> {
        match self.get(key) {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => Err(invalid(key)),
        }
    }
}

/// A key with a value that it may not have.
pub fn invalid(key: &str) -> Refused {
    Refused::bad("invalid_value").with("key", key)
}

/// The JSON object of a body whose keys are among `known`.
pub fn object(
    content_type: Option<&[u8]>,
    body: &[u8],
    known: &[&str],
) -> Result<Map<String, Value>, Refused> {
    // Asked for strictly: a page in a browser cannot send it to another origin unasked.
    let media = content_type.unwrap_or_default();
    let media = media.split(|b| *b == b';').next().unwrap_or_default();
    if !media.trim_ascii().eq_ignore_ascii_case(b"application/json") {
        return Err(Refused::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported_media_type",
        ));
    }
    let Ok(Value::Object(map)) = serde_json::from_slice(body) else {
        return Err(Refused::bad("malformed_json"));
    };
    match map.keys().find(|key| !known.contains(&key.as_str())) {
        Some(key) => Err(Refused::bad("unknown_key").with("key", key.as_str())),
        None => Ok(map),
    }
}

/// A member that must be a name.
pub fn name_of(map: &Map<String, Value>, key: &str) -> Result<Option<String>, Refused> {
    match map.get(key) {
        None => Ok(None),
        Some(Value::String(name)) if is_name(name) => Ok(Some(name.clone())),
        Some(_) => Err(invalid(key)),
    }
}
