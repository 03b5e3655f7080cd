//! Who may ask: the bearer token, and without one only who names this host by its address.
//!
//! Pure.

use std::net::IpAddr;

use ankusa_net::types::{HeaderMap, StatusCode};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};

use super::reply::Refused;
use crate::config::Secret;

/// Lets a request pass, or says why not.
pub fn check(headers: &HeaderMap, token: Option<&Secret>) -> Result<(), Refused> {
    match token {
        Some(token) if bears(headers, token) => Ok(()),
        Some(_) => Err(Refused::new(StatusCode::UNAUTHORIZED, "unauthorized")
            .header("www-authenticate", "Bearer")),
        None if names_an_address(headers) => Ok(()),
        None => Err(Refused::new(StatusCode::FORBIDDEN, "forbidden_host")),
    }
}

fn bears(headers: &HeaderMap, token: &Secret) -> bool {
    let mut values = headers.get_all("authorization").iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return false;
    };
    let value = value.as_bytes();
    let Some((scheme, given)) = value.split_at_checked(7) else {
        return false;
    };
    // Hashed first, so that the length of the token shows as little as its bytes.
    let hashes = [given, token.expose()].map(|bytes| digest(&SHA256, bytes));
    scheme.eq_ignore_ascii_case(b"bearer ")
        && verify_slices_are_equal(hashes[0].as_ref(), hashes[1].as_ref()).is_ok()
}

/// Without a token the listener is on loopback. A page in a browser reaches it under a name that
/// resolves there, and then names that in `Host`.
fn names_an_address(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get("host").and_then(|h| h.to_str().ok()) else {
        return true;
    };
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}
