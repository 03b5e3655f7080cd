//! Which of a request's headers are kept with the hook.
//!
//! Kept: all but what authenticates the sender to us, cookies, what frames the message, what was
//! meant for this connection alone, and our own `x-ankusa-*`. What a sink gets of these is decided at delivery, by the source's
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
        14 => !(is("content-length") || is("http2-settings")),
        16 => !is("proxy-connection"),
        17 => !is("transfer-encoding"),
        18 => !is("proxy-authenticate"),
        19 => !is("proxy-authorization"),
        _ => true,
    }
}

/// The headers that a request's `Connection` says are for this connection alone.
#[derive(Clone, Copy, Default)]
pub struct HopByHop<'a> {
    /// The values of `Connection`; a request that sends more of them than fit is not one to help.
    values: [&'a [u8]; 4],
}

impl<'a> HopByHop<'a> {
    /// Those of a request with these headers.
    pub fn of(headers: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> HopByHop<'a> {
        let mut found = HopByHop::default();
        let named = headers
            .filter(|(name, _)| name.eq_ignore_ascii_case(b"connection"))
            .map(|(_, value)| value);
        // The words that name no header, and that nearly all requests send, cost nothing later.
        let named = named.filter(|value| {
            !value.eq_ignore_ascii_case(b"keep-alive") && !value.eq_ignore_ascii_case(b"close")
        });
        for (place, value) in found.values.iter_mut().zip(named) {
            *place = value;
        }
        found
    }

    /// Whether this header is one of them.
    pub fn names(&self, name: &[u8]) -> bool {
        self.values
            .iter()
            .filter(|value| !value.is_empty())
            .flat_map(|value| value.split(|b| *b == b','))
            .any(|word| word.trim_ascii().eq_ignore_ascii_case(name))
    }
}

fn is_ours(name: &[u8]) -> bool {
    name.len() >= 9 && name[..9].eq_ignore_ascii_case(b"x-ankusa-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_connection_names_is_hop_by_hop() {
        let headers: [(&[u8], &[u8]); 4] = [
            (b"Connection", b"keep-alive"),
            (b"connection", b"X-Hop ,\tclose"),
            (b"X-Hop", b"1"),
            (b"CONNECTION", b"x-other"),
        ];
        let hop = HopByHop::of(headers.into_iter());
        for name in ["x-hop", "X-HOP", "X-Other", "close"] {
            assert!(hop.names(name.as_bytes()), "{name}");
        }
        for name in ["x-hop-2", "x", "", "keep-alive"] {
            assert!(!hop.names(name.as_bytes()), "{name}");
        }
    }

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
            "HTTP2-Settings",
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
