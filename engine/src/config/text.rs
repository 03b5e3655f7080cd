//! What a text must look like: one named rule for each kind of text.
//!
//! A rule says what is wanted, checks it, and whether the value may be shown. Pure; runs anywhere.

use std::net::IpAddr;

use super::areas::{Cidr, EgressRule, SignedPart, SinkUrl, UrlHost};

/// What may be shown of a value where configurations are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Show {
    /// All of it.
    Whole,
    /// Scheme, host and port of a URL.
    Origin,
}

/// What a text must look like.
pub(super) struct Rule {
    /// The end of "… is not".
    pub want: &'static str,
    /// A regular expression of the JSON Schema; empty for none.
    pub pattern: &'static str,
    /// Says why not, where more can be said than `want`.
    pub check: fn(&str) -> Result<(), &'static str>,
    pub show: Show,
}

impl std::fmt::Debug for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.want)
    }
}

const fn rule(
    want: &'static str,
    pattern: &'static str,
    check: fn(&str) -> Result<(), &'static str>,
) -> Rule {
    Rule {
        want,
        pattern,
        check,
        show: Show::Whole,
    }
}

fn when(good: bool) -> Result<(), &'static str> {
    if good { Ok(()) } else { Err("") }
}

fn all(text: &str, len_max: usize, more: &str) -> bool {
    !text.is_empty()
        && text.len() <= len_max
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || more.as_bytes().contains(&b))
}

/// Sources, tenants, sinks.
pub(super) static NAME: Rule = rule(
    "a name of 1 to 64 letters, digits, - and _",
    "^[A-Za-z0-9_-]{1,64}$",
    |t| when(is_name(t)),
);
/// The node.
pub(super) static NODE_NAME: Rule = rule(
    "a name of 1 to 253 letters, digits, ., - and _",
    "^[A-Za-z0-9._-]{1,253}$",
    |t| when(all(t, 253, "._-")),
);
/// Identities in the log.
pub(super) static LOG_NAME: Rule = rule(
    "a name of 1 to 64 lower-case letters, digits, ., - and _",
    "^[a-z0-9._-]{1,64}$",
    |t| when(all(t, 64, "._-") && !t.bytes().any(|b| b.is_ascii_uppercase())),
);
/// Topics, streams, buckets.
pub(super) static TOPIC: Rule = rule(
    "a name of 1 to 249 letters, digits, ., - and _",
    "^[A-Za-z0-9._-]{1,249}$",
    |t| when(all(t, 249, "._-")),
);
/// Any text at all.
pub(super) static ANY: Rule = rule("a text that is not empty", "", |t| when(!t.is_empty()));
/// A text that may be empty, in the characters of a header.
pub(super) static FIELD: Rule = rule("a text of printable ASCII characters", "^[ -~]*$", |t| {
    when(t.bytes().all(|b| (b' '..=b'~').contains(&b)))
});
/// Files and directories.
pub(super) static PATH: Rule = rule("a path", "", |t| when(!t.is_empty() && !t.contains('\0')));
/// Addresses to bind.
pub(super) static IP: Rule = rule("an IP address, such as 127.0.0.1 or ::", "", |t| {
    when(t.parse::<IpAddr>().is_ok())
});
/// The path before the source.
pub(super) static PREFIX: Rule = rule(
    "a path such as /webhooks, or / for none",
    "^/[A-Za-z0-9._~/-]*$",
    |t| {
        when(
            t == "/"
                || (t.starts_with('/')
                    && !t.ends_with('/')
                    && !t.contains("//")
                    && all(t, 256, "/._~-")
                    && !t.split('/').any(|p| p == "." || p == "..")),
        )
    },
);
/// Header names.
pub(super) static HEADER: Rule = rule(
    "a header name",
    "^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}$",
    |t| when(is_header(t)),
);
/// Headers that a sink may add.
pub(super) static SINK_HEADER: Rule = rule("a header that a sink may add", "", |t| {
    let lower = t.to_ascii_lowercase();
    let reserved = [
        "host",
        "content-length",
        "content-type",
        "transfer-encoding",
        "connection",
        "keep-alive",
        "te",
        "trailer",
        "upgrade",
        "expect",
        "proxy-connection",
        "webhook-id",
        "webhook-timestamp",
        "webhook-signature",
    ];
    if !is_header(t) {
        Err("a header name is letters, digits and !#$%&'*+.^_`|~-")
    } else if reserved.contains(&lower.as_str())
        || RESERVED_ANKUSA
            .iter()
            .any(|r| lower.strip_prefix("x-ankusa-") == Some(*r))
    {
        Err("the delivery sets it itself")
    } else {
        Ok(())
    }
});
const RESERVED_ANKUSA: [&str; 10] = [
    "id",
    "source",
    "tenant",
    "idempotency-key",
    "dedupe-key",
    "replay-id",
    "received-at",
    "body-sha256",
    "verification",
    "verification-flagged",
];
/// Where an HTTP sink delivers.
pub(super) static SINK_URL: Rule = Rule {
    want: "an http or https URL",
    pattern: "^([Hh][Tt][Tt][Pp][Ss]?://|.*\\$\\{)",
    check: |t| parse_url(t).map(drop),
    show: Show::Origin,
};
/// Other URLs.
pub(super) static ENDPOINT: Rule = Rule {
    want: "an http or https URL",
    pattern: "",
    check: |t| parse_url(t).map(drop),
    show: Show::Origin,
};
/// A JetStream server.
pub(super) static NATS_URL: Rule = Rule {
    want: "a URL such as nats://host:4222 or tls://host:4222",
    pattern: "",
    check: |t| {
        let rest = t
            .strip_prefix("nats://")
            .or_else(|| t.strip_prefix("tls://"))
            .ok_or("")?;
        if rest.contains('@') {
            return Err("user and password belong into intake.jetstream.credentials");
        }
        when(host_port(rest))
    },
    show: Show::Whole,
};
/// Kafka brokers.
pub(super) static BROKER: Rule = rule("host:port", "^.+:[0-9]{1,5}$", |t| when(host_port(t)));
/// What a sink may reach.
pub(super) static EGRESS: Rule = rule(
    "an address block such as 10.1.0.0/16, or a host name",
    "",
    |t| parse_egress(t).map(drop),
);
/// A path into a JSON body.
pub(super) static JSON_PATH: Rule = rule("a path such as data.id", "", |t| {
    when(
        !t.is_empty()
            && t.len() <= 512
            && t.split('.').all(|p| !p.is_empty())
            && t.split('.').count() <= 16,
    )
});
/// What is signed.
pub(super) static SIGNED: Rule = rule(
    "a template of {body}, {ts}, {header:NAME} and plain text",
    "",
    |t| parse_signed(t).map(drop),
);
/// An Ed25519 public key.
pub(super) static PUBLIC_KEY: Rule = rule(
    "an Ed25519 public key: 32 bytes in hex or base64",
    "",
    |t| when(parse_public_key(t).is_some()),
);

/// Whether a text may name a source, a tenant or a sink.
pub fn is_name(text: &str) -> bool {
    all(text, 64, "_-")
}

fn is_header(text: &str) -> bool {
    all(text, 128, "!#$%&'*+-.^_`|~")
}

fn host_port(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| {
        parse_host(host).is_some()
            && port.parse::<u16>().is_ok_and(|p| p > 0)
            && port.bytes().all(|b| b.is_ascii_digit())
    })
}

/// A host name in lower case, or an address; v6 in brackets.
fn parse_host(text: &str) -> Option<UrlHost> {
    if let Some(v6) = text.strip_prefix('[') {
        return Some(UrlHost::Ip(IpAddr::V6(v6.strip_suffix(']')?.parse().ok()?)));
    }
    // A name whose last label is a number would be read as an address by some resolvers: only the
    // four-part decimal form is one here, and every other is refused.
    let last = text
        .trim_end_matches('.')
        .rsplit('.')
        .next()
        .unwrap_or_default();
    let numeric = !last.is_empty()
        && (last.bytes().all(|b| b.is_ascii_digit())
            || last.to_ascii_lowercase().starts_with("0x"));
    if numeric {
        return text.parse().ok().map(|v4| UrlHost::Ip(IpAddr::V4(v4)));
    }
    let label = |l: &str| all(l, 63, "-_") && !l.starts_with('-') && !l.ends_with('-');
    (text.len() <= 253 && text.trim_end_matches('.').split('.').all(label))
        .then(|| UrlHost::Name(text.trim_end_matches('.').to_ascii_lowercase()))
}

/// Reads the URL of a sink.
///
/// # Errors
/// Says what is wrong, without the URL.
pub fn parse_url(text: &str) -> Result<SinkUrl, &'static str> {
    let (scheme, rest) = text.split_once("://").ok_or("it has no scheme")?;
    let https = match scheme.to_ascii_lowercase().as_str() {
        "https" => true,
        "http" => false,
        _ => return Err("the scheme must be http or https"),
    };
    if !rest
        .bytes()
        .all(|b| (b'!'..=b'~').contains(&b) && !b"\"<>\\^`{|}".contains(&b))
    {
        return Err("it holds a space, or a character that must be percent-encoded");
    }
    if rest.contains('#') {
        return Err("it has a fragment, which is never sent");
    }
    let split = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(split);
    if authority.contains('@') {
        return Err("it holds a user or password; use headers for what the sink asks for");
    }
    let (host, port) = match authority.rfind(':') {
        Some(i) if !authority[i..].contains(']') => {
            let digits = &authority[i + 1..];
            let port: u16 = digits.parse().map_err(|_| "the port must be 1 to 65535")?;
            if port == 0 || !digits.bytes().all(|b| b.is_ascii_digit()) {
                return Err("the port must be 1 to 65535");
            }
            (&authority[..i], port)
        }
        _ => (authority, if https { 443 } else { 80 }),
    };
    let host = parse_host(host)
        .ok_or("the host is not a name, an IPv4 address or an IPv6 address in brackets")?;
    let path_and_query = match path.as_bytes().first() {
        None => "/".to_string(),
        Some(b'?') => format!("/{path}"),
        Some(_) => path.to_string(),
    };
    Ok(SinkUrl {
        https,
        host,
        port,
        path_and_query,
    })
}

/// Reads an entry of `egress.allow`.
///
/// # Errors
/// Says what is wrong.
pub fn parse_egress(text: &str) -> Result<EgressRule, &'static str> {
    if let Some((ip, len)) = text.split_once('/') {
        let network: IpAddr = ip.parse().map_err(|_| "")?;
        let prefix_len: u8 = len.parse().map_err(|_| "")?;
        let bits = if network.is_ipv4() { 32 } else { 128 };
        if prefix_len > bits {
            return Err("the length after the slash is longer than the address");
        }
        let cidr = Cidr {
            network,
            prefix_len,
        };
        return if cidr.host_bits_are_zero() {
            Ok(EgressRule::Cidr(cidr))
        } else {
            Err("bits after the slash's length are set")
        };
    }
    if let Ok(network) = text
        .trim_start_matches('[')
        .trim_end_matches(']')
        .parse::<IpAddr>()
    {
        return Ok(EgressRule::Cidr(Cidr {
            network,
            prefix_len: if network.is_ipv4() { 32 } else { 128 },
        }));
    }
    match parse_host(text) {
        Some(UrlHost::Name(name)) => Ok(EgressRule::Host(name)),
        _ => Err(""),
    }
}

/// Reads a template of what is signed.
///
/// # Errors
/// Says what is wrong.
pub fn parse_signed(text: &str) -> Result<Vec<SignedPart>, &'static str> {
    let mut parts = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let Some(open) = rest.find('{') else {
            parts.push(SignedPart::Literal(rest.to_string()));
            break;
        };
        if open > 0 {
            parts.push(SignedPart::Literal(rest[..open].to_string()));
        }
        let close = rest[open..].find('}').ok_or("a { without its }")? + open;
        parts.push(match &rest[open + 1..close] {
            "body" => SignedPart::Body,
            "ts" => SignedPart::Timestamp,
            other => match other.strip_prefix("header:") {
                Some(name) if is_header(name) => SignedPart::Header(name.to_ascii_lowercase()),
                _ => return Err("what stands in braces must be body, ts or header:NAME"),
            },
        });
        rest = &rest[close + 1..];
    }
    if !parts.contains(&SignedPart::Body) {
        return Err("without {body} the signature would not cover the body");
    }
    Ok(parts)
}

/// Reads an Ed25519 public key in hex or base64.
pub fn parse_public_key(text: &str) -> Option<[u8; 32]> {
    use base64::Engine as _;
    if text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit()) {
        let mut key = [0; 32];
        for (i, byte) in key.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok()?;
        }
        return Some(key);
    }
    base64::engine::general_purpose::STANDARD
        .decode(text)
        .ok()?
        .try_into()
        .ok()
}

/// The key inside a Standard Webhooks secret: base64, with `whsec_` before it or without.
pub fn parse_whsec(text: &str) -> Option<Vec<u8>> {
    use base64::Engine as _;
    let text = text.strip_prefix("whsec_").unwrap_or(text);
    base64::engine::general_purpose::STANDARD
        .decode(text)
        .ok()
        .filter(|key| !key.is_empty())
}
