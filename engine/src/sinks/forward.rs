//! Which of a provider's headers go on to the sinks.
//!
//! Never what gives access to this node or says how the request was framed, never what only two
//! neighbours on a connection mean for each other, and never `x-ankusa-*`: that is for this node
//! alone to say. Of the rest, what the source's `forward_headers` asks for.
//!
//! Pure; runs on a shard core for every hook and every delivery.

/// Lower case, sorted.
const NEVER: [&str; 17] = [
    "authorization",
    "connection",
    "content-length",
    "cookie",
    "expect",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "set-cookie",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "x-api-key",
];

/// Without it the body could not be read: it is kept as received, compressed or not.
const ALWAYS: &str = "content-encoding";

/// A source's `forward_headers`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForwardRule {
    /// Absent: every header that may go.
    All,
    /// These, lower case, and `content-encoding`.
    Only(Vec<String>),
}

impl ForwardRule {
    /// The rule of a source.
    pub fn new(forward_headers: Option<&[String]>) -> ForwardRule {
        match forward_headers {
            None => ForwardRule::All,
            Some(names) => {
                ForwardRule::Only(names.iter().map(|n| n.to_ascii_lowercase()).collect())
            }
        }
    }

    /// Whether the header of this name goes on.
    pub fn forwards(&self, name: &[u8]) -> bool {
        if may_never_go(name) {
            return false;
        }
        match self {
            ForwardRule::All => true,
            ForwardRule::Only(names) => {
                name.eq_ignore_ascii_case(ALWAYS.as_bytes())
                    || names
                        .iter()
                        .any(|n| name.eq_ignore_ascii_case(n.as_bytes()))
            }
        }
    }
}

/// Whether no rule can make the header go on.
pub fn may_never_go(name: &[u8]) -> bool {
    const OURS: &[u8] = b"x-ankusa-";
    let ours = name.len() >= OURS.len() && name[..OURS.len()].eq_ignore_ascii_case(OURS);
    ours || NEVER
        .iter()
        .any(|never| name.eq_ignore_ascii_case(never.as_bytes()))
}

/// Whether the request's `Connection` headers name this one, which makes it hop-by-hop.
pub fn is_named_by_connection<'a>(
    name: &[u8],
    headers: impl Iterator<Item = (&'a [u8], &'a [u8])>,
) -> bool {
    headers
        .filter(|(n, _)| n.eq_ignore_ascii_case(b"connection"))
        .flat_map(|(_, value)| value.split(|b| *b == b','))
        .any(|token| token.trim_ascii().eq_ignore_ascii_case(name))
}
