use super::*;

fn encoded(response: &Response, connection: ConnectionHeader, without_body: bool) -> String {
    let mut out = Vec::new();
    let date = *b"Sun, 06 Nov 1994 08:49:37 GMT";
    response.encode(
        &mut out,
        &Encoding {
            date,
            connection,
            without_body,
        },
    );
    String::from_utf8(out).unwrap()
}

#[test]
fn answers_are_these_bytes() {
    let accepted = Response::json(201, format_args!(r#"{{"status":"accepted","id":"{}"}}"#, 7));
    assert!(matches!(accepted.body, Body::Inline(_)));
    assert_eq!(
        encoded(&accepted, ConnectionHeader::None, false),
        "HTTP/1.1 201 Created\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nContent-Length: 30\r\n\
         Content-Type: application/json\r\n\r\n{\"status\":\"accepted\",\"id\":\"7\"}"
    );
    let full = Response::fixed(503, r#"{"error":"overload"}"#).retry_after(1);
    assert_eq!(
        encoded(&full, ConnectionHeader::Close, false),
        "HTTP/1.1 503 Service Unavailable\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nContent-Length: 20\r\n\
         Content-Type: application/json\r\nRetry-After: 1\r\nConnection: close\r\n\r\n{\"error\":\"overload\"}"
    );
    let text = Response::new(200, Body::Bytes(Bytes::from_static(b"x"))).content_type("text/plain");
    assert_eq!(
        encoded(&text, ConnectionHeader::KeepAlive, true),
        "HTTP/1.1 200 OK\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nContent-Length: 1\r\n\
         Content-Type: text/plain\r\nConnection: keep-alive\r\n\r\n"
    );
}

#[test]
fn a_body_too_long_to_be_inline_is_kept_whole() {
    let long = "x".repeat(INLINE_BODY_MAX + 1);
    let response = Response::json(200, format_args!("{long}"));
    assert!(matches!(response.body, Body::Bytes(_)));
    assert_eq!(response.body(), long.as_bytes());
    let fits = "x".repeat(INLINE_BODY_MAX);
    assert_eq!(
        Response::json(200, format_args!("{fits}")).body(),
        fits.as_bytes()
    );
}

#[test]
fn numbers_are_decimal() {
    for n in [0, 9, 10, 4_294_967_296, u64::MAX] {
        let mut out = Vec::new();
        push_number(&mut out, n);
        assert_eq!(String::from_utf8(out).unwrap(), n.to_string());
    }
}
