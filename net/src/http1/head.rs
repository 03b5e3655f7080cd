//! The head of a request: where it ends, what it says, how its body is framed. Pure.
//!
//! Strict by design. Two parties that read the same bytes differently are how requests get
//! smuggled, so whatever another HTTP implementation might read otherwise is refused here:
//! bare LF, control bytes, repeated or odd lengths, a length beside a transfer coding, folding,
//! space before a colon, a missing or repeated host.
//!
//! Invariant: what `parse` answers depends on the bytes alone, never on how they were split.

use std::mem::MaybeUninit;
use std::net::SocketAddr;

/// Most header lines a head can be allowed.
pub const HEADERS_MAX: usize = 128;

/// Header lines kept without an allocation.
const HEADERS_INLINE: usize = 24;

/// What of a request is in doubt. The words are for clients and metrics, and stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// The method, the target or the version.
    RequestLine,
    /// A line that does not end in CR LF, or an empty line where the request should start.
    LineEnd,
    /// A header's name or value, or what is between them.
    Header,
    /// A host that is missing, repeated or odd.
    Host,
    /// A length that is odd or repeated, or missing where HTTP/1.0 needs one.
    ContentLength,
    /// A transfer coding that is not `chunked`, once; or a length beside it.
    TransferEncoding,
    /// A chunk's size, extension, end or trailer.
    Chunk,
}

impl Doubt {
    /// Every one.
    pub const ALL: &'static [Doubt] = &[
        Doubt::RequestLine,
        Doubt::LineEnd,
        Doubt::Header,
        Doubt::Host,
        Doubt::ContentLength,
        Doubt::TransferEncoding,
        Doubt::Chunk,
    ];
    /// The words, in the same order.
    pub const WORDS: &'static [&'static str] = &[
        "request_line",
        "line_end",
        "header",
        "host",
        "content_length",
        "transfer_encoding",
        "chunk",
    ];

    /// The word.
    pub fn word(self) -> &'static str {
        Self::WORDS[self as usize]
    }
}

/// Why a head is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadFault {
    /// Its syntax or framing is in doubt.
    Malformed(Doubt),
    /// Too many bytes or header lines.
    TooLarge,
}

/// Looks for the end of a head, remembering how far it has looked.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeadScan {
    /// Bytes already looked at.
    scanned: usize,
    /// Where the line being looked at starts.
    line_start: usize,
}

impl HeadScan {
    /// Looks on in `bytes`, which must begin with what earlier calls saw. `Some(n)`: the head is
    /// the first `n` bytes.
    pub fn advance(&mut self, bytes: &[u8], bytes_max: usize) -> Result<Option<usize>, HeadFault> {
        if self.scanned == 0 {
            match bytes.first() {
                Some(b'\r' | b'\n') => return Err(HeadFault::Malformed(Doubt::LineEnd)),
                Some(b) if !is_token(*b) => return Err(HeadFault::Malformed(Doubt::RequestLine)),
                _ => {}
            }
        }
        let from = self.scanned;
        for lf in memchr::memchr_iter(b'\n', &bytes[from..]) {
            let lf = from + lf;
            if lf == self.line_start || bytes[lf - 1] != b'\r' {
                return Err(HeadFault::Malformed(Doubt::LineEnd));
            }
            if lf == self.line_start + 1 {
                let head_len = lf + 1;
                return if head_len > bytes_max {
                    Err(HeadFault::TooLarge)
                } else {
                    Ok(Some(head_len))
                };
            }
            self.line_start = lf + 1;
        }
        self.scanned = bytes.len();
        if bytes.len() > bytes_max {
            Err(HeadFault::TooLarge)
        } else {
            Ok(None)
        }
    }
}

/// HTTP version of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// HTTP/1.0
    Http10,
    /// HTTP/1.1
    Http11,
}

/// How the body is framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFraming {
    /// Exactly this many bytes; 0 when the head announces no body.
    Length(u64),
    /// Chunks.
    Chunked,
}

/// A slice of the head, by offset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    start: u16,
    len: u16,
}

impl Span {
    pub(crate) fn of<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        let start = usize::from(self.start);
        &bytes[start..start + usize::from(self.len)]
    }

    /// The span of `part` inside `whole`; `part` must be a slice of it and `whole` at most 64 KiB.
    fn within(whole: &[u8], part: &[u8]) -> Span {
        if part.is_empty() {
            return Span::default();
        }
        let start = part.as_ptr() as usize - whole.as_ptr() as usize;
        debug_assert!(start + part.len() <= whole.len());
        Span {
            start: start as u16,
            len: part.len() as u16,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct HeaderSpan {
    name: Span,
    value: Span,
}

/// Header lines by offset; on the heap only beyond [`HEADERS_INLINE`].
#[derive(Clone, Debug, PartialEq, Eq)]
struct HeaderSpans {
    inline: [HeaderSpan; HEADERS_INLINE],
    count: usize,
    rest: Vec<HeaderSpan>,
}

impl HeaderSpans {
    fn new() -> Self {
        HeaderSpans {
            inline: [HeaderSpan::default(); HEADERS_INLINE],
            count: 0,
            rest: Vec::new(),
        }
    }

    fn push(&mut self, span: HeaderSpan) {
        match self.inline.get_mut(self.count) {
            Some(slot) => *slot = span,
            None => self.rest.push(span),
        }
        self.count += 1;
    }

    fn iter(&self) -> impl Iterator<Item = &HeaderSpan> {
        self.inline[..self.count.min(HEADERS_INLINE)]
            .iter()
            .chain(&self.rest)
    }
}

/// A parsed head, by offsets into its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsedHead {
    method: Span,
    target: Span,
    headers: HeaderSpans,
    /// HTTP version.
    pub version: Version,
    /// How the body is framed.
    pub body: BodyFraming,
    /// The client asked, on 1.1, to be told to go on.
    pub expects_continue: bool,
    /// The client would keep the connection.
    pub keep_alive: bool,
}

/// A request's head, as the handler sees it before any byte of the body.
#[derive(Clone, Copy)]
pub struct Head<'a> {
    bytes: &'a [u8],
    parsed: &'a ParsedHead,
    peer: SocketAddr,
}

impl<'a> Head<'a> {
    /// A view of `parsed` over the `bytes` it was parsed from.
    pub fn new(bytes: &'a [u8], parsed: &'a ParsedHead, peer: SocketAddr) -> Self {
        Head {
            bytes,
            parsed,
            peer,
        }
    }

    /// The method, as sent (methods are case-sensitive).
    pub fn method(&self) -> &'a [u8] {
        self.parsed.method.of(self.bytes)
    }

    /// Path and query as sent; of an absolute target, what follows the authority.
    pub fn target(&self) -> &'a [u8] {
        self.parsed.target.of(self.bytes)
    }

    /// The path alone.
    pub fn path(&self) -> &'a [u8] {
        let target = self.target();
        &target[..memchr::memchr(b'?', target).unwrap_or(target.len())]
    }

    /// Header lines in the order sent: name as sent, value without surrounding white space.
    pub fn headers(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
        let bytes = self.bytes;
        self.parsed
            .headers
            .iter()
            .map(move |h| (h.name.of(bytes), h.value.of(bytes)))
    }

    /// The first header of this name.
    pub fn header(&self, name: &str) -> Option<&'a [u8]> {
        self.headers()
            .find(|(n, _)| n.eq_ignore_ascii_case(name.as_bytes()))
            .map(|(_, value)| value)
    }

    /// The announced length; `None` when the body is chunked.
    pub fn content_length(&self) -> Option<u64> {
        match self.parsed.body {
            BodyFraming::Length(n) => Some(n),
            BodyFraming::Chunked => None,
        }
    }

    /// HTTP version.
    pub fn version(&self) -> Version {
        self.parsed.version
    }

    /// The other end of the connection.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }
}

/// Parses `head`, which must be exactly what [`HeadScan`] found, at most 64 KiB.
pub fn parse(head: &[u8], headers_max: usize) -> Result<ParsedHead, HeadFault> {
    if head.len() > usize::from(u16::MAX) {
        return Err(HeadFault::TooLarge);
    }
    let mut lines = [const { MaybeUninit::<httparse::Header<'_>>::uninit() }; HEADERS_MAX];
    let lines = &mut lines[..headers_max.min(HEADERS_MAX)];
    let mut request = httparse::Request::new(&mut []);
    match request.parse_with_uninit_headers(head, lines) {
        Ok(httparse::Status::Complete(n)) if n == head.len() => {}
        Ok(_) => return Err(HeadFault::Malformed(Doubt::LineEnd)),
        Err(error) => {
            use httparse::Error;
            return Err(HeadFault::Malformed(match error {
                Error::TooManyHeaders => return Err(HeadFault::TooLarge),
                Error::HeaderName | Error::HeaderValue => Doubt::Header,
                Error::NewLine => Doubt::LineEnd,
                Error::Status | Error::Token | Error::Version => Doubt::RequestLine,
            }));
        }
    }
    let (Some(method), Some(path), Some(minor)) = (request.method, request.path, request.version)
    else {
        return Err(HeadFault::Malformed(Doubt::RequestLine));
    };
    let version = if minor == 0 {
        Version::Http10
    } else {
        Version::Http11
    };
    let target = origin_form(path.as_bytes()).ok_or(HeadFault::Malformed(Doubt::RequestLine))?;
    let mut headers = HeaderSpans::new();
    let mut framing = Framing::default();
    for line in request.headers.iter() {
        framing.note(line.name.as_bytes(), line.value, version)?;
        headers.push(HeaderSpan {
            name: Span::within(head, line.name.as_bytes()),
            value: Span::within(head, line.value),
        });
    }
    let body = framing.decide(version)?;
    // In HTTP/1.0 a body without a length ends with the connection: taking none would be taking it
    // for empty.
    let has_body = matches!(method, "POST" | "PUT" | "PATCH");
    if version == Version::Http10 && has_body && framing.length.is_none() {
        return Err(HeadFault::Malformed(Doubt::ContentLength));
    }
    Ok(ParsedHead {
        method: Span::within(head, method.as_bytes()),
        target: Span::within(head, target),
        headers,
        version,
        body,
        expects_continue: framing.expects_continue && version == Version::Http11,
        keep_alive: match version {
            Version::Http11 => !framing.close,
            Version::Http10 => framing.keep_alive && !framing.close,
        },
    })
}

/// Path and query of a target: itself in origin form, what follows the authority in absolute form.
fn origin_form(target: &[u8]) -> Option<&[u8]> {
    if target.first() == Some(&b'/') || target == b"*" {
        return Some(target);
    }
    let scheme_len = [&b"http://"[..], b"https://"]
        .into_iter()
        .find(|s| target.len() > s.len() && target[..s.len()].eq_ignore_ascii_case(s))?
        .len();
    let authority = &target[scheme_len..];
    match authority.iter().position(|b| matches!(b, b'/' | b'?')) {
        Some(0) => None,
        Some(at) if authority[at] == b'/' => Some(&authority[at..]),
        Some(_) => None,
        // An empty path is "/": the last slash of the scheme stands in for it.
        None => Some(&target[scheme_len - 1..scheme_len]),
    }
}

/// What the header lines say of framing, gathered line by line.
#[derive(Default)]
struct Framing {
    length: Option<u64>,
    chunked: bool,
    hosts: u32,
    close: bool,
    keep_alive: bool,
    expects_continue: bool,
}

impl Framing {
    fn note(&mut self, name: &[u8], value: &[u8], version: Version) -> Result<(), HeadFault> {
        let is = |wanted: &str| name.eq_ignore_ascii_case(wanted.as_bytes());
        match name.len() {
            4 if is("host") => {
                self.hosts += 1;
                if !value.iter().all(|b| is_host_byte(*b)) {
                    return Err(HeadFault::Malformed(Doubt::Host));
                }
            }
            6 if is("expect") => {
                self.expects_continue |= value.eq_ignore_ascii_case(b"100-continue")
            }
            10 if is("connection") => {
                for token in value.split(|b| *b == b',') {
                    let token = token.trim_ascii();
                    self.close |= token.eq_ignore_ascii_case(b"close");
                    self.keep_alive |= token.eq_ignore_ascii_case(b"keep-alive");
                }
            }
            14 if is("content-length") => {
                let length = decimal(value).ok_or(HeadFault::Malformed(Doubt::ContentLength))?;
                if self.length.replace(length).is_some() {
                    return Err(HeadFault::Malformed(Doubt::ContentLength));
                }
            }
            17 if is("transfer-encoding") => {
                let once = !std::mem::replace(&mut self.chunked, true);
                if !once || version == Version::Http10 || !value.eq_ignore_ascii_case(b"chunked") {
                    return Err(HeadFault::Malformed(Doubt::TransferEncoding));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn decide(&self, version: Version) -> Result<BodyFraming, HeadFault> {
        let host_ok = self.hosts == 1 || (self.hosts == 0 && version == Version::Http10);
        match (host_ok, self.length, self.chunked) {
            (false, ..) => Err(HeadFault::Malformed(Doubt::Host)),
            (true, Some(_), true) => Err(HeadFault::Malformed(Doubt::TransferEncoding)),
            (true, None, true) => Ok(BodyFraming::Chunked),
            (true, length, false) => Ok(BodyFraming::Length(length.unwrap_or(0))),
        }
    }
}

/// A length: 1 to 19 decimal digits and nothing else (19 digits cannot overflow 64 bits).
fn decimal(value: &[u8]) -> Option<u64> {
    if value.is_empty() || value.len() > 19 {
        return None;
    }
    value.iter().try_fold(0u64, |sum, b| match b {
        b'0'..=b'9' => Some(sum * 10 + u64::from(b - b'0')),
        _ => None,
    })
}

fn is_host_byte(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b"-._~%:[]!$&'()*+;=".contains(&b)
}

pub(crate) fn is_token(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b)
}

#[cfg(test)]
mod tests;
