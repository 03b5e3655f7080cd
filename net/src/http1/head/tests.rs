use super::*;

const MAX: usize = 8 * 1024;

/// What a whole head says, or why it is refused. `Ok(None)`: it has not ended.
fn read(bytes: &[u8]) -> Result<Option<(usize, ParsedHead)>, HeadFault> {
    match HeadScan::default().advance(bytes, MAX)? {
        None => Ok(None),
        Some(len) => Ok(Some((len, parse(&bytes[..len], 100)?))),
    }
}

/// The same, with `bytes` arriving one by one.
fn read_bytewise(bytes: &[u8]) -> Result<Option<(usize, ParsedHead)>, HeadFault> {
    let mut scan = HeadScan::default();
    for end in 1..=bytes.len() {
        if let Some(len) = scan.advance(&bytes[..end], MAX)? {
            return Ok(Some((len, parse(&bytes[..len], 100)?)));
        }
    }
    Ok(None)
}

fn framing(head: &str) -> Result<BodyFraming, HeadFault> {
    let whole = read(head.as_bytes());
    assert_eq!(
        whole,
        read_bytewise(head.as_bytes()),
        "split differs: {head:?}"
    );
    match whole {
        Ok(Some((len, parsed))) => {
            assert_eq!(len, head.len(), "{head:?}");
            Ok(parsed.body)
        }
        Ok(None) => panic!("not ended: {head:?}"),
        // Which doubt it is has a test of its own.
        Err(HeadFault::Malformed(_)) => BAD,
        Err(fault) => Err(fault),
    }
}

const BAD: Result<BodyFraming, HeadFault> = Err(HeadFault::Malformed(Doubt::Header));

#[test]
fn what_is_in_doubt_has_a_word() {
    let line = "POST /x HTTP/1.1\r\n";
    let rows = [
        ("\x16\x03\x01".to_string(), Doubt::RequestLine),
        (
            "POST /x HTTP/1.2\r\nHost: a\r\n\r\n".into(),
            Doubt::RequestLine,
        ),
        (
            "POST x HTTP/1.1\r\nHost: a\r\n\r\n".into(),
            Doubt::RequestLine,
        ),
        ("hello\r\n\r\n".into(), Doubt::RequestLine),
        ("POST /x HTTP/1.1\nHost: a\r\n\r\n".into(), Doubt::LineEnd),
        ("\r\n".into(), Doubt::LineEnd),
        (format!("{line}Host: a\r\nX : y\r\n\r\n"), Doubt::Header),
        (format!("{line}Host: a\r\nX: \0\r\n\r\n"), Doubt::Header),
        (
            format!("{line}Host: a\r\nX: y\r\n z\r\n\r\n"),
            Doubt::Header,
        ),
        (format!("{line}\r\n"), Doubt::Host),
        (format!("{line}Host: a\r\nHost: a\r\n\r\n"), Doubt::Host),
        (format!("{line}Host: a b\r\n\r\n"), Doubt::Host),
        (
            format!("{line}Host: a\r\nContent-Length: +1\r\n\r\n"),
            Doubt::ContentLength,
        ),
        ("POST /x HTTP/1.0\r\n\r\n".into(), Doubt::ContentLength),
        (
            format!("{line}Host: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n"),
            Doubt::ContentLength,
        ),
        (
            format!("{line}Host: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"),
            Doubt::TransferEncoding,
        ),
        (
            format!("{line}Host: a\r\nTransfer-Encoding: gzip\r\n\r\n"),
            Doubt::TransferEncoding,
        ),
    ];
    for (head, doubt) in rows {
        let expected = Err(HeadFault::Malformed(doubt));
        assert_eq!(read(head.as_bytes()), expected, "{head:?}");
        assert_eq!(read_bytewise(head.as_bytes()), expected, "{head:?}");
    }
    for (i, doubt) in Doubt::ALL.iter().enumerate() {
        assert_eq!((*doubt as usize, doubt.word()), (i, Doubt::WORDS[i]));
    }
}

#[test]
fn framing_in_doubt_is_refused() {
    let rows: &[(&str, Result<BodyFraming, HeadFault>)] = &[
        ("Content-Length: 5", Ok(BodyFraming::Length(5))),
        ("content-length:5", Ok(BodyFraming::Length(5))),
        ("Content-Length:  5  ", Ok(BodyFraming::Length(5))),
        ("Content-Length: 0005", Ok(BodyFraming::Length(5))),
        (
            "Content-Length: 9999999999999999999",
            Ok(BodyFraming::Length(9_999_999_999_999_999_999)),
        ),
        ("X: y", Ok(BodyFraming::Length(0))),
        ("Transfer-Encoding: chunked", Ok(BodyFraming::Chunked)),
        ("transfer-encoding: CHUNKED", Ok(BodyFraming::Chunked)),
        // A length beside a coding, in each order.
        ("Content-Length: 5\r\nTransfer-Encoding: chunked", BAD),
        ("Transfer-Encoding: chunked\r\nContent-Length: 5", BAD),
        (
            "Transfer-Encoding: chunked\r\nX: y\r\nContent-Length: 0",
            BAD,
        ),
        // Repeated lengths: different, equal, listed.
        ("Content-Length: 46\r\nContent-Length: 0", BAD),
        ("Content-Length: 5\r\nContent-Length: 5", BAD),
        ("Content-Length: 5, 5", BAD),
        ("Content-Length: 5,5", BAD),
        // Odd lengths.
        ("Content-Length: +5", BAD),
        ("Content-Length: -5", BAD),
        ("Content-Length: 0x5", BAD),
        ("Content-Length: 5.0", BAD),
        ("Content-Length: 5 0", BAD),
        ("Content-Length: 5_0", BAD),
        ("Content-Length:", BAD),
        ("Content-Length: ", BAD),
        ("Content-Length: abc", BAD),
        ("Content-Length: \u{0665}", BAD),
        ("Content-Length: 18446744073709551616", BAD),
        ("Content-Length: 00000000000000000005", BAD),
        // Codings that are not exactly one `chunked`.
        ("Transfer-Encoding: gzip", BAD),
        ("Transfer-Encoding: gzip, chunked", BAD),
        ("Transfer-Encoding: chunked, identity", BAD),
        ("Transfer-Encoding: chunked, chunked", BAD),
        (
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
            BAD,
        ),
        (
            "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked",
            BAD,
        ),
        ("Transfer-Encoding: xchunked", BAD),
        ("Transfer-Encoding: chunked;q=1", BAD),
        ("Transfer-Encoding: \"chunked\"", BAD),
        ("Transfer-Encoding: ,chunked", BAD),
        ("Transfer-Encoding:", BAD),
        ("Transfer-Encoding: \u{b}chunked", BAD),
        // Folding, space before the colon, a nameless line, a line without a colon.
        ("X: y\r\n z", BAD),
        ("X: y\r\n\tz", BAD),
        ("Transfer-Encoding:\r\n chunked", BAD),
        ("Content-Length : 5", BAD),
        ("Content-Length\t: 5", BAD),
        (" Content-Length: 5", BAD),
        (": 5", BAD),
        ("Content-Length", BAD),
        // Control bytes.
        ("X: a\0b", BAD),
        ("X\0: a", BAD),
        ("X: a\rb", BAD),
        ("X: a\u{1}", BAD),
        ("X: a\u{7f}", BAD),
        ("X\u{c}: a", BAD),
        ("X: tab\tis fine", Ok(BodyFraming::Length(0))),
        ("X: caf\u{e9}", Ok(BodyFraming::Length(0))),
        ("X\u{e9}: a", BAD),
        // Bare LF as a line end.
        ("X: y\nContent-Length: 5", BAD),
        ("Content-Length: 5\nTransfer-Encoding: chunked", BAD),
    ];
    for (lines, expected) in rows {
        let head = format!("POST /x HTTP/1.1\r\nHost: a\r\n{lines}\r\n\r\n");
        assert_eq!(framing(&head), *expected, "{lines:?}");
    }
}

#[test]
fn a_host_is_there_exactly_once() {
    let rows: &[(&str, Result<BodyFraming, HeadFault>)] = &[
        ("POST /x HTTP/1.1\r\n\r\n", BAD),
        ("POST /x HTTP/1.1\r\nX: y\r\n\r\n", BAD),
        ("POST /x HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", BAD),
        ("POST /x HTTP/1.1\r\nHost: a\r\nhost: b\r\n\r\n", BAD),
        ("POST /x HTTP/1.1\r\nHost: a b\r\n\r\n", BAD),
        ("POST /x HTTP/1.1\r\nHost: a, b\r\n\r\n", BAD),
        ("POST /x HTTP/1.1\r\nHost: a/b\r\n\r\n", BAD),
        ("POST /x HTTP/1.1\r\nHost: u@a\r\n\r\n", BAD),
        (
            "POST /x HTTP/1.1\r\nHost: a:4000\r\n\r\n",
            Ok(BodyFraming::Length(0)),
        ),
        (
            "POST /x HTTP/1.1\r\nHost: [::1]:4000\r\n\r\n",
            Ok(BodyFraming::Length(0)),
        ),
        (
            "POST /x HTTP/1.1\r\nHost:\r\n\r\n",
            Ok(BodyFraming::Length(0)),
        ),
        ("GET /x HTTP/1.0\r\n\r\n", Ok(BodyFraming::Length(0))),
        // Its body, if it has one, would end with the connection.
        ("POST /x HTTP/1.0\r\n\r\n", BAD),
        ("POST /x HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n", BAD),
        (
            "POST /x HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
            BAD,
        ),
        (
            "POST /x HTTP/1.0\r\nContent-Length: 3\r\n\r\n",
            Ok(BodyFraming::Length(3)),
        ),
    ];
    for (head, expected) in rows {
        assert_eq!(framing(head), *expected, "{head:?}");
    }
}

#[test]
fn request_lines_are_strict() {
    let good = [
        "POST /x HTTP/1.1",
        "M-SEARCH * HTTP/1.1",
        "post /x?a=b%20c HTTP/1.1",
        "GET http://h/x HTTP/1.1",
    ];
    for line in good {
        assert_eq!(
            framing(&format!("{line}\r\nHost: a\r\n\r\n")),
            Ok(BodyFraming::Length(0)),
            "{line:?}"
        );
    }
    let bad = [
        "POST  /x HTTP/1.1",
        "POST /x  HTTP/1.1",
        "POST /x HTTP/1.1 ",
        " POST /x HTTP/1.1",
        "POST\t/x HTTP/1.1",
        "POST /x",
        "POST /x HTTP/2.0",
        "POST /x HTTP/1.2",
        "POST /x HTTP/1.10",
        "POST /x http/1.1",
        "POST /x HTTP/01.1",
        "POST x HTTP/1.1",
        "POST  HTTP/1.1",
        "CONNECT a:443 HTTP/1.1",
        "POST http:// HTTP/1.1 x",
        "POST http:///x HTTP/1.1",
        "POST http://h?x HTTP/1.1",
        "POST ftp://h/x HTTP/1.1",
        "POST /a b HTTP/1.1",
        "POST /a\0 HTTP/1.1",
        "POST /a\u{7f} HTTP/1.1",
        "P(ST /x HTTP/1.1",
        "\u{16}\u{3}\u{1} /x HTTP/1.1",
        "",
    ];
    for line in bad {
        assert_eq!(
            framing(&format!("{line}\r\nHost: a\r\n\r\n")),
            BAD,
            "{line:?}"
        );
    }
}

#[test]
fn a_bare_lf_is_refused_as_soon_as_it_comes() {
    for head in [
        "POST /x HTTP/1.1\n",
        "POST /x HTTP/1.1\r\nHost: a\n",
        "POST /x HTTP/1.1\r\nHost: a\r\n\n",
        "\n",
        "\r\n",
    ] {
        let fault = read(head.as_bytes());
        assert!(matches!(fault, Err(HeadFault::Malformed(_))), "{head:?}");
        assert_eq!(read_bytewise(head.as_bytes()), fault, "{head:?}");
    }
    // What cannot be the start of a request is refused at its first byte.
    assert_eq!(
        read(b"\x16\x03\x01"),
        Err(HeadFault::Malformed(Doubt::RequestLine))
    );
}

#[test]
fn heads_at_the_limits_pass_and_one_over_is_too_large() {
    let with_len = |len: usize| {
        let fixed = "POST /x HTTP/1.1\r\nHost: a\r\nX: \r\n\r\n".len();
        format!(
            "POST /x HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n",
            "y".repeat(len - fixed)
        )
    };
    assert_eq!(framing(&with_len(MAX)), Ok(BodyFraming::Length(0)));
    assert_eq!(framing(&with_len(MAX + 1)), Err(HeadFault::TooLarge));
    // No end in sight.
    assert_eq!(read(&vec![b'a'; MAX]), Ok(None));
    assert_eq!(read(&vec![b'a'; MAX + 1]), Err(HeadFault::TooLarge));

    let with_count = |count: usize| {
        format!(
            "POST /x HTTP/1.1\r\nHost: a\r\n{}\r\n",
            "X: y\r\n".repeat(count - 1)
        )
    };
    assert_eq!(framing(&with_count(100)), Ok(BodyFraming::Length(0)));
    assert_eq!(framing(&with_count(101)), Err(HeadFault::TooLarge));
}

#[test]
fn parts_of_a_head_are_those_sent() {
    let text = b"POST http://h:1/a/b?c=d?e HTTP/1.1\r\nHost: a\r\nX-Sig:  v1 ,x\t\r\nx-sig: second\r\nEmpty:\r\n\r\nbody";
    let (len, parsed) = read(text).unwrap().unwrap();
    let head = Head::new(&text[..len], &parsed, "127.0.0.1:9".parse().unwrap());
    assert_eq!(len, text.len() - 4);
    assert_eq!(head.method(), b"POST");
    assert_eq!(head.target(), b"/a/b?c=d?e");
    assert_eq!(head.path(), b"/a/b");
    assert_eq!(head.header("x-SIG"), Some(&b"v1 ,x"[..]));
    assert_eq!(head.header("empty"), Some(&b""[..]));
    assert_eq!(head.header("missing"), None);
    let all: Vec<_> = head.headers().collect();
    assert_eq!(all[2], (&b"x-sig"[..], &b"second"[..]));
    assert_eq!(all.len(), 4);

    let (len, parsed) = read(b"GET http://h HTTP/1.1\r\nHost: h\r\n\r\n")
        .unwrap()
        .unwrap();
    let bytes = &b"GET http://h HTTP/1.1\r\nHost: h\r\n\r\n"[..len];
    assert_eq!(
        Head::new(bytes, &parsed, "127.0.0.1:9".parse().unwrap()).target(),
        b"/"
    );
}

#[test]
fn headers_beyond_the_inline_ones_are_kept() {
    let lines: String = (0..60).map(|n| format!("H{n}: v{n}\r\n")).collect();
    let text = format!("POST /x HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
    let (len, parsed) = read(text.as_bytes()).unwrap().unwrap();
    let head = Head::new(
        &text.as_bytes()[..len],
        &parsed,
        "127.0.0.1:9".parse().unwrap(),
    );
    for n in 0..60 {
        assert_eq!(
            head.header(&format!("h{n}")),
            Some(format!("v{n}").as_bytes())
        );
    }
    assert_eq!(head.headers().count(), 61);
}

#[test]
fn persistence_follows_version_and_connection() {
    let check = |lines: &str, expected: (bool, bool)| {
        let text = format!("POST /x HTTP/{lines}\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
        let (_, parsed) = read(text.as_bytes()).unwrap().unwrap();
        assert_eq!(
            (parsed.keep_alive, parsed.expects_continue),
            expected,
            "{lines:?}"
        );
    };
    check("1.1", (true, false));
    check("1.1\r\nConnection: close", (false, false));
    check("1.1\r\nConnection: Upgrade, Close", (false, false));
    check(
        "1.1\r\nConnection: keep-alive\r\nConnection: close",
        (false, false),
    );
    check("1.1\r\nConnection: closed", (true, false));
    check("1.0", (false, false));
    check("1.0\r\nConnection: Keep-Alive", (true, false));
    check("1.0\r\nConnection: keep-alive, close", (false, false));
    check("1.1\r\nExpect: 100-Continue", (true, true));
    check("1.0\r\nExpect: 100-continue", (false, false));
    check("1.1\r\nExpect: something", (true, false));
}

/// Small deterministic random numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

#[test]
fn damaged_heads_never_panic_and_splitting_them_changes_nothing() {
    let seeds: [&[u8]; 3] = [
        b"POST /webhooks/a?b=c HTTP/1.1\r\nHost: a.example:4000\r\nContent-Length: 15\r\nX-Sig: t=1,v1=2\r\n\r\n",
        b"POST http://a/b HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n",
        b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    ];
    const ODD: &[u8] = b"\r\n\0 \t:;,+-0159aZ/?\x7f\x80\xff\x01\"";
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut accepted = 0;
    for _ in 0..30_000 {
        let mut bytes = seeds[random.below(3)].to_vec();
        for _ in 0..=random.below(3) {
            let at = random.below(bytes.len());
            let odd = ODD[random.below(ODD.len())];
            match random.below(3) {
                0 => bytes[at] = odd,
                1 => bytes.insert(at, odd),
                _ => drop(bytes.remove(at)),
            }
        }
        let whole = read(&bytes);
        assert_eq!(whole, read_bytewise(&bytes), "{}", bytes.escape_ascii());
        if let Ok(Some((len, _))) = whole {
            accepted += 1;
            let head = &bytes[..len];
            let text = String::from_utf8_lossy(head).to_ascii_lowercase();
            let lines: Vec<&str> = text.split("\r\n").collect();
            let count = |name: &str| lines.iter().filter(|l| l.starts_with(name)).count();
            assert!(head.ends_with(b"\r\n\r\n"));
            assert!(
                lines
                    .iter()
                    .all(|l| !l.contains(['\r', '\n', '\0', '\u{1}', '\u{7f}'])),
                "{text:?}"
            );
            assert!(
                count("content-length:") + count("transfer-encoding:") <= 1,
                "{text:?}"
            );
            assert!(count("host:") <= 1, "{text:?}");
        }
    }
    assert!(
        accepted > 5_000,
        "{accepted}: the damage is too heavy to test anything"
    );
}
