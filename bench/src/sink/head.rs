//! The head of a delivery: length, id and digest. Pure.

/// What the sink needs of a head.
#[derive(Debug)]
pub(super) struct Head {
    /// Bytes of the head.
    pub(super) bytes: usize,
    /// Bytes of the body that follows.
    pub(super) body_bytes: usize,
    /// `x-ankusa-id`.
    pub(super) id: Option<u128>,
    /// `x-ankusa-body-sha256`.
    pub(super) sha256: Option<[u8; 32]>,
}

/// The head at the front of `bytes`; `None` while it is not whole, an error when it is not HTTP
/// with a length.
pub(super) fn read_head(bytes: &[u8]) -> Result<Option<Head>, ()> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut request = httparse::Request::new(&mut headers);
    let head_bytes = match request.parse(bytes) {
        Ok(httparse::Status::Complete(n)) => n,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(_) => return Err(()),
    };
    let value = |name: &str| {
        request
            .headers
            .iter()
            .find(|h| h.name.eq_ignore_ascii_case(name))
            .and_then(|h| std::str::from_utf8(h.value).ok())
    };
    let body_bytes = value("content-length")
        .and_then(|v| v.trim().parse().ok())
        .ok_or(())?;
    Ok(Some(Head {
        bytes: head_bytes,
        body_bytes,
        id: value("x-ankusa-id").and_then(|v| u128::from_str_radix(&v.replace('-', ""), 16).ok()),
        sha256: value("x-ankusa-body-sha256").and_then(digest),
    }))
}

fn digest(hex: &str) -> Option<[u8; 32]> {
    let mut out = [0u8; 32];
    if hex.len() != 64 || !hex.is_ascii() {
        return None;
    }
    for (i, slot) in out.iter_mut().enumerate() {
        *slot = u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(out)
}
