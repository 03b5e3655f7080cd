//! Which of a request's headers are kept with the hook.
//!
//! Kept: all but what authenticates the sender to us, cookies, what frames the message, and our
//! own `x-ankusa-*`. What a sink gets of these is decided at delivery, by the source's
//! `forward_headers`. The content type is kept in a place of its own.

/// Whether a header of this name is kept.
pub fn is_kept(name: &[u8]) -> bool {
    let is = |other: &str| name.eq_ignore_ascii_case(other.as_bytes());
    if is_ours(name) {
        return false;
    }
    match name.len() {
        2 => !is("te"),
        4 => !is("host"),
        6 => !(is("cookie") || is("expect")),
        7 => !(is("trailer") || is("upgrade")),
        9 => !is("x-api-key"),
        10 => !(is("connection") || is("keep-alive") || is("set-cookie")),
        12 => !is("content-type"),
        13 => !is("authorization"),
        14 => !is("content-length"),
        16 => !is("proxy-connection"),
        17 => !is("transfer-encoding"),
        18 => !is("proxy-authenticate"),
        19 => !is("proxy-authorization"),
        _ => true,
    }
}

fn is_ours(name: &[u8]) -> bool {
    name.len() >= 9 && name[..9].eq_ignore_ascii_case(b"x-ankusa-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_cookies_framing_and_our_own_are_not_kept() {
        for name in [
            "Authorization",
            "Proxy-Authorization",
            "Cookie",
            "Set-Cookie",
            "X-Api-Key",
            "Host",
            "Connection",
            "Keep-Alive",
            "Transfer-Encoding",
            "Content-Length",
            "Content-Type",
            "TE",
            "Trailer",
            "Upgrade",
            "Expect",
            "Proxy-Connection",
            "Proxy-Authenticate",
            "X-Ankusa-Id",
            "x-ankusa-",
            "X-Ankusa-Idempotency-Key",
            "x-ankusa-a",
            "x-ankusa-ab",
            "x-ankusa-abc",
        ] {
            assert!(!is_kept(name.as_bytes()), "{name}");
        }
        for name in [
            "Stripe-Signature",
            "X-GitHub-Event",
            "User-Agent",
            "Accept",
            "X-Event-Id",
            "",
        ] {
            assert!(is_kept(name.as_bytes()), "{name}");
        }
    }
}
