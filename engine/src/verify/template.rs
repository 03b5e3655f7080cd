//! The `signed` template: what bytes a provider puts under its signature.
//!
//! Literal text with `{body}` (exactly once), `{ts}` and `{header:NAME}`; `{{` and `}}` stand for
//! the braces themselves. Pure; parsed at boot and on reload.

use thiserror::Error;

/// The longest template, and so the most parts.
const TEMPLATE_BYTES_MAX: usize = 512;

/// A template that cannot be used.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum TemplateError {
    /// The signature would say nothing about the body.
    #[error("the signed template must contain {{body}} exactly once, found {found_count}")]
    BodyCount {
        /// How often it occurs.
        found_count: usize,
    },
    /// A placeholder that does not exist.
    #[error("unknown placeholder `{{{name}}}`: only {{body}}, {{ts}} and {{header:NAME}} exist")]
    UnknownPlaceholder {
        /// What stood between the braces.
        name: String,
    },
    /// A brace without its partner.
    #[error(
        "unbalanced brace at byte {at} of the signed template (write {{{{ or }}}} for a brace)"
    )]
    Unbalanced {
        /// Byte offset in the template.
        at: usize,
    },
    /// Too long.
    #[error("the signed template has {got} bytes, more than {TEMPLATE_BYTES_MAX}")]
    TooLong {
        /// Its length in bytes.
        got: usize,
    },
}

/// One part of the signed string.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Literal(Box<[u8]>),
    /// The timestamp, byte for byte as the header has it.
    Timestamp,
    /// The value of a header; lower-case name.
    Header(Box<str>),
}

/// What comes before and after the body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Template {
    pub(super) before: Vec<Part>,
    pub(super) after: Vec<Part>,
}

impl Template {
    pub(super) fn parse(text: &str) -> Result<Template, TemplateError> {
        if text.len() > TEMPLATE_BYTES_MAX {
            return Err(TemplateError::TooLong { got: text.len() });
        }
        let bytes = text.as_bytes();
        let mut template = Template::default();
        let mut parts = Vec::new();
        let mut literal = Vec::new();
        let mut body_count = 0;
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            let doubled = bytes.get(at + 1) == Some(&byte);
            match byte {
                b'{' | b'}' if doubled => {
                    literal.push(byte);
                    at += 2;
                }
                b'}' => return Err(TemplateError::Unbalanced { at }),
                b'{' => {
                    let rest = &text[at + 1..];
                    let len = rest.find('}').ok_or(TemplateError::Unbalanced { at })?;
                    flush(&mut literal, &mut parts);
                    match placeholder(&rest[..len])? {
                        Some(part) => parts.push(part),
                        None => {
                            body_count += 1;
                            template.before.append(&mut parts);
                        }
                    }
                    at += len + 2;
                }
                _ => {
                    literal.push(byte);
                    at += 1;
                }
            }
        }
        flush(&mut literal, &mut parts);
        template.after = parts;
        match body_count {
            1 => Ok(template),
            found_count => Err(TemplateError::BodyCount { found_count }),
        }
    }

    pub(super) fn parts(&self) -> impl Iterator<Item = &Part> {
        self.before.iter().chain(&self.after)
    }

    /// True when the time stands in the signed string, as `{ts}` or as that header itself.
    pub(super) fn covers_timestamp(&self, timestamp_header: Option<&str>) -> bool {
        self.parts().any(|part| match part {
            Part::Timestamp => true,
            Part::Header(name) => Some(&**name) == timestamp_header,
            Part::Literal(_) => false,
        })
    }
}

/// `None` is the body.
fn placeholder(name: &str) -> Result<Option<Part>, TemplateError> {
    match name {
        "body" => Ok(None),
        "ts" => Ok(Some(Part::Timestamp)),
        _ => match name.strip_prefix("header:") {
            Some(header) if is_header_name(header) => {
                Ok(Some(Part::Header(header.to_ascii_lowercase().into())))
            }
            _ => Err(TemplateError::UnknownPlaceholder {
                name: name.to_owned(),
            }),
        },
    }
}

fn flush(literal: &mut Vec<u8>, parts: &mut Vec<Part>) {
    if !literal.is_empty() {
        parts.push(Part::Literal(std::mem::take(literal).into()));
    }
}

/// A token of RFC 9110, at most 128 bytes.
pub(super) fn is_header_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 128
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}
