//! The path to a value in a JSON body, as the configuration writes it: `data.id`, `items.0.id`.
//!
//! Pure; parsed at boot and on reload.

use thiserror::Error;

const SEGMENTS_MAX: usize = 16;
const PATH_BYTES_MAX: usize = 256;

/// A path that cannot be used.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum PathError {
    /// Empty, or with an empty segment.
    #[error("a JSON path is names separated by single dots, such as data.id")]
    EmptySegment,
    /// More segments or bytes than a path may have.
    #[error("a JSON path has at most {SEGMENTS_MAX} segments and {PATH_BYTES_MAX} bytes")]
    TooLong,
}

/// A validated path. A segment is the name of a member; of an array it is the place of an element,
/// counted from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonPath {
    segments: Box<[Segment]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) name: Box<[u8]>,
    /// The name read as a place, when it is one.
    pub(super) element: Option<u64>,
}

impl JsonPath {
    /// A path of these segments.
    pub fn new<S: AsRef<str>>(names: &[S]) -> Result<JsonPath, PathError> {
        let segments: Box<[Segment]> = names.iter().map(|n| Segment::new(n.as_ref())).collect();
        if segments.is_empty() || segments.iter().any(|s| s.name.is_empty()) {
            return Err(PathError::EmptySegment);
        }
        let bytes: usize = segments.iter().map(|s| s.name.len()).sum();
        if segments.len() > SEGMENTS_MAX || bytes > PATH_BYTES_MAX {
            return Err(PathError::TooLong);
        }
        Ok(JsonPath { segments })
    }

    /// Parses the dotted form.
    pub fn parse(text: &str) -> Result<JsonPath, PathError> {
        JsonPath::new(&text.split('.').collect::<Vec<_>>())
    }

    pub(super) fn segment(&self, depth: usize) -> Option<&Segment> {
        self.segments.get(depth)
    }

    pub(super) fn is_last(&self, depth: usize) -> bool {
        depth + 1 == self.segments.len()
    }
}

impl Segment {
    fn new(name: &str) -> Segment {
        let plain = name.len() == 1 || !name.starts_with('0');
        let digits = name.bytes().all(|b| b.is_ascii_digit());
        let element = if plain && digits {
            name.parse().ok()
        } else {
            None
        };
        Segment {
            name: name.as_bytes().into(),
            element,
        }
    }
}
