use super::*;

const MAX: u64 = 1000;

#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    body: Vec<u8>,
    /// Bytes that were taken; `None`: the body did not end.
    taken: Option<usize>,
}

fn decode(pieces: &[&[u8]]) -> Result<Outcome, ChunkFault> {
    let mut decoder = ChunkDecoder::new(MAX);
    let mut body = Vec::new();
    let mut taken = 0;
    for piece in pieces {
        let n = decoder.feed(piece, |run| body.extend_from_slice(run))?;
        taken += n;
        if decoder.is_done() {
            return Ok(Outcome {
                body,
                taken: Some(taken),
            });
        }
        assert_eq!(n, piece.len(), "bytes left though the body goes on");
    }
    Ok(Outcome { body, taken: None })
}

/// Decodes whole, byte by byte, and cut in two at every boundary: all must agree.
fn check(input: &[u8]) -> Result<Outcome, ChunkFault> {
    let whole = decode(&[input]);
    let bytes: Vec<&[u8]> = input.chunks(1).collect();
    assert_eq!(decode(&bytes), whole, "bytewise: {input:?}");
    for at in 0..input.len() {
        assert_eq!(
            decode(&[&input[..at], &input[at..]]),
            whole,
            "cut at {at}: {input:?}"
        );
    }
    whole
}

#[test]
fn bodies_are_joined_and_end_where_they_end() {
    let good: &[(&[u8], &[u8], usize)] = &[
        (b"0\r\n\r\nPOST", b"", 5),
        (b"5\r\nhello\r\n0\r\n\r\n", b"hello", 15),
        (
            b"5\r\nhello\r\n6\r\n world\r\n000\r\n\r\nnext",
            b"hello world",
            28,
        ),
        (b"A\r\n0123456789\r\n0\r\n\r\n", b"0123456789", 20),
        (b"a;x=y\r\n0123456789\r\n0;last\r\n\r\n", b"0123456789", 29),
        (b"2;sig=\"a;\\\"b\"; q\r\n\r\n\r\n0\r\n\r\n", b"\r\n", 27),
        (b"0000000000000001\r\nx\r\n0\r\n\r\n", b"x", 26),
        (b"1\r\nx\r\n0\r\nTrailer: a b\r\nX:\r\n\r\nrest", b"x", 29),
    ];
    for (input, body, taken) in good {
        assert_eq!(
            check(input),
            Ok(Outcome {
                body: body.to_vec(),
                taken: Some(*taken)
            }),
            "{input:?}"
        );
    }
    assert_eq!(
        check(b"5\r\nhel"),
        Ok(Outcome {
            body: b"hel".to_vec(),
            taken: None
        })
    );
}

#[test]
fn framing_in_doubt_is_refused() {
    let bad: &[&[u8]] = &[
        // Sizes that are not 1 to 16 hexadecimal digits.
        b"123x\r\n",
        b"5 0\r\n",
        b"3 ;ext\r\n",
        b"3 \r\nabc\r\n",
        b" 3\r\nabc\r\n",
        b"\r\n",
        b";x\r\n",
        b"0x5\r\nhello\r\n",
        b"0_0\r\n\r\n",
        b"-0x1\r\n",
        b"-1\r\n",
        b"+5\r\nhello\r\n",
        b"\r5\r\nhello\r\n",
        b"5\r5\r\n",
        b"00000000000000005\r\nhello\r\n",
        b"FFFFFFFFFFFFFFFFF\r\n",
        b"10000000000000000\r\n",
        "\u{ff15}\r\nhello\r\n".as_bytes(),
        b"5\0\r\nhello\r\n",
        // Line ends that are not CR LF.
        b"5\nhello\r\n0\r\n\r\n",
        b"5\r\nhello\n0\r\n\r\n",
        b"5\r\nhello0\r\n\r\n",
        b"5\r\nhello\r0\r\n\r\n",
        b"5\r\nhello\rX",
        b"5\r\nhello!\r\n0\r\n\r\n",
        b"0\n\r\n",
        b"0\r\n\n",
        b"0\r\n\rX",
        b"0\r\r\n",
        // Extensions.
        b"5;x\nhello\r\n0\r\n\r\n",
        b"5;x\0\r\nhello\r\n",
        b"5;x\x01\r\nhello\r\n",
        b"5;x\x7f\r\nhello\r\n",
        b"5;x\ry\r\nhello\r\n",
        b"5;x=\"a\nb\"\r\nhello\r\n",
        b"5;x=\"a\r\nhello\r\n",
        b"5;x=\"a\r\nb\"\r\nhello\r\n",
        b"5;x=\"a\\\n\"\r\nhello\r\n",
        b"5;x=\"a\0\"\r\nhello\r\n",
        b"5;x=\xc3\xa9\r\nhello\r\n",
        // Trailers.
        b"0\r\nX : y\r\n\r\n",
        b"0\r\n X: y\r\n\r\n",
        b"0\r\nX: y\n\r\n",
        b"0\r\nX: y\r\n z\r\n\r\n",
        b"0\r\nX: y\rz\r\n\r\n",
        b"0\r\nX: \0\r\n\r\n",
        b"0\r\nX\r\n\r\n",
        b"0\r\n: y\r\n\r\n",
        b"0\r\nGET / HTTP/1.1\r\n\r\n",
    ];
    for input in bad {
        assert_eq!(
            check(input),
            Err(ChunkFault::Malformed),
            "{:?}",
            input.escape_ascii().to_string()
        );
    }
}

#[test]
fn sizes_neither_wrap_nor_pass_the_limit() {
    assert_eq!(check(b"FFFFFFFFFFFFFFFF\r\n"), Err(ChunkFault::TooLarge));
    assert_eq!(check(b"8000000000000000\r\n"), Err(ChunkFault::TooLarge));
    // Two chunks whose sum wraps.
    assert_eq!(
        check(b"1\r\nx\r\nFFFFFFFFFFFFFFFF\r\n"),
        Err(ChunkFault::TooLarge)
    );

    let body = vec![b'x'; 600];
    let two = |second: usize| {
        let mut input = b"258\r\n".to_vec();
        input.extend_from_slice(&body);
        input.extend_from_slice(format!("\r\n{second:x}\r\n").as_bytes());
        input.extend_from_slice(&body[..second]);
        input.extend_from_slice(b"\r\n0\r\n\r\n");
        input
    };
    assert_eq!(
        decode(&[&two(400)]).map(|o| (o.body.len(), o.taken.is_some())),
        Ok((1000, true))
    );
    assert_eq!(decode(&[&two(401)]), Err(ChunkFault::TooLarge));
}

#[test]
fn extensions_and_trailers_are_bounded() {
    let long = |n: u32| format!("0;{}\r\n\r\n", "x".repeat(n as usize - 1));
    assert!(decode(&[long(EXTENSION_BYTES_MAX).as_bytes()]).is_ok());
    assert_eq!(
        decode(&[long(EXTENSION_BYTES_MAX + 1).as_bytes()]),
        Err(ChunkFault::Malformed)
    );
    let many = "1;abcdefg\r\nx\r\n".repeat(3000);
    assert_eq!(decode(&[many.as_bytes()]), Err(ChunkFault::TooLarge));
    let trailer = |n: u32| format!("0\r\nT:{}\r\n\r\n", "x".repeat(n as usize - 2));
    assert!(decode(&[trailer(TRAILER_BYTES_MAX).as_bytes()]).is_ok());
    assert_eq!(
        decode(&[trailer(TRAILER_BYTES_MAX + 1).as_bytes()]),
        Err(ChunkFault::Malformed)
    );
}

#[test]
fn damaged_bodies_never_panic_and_splitting_them_changes_nothing() {
    const SEED: &[u8] =
        b"5\r\nhello\r\n1A;x=\"y;\\\"\"\r\nabcdefghijklmnopqrstuvwxyz\r\n000\r\nT: v\r\n\r\nnext";
    const ODD: &[u8] = b"\r\n\0 \t:;,+-0159aFx=\"\\\x7f\x80\xff";
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut below = |n: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % n as u64) as usize
    };
    let mut ended = 0;
    for _ in 0..5_000 {
        let mut bytes = SEED.to_vec();
        for _ in 0..=below(2) {
            let at = below(bytes.len());
            let odd = ODD[below(ODD.len())];
            match below(3) {
                0 => bytes[at] = odd,
                1 => bytes.insert(at, odd),
                _ => drop(bytes.remove(at)),
            }
        }
        if let Ok(Outcome {
            body,
            taken: Some(taken),
        }) = check(&bytes)
        {
            ended += 1;
            assert!(taken <= bytes.len() && body.len() < taken && body.len() as u64 <= MAX);
            assert!(
                bytes[..taken].ends_with(b"\r\n\r\n"),
                "{}",
                bytes.escape_ascii()
            );
        }
    }
    assert!(
        ended > 500,
        "{ended}: the damage is too heavy to test anything"
    );
}
