//! Which of a provider's headers go on to the sinks.
//!
//! Never what gives access to this node or says how the request was framed, never what only two
//! neighbours on a connection mean for each other, and never `x-ankusa-*`: that is for this node
//! alone to say. Of the rest, what the source's `forward_headers` asks for.
//!
//! A token that the provider sends in a header of its own (`verify.type: bearer`) stays here too, and
//! so does what the provider's `Connection` header names.
//!
//! Pure; runs on a shard core for every hook and every delivery.

use crate::config::{SourceConfig, VerifyConfig};

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
const ALWAYS: &[u8] = b"content-encoding";

/// A source's rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForwardRule {
    /// `forward_headers`, lower case; `None`: every header that may go.
    only: Option<Vec<String>>,
    /// The header in which the provider sends its token: it opens this source's door.
    credential: Option<String>,
}

impl ForwardRule {
    /// Every header that may go.
    pub fn all() -> ForwardRule {
        ForwardRule::default()
    }

    /// The rule of a source.
    pub fn new(source: &SourceConfig) -> ForwardRule {
        ForwardRule {
            only: source.forward_headers.clone(),
            credential: match &source.verify {
                VerifyConfig::Bearer { header, .. } => Some(header.clone()),
                _ => None,
            },
        }
    }

    /// The headers of a hook that go on, in their order.
    pub fn select<'a>(
        &self,
        headers: impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone,
    ) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        let hop_by_hop: Vec<&[u8]> = headers
            .clone()
            .filter(|(name, _)| name.eq_ignore_ascii_case(b"connection"))
            .flat_map(|(_, value)| value.split(|b| *b == b','))
            .map(<[u8]>::trim_ascii)
            .collect();
        headers.filter(move |(name, _)| {
            self.forwards(name) && !hop_by_hop.iter().any(|n| n.eq_ignore_ascii_case(name))
        })
    }

    fn forwards(&self, name: &[u8]) -> bool {
        let is = |other: &String| name.eq_ignore_ascii_case(other.as_bytes());
        if may_never_go(name) || self.credential.as_ref().is_some_and(is) {
            return false;
        }
        match &self.only {
            None => true,
            Some(names) => name.eq_ignore_ascii_case(ALWAYS) || names.iter().any(is),
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_page_names_every_header_that_never_goes_on() {
        let page = include_str!("../../../docs/delivery.md");
        let row = page
            .lines()
            .find(|l| l.starts_with("| whatever it says"))
            .unwrap();
        let named: Vec<&str> = row.split('`').skip(1).step_by(2).collect();
        for never in NEVER {
            assert!(named.contains(&never), "{never} is not in: {row}");
        }
        for name in named
            .iter()
            .filter(|n| !["bearer", "x-ankusa-*"].contains(n))
        {
            assert!(may_never_go(name.as_bytes()), "{name} goes on");
        }
    }

    #[test]
    fn what_a_provider_signs_with_and_accepts_goes_on_where_nothing_is_said() {
        let all = ForwardRule::all();
        for name in [
            "stripe-signature",
            "accept-encoding",
            "user-agent",
            "x-forwarded-for",
        ] {
            assert!(all.forwards(name.as_bytes()), "{name}");
        }
        let none = ForwardRule {
            only: Some(Vec::new()),
            credential: None,
        };
        assert!(none.forwards(ALWAYS) && !none.forwards(b"user-agent"));
    }
}
