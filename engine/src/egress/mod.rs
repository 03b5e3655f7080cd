//! Where deliveries may go. Closed by default: only https, only to addresses of the public
//! internet.
//!
//! Owns the classes of addresses and the decision over them. A sink's URL comes from whoever may
//! write a source, and its name is resolved by whoever owns the domain; without this, either could
//! make the node talk to its own network, its neighbours, or the metadata service that hands out
//! the machine's credentials. So the decision is on the *resolved* address, at every connection,
//! and the address that was judged is the one that is dialled: a name that resolves to something
//! else a moment later changes nothing.
//!
//! What opens what:
//! - `allow_http` opens plain http to wherever https may go.
//! - `allow_private` opens loopback, private, shared (CGNAT) and unique-local addresses.
//! - an entry of `allow` opens what it names, plain http included: a host name opens what
//!   `allow_private` would, for that name; a block opens its addresses whatever their class.
//! - link-local addresses open only by a block that names them, since the metadata services of
//!   cloud providers are there.
//! - unspecified, multicast and broadcast addresses never open: there is nothing there to deliver to.
//!
//! How a host is written makes no difference: `127.1`, `0x7f.1` and `2130706433` resolve to what they
//! mean, and that is what is judged. (The configuration refuses such hosts as well, and zones.)
//!
//! Does not: resolve names, open connections, see redirects (deliveries follow none).
//!
//! Pure; runs on a shard core for every new connection, and at the configuration check.

mod class;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

use thiserror::Error;

pub use class::{AddressClass, classify};

use crate::config::{EgressConfig, EgressRule, UrlHost};

/// Why a delivery may not go there.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum EgressRefusal {
    /// Not encrypted.
    #[error("plain http is not allowed (egress.allow_http, egress.allow)")]
    PlainHttp,
    /// Not an address of the public internet.
    #[error("{address} is {}, which is not allowed (egress.allow_private, egress.allow)", class.as_str())]
    Address {
        /// What the name resolved to.
        address: IpAddr,
        /// What that is.
        class: AddressClass,
    },
}

/// Whether a delivery to `host`, which resolved to `address`, may be made. To be asked for each
/// connection, with the address that will be dialled.
pub fn decide(
    rules: &EgressConfig,
    https: bool,
    host: &UrlHost,
    address: IpAddr,
) -> Result<(), EgressRefusal> {
    let address = address.to_canonical();
    let class = classify(address);
    let by_block = rules.allow.iter().any(|rule| match rule {
        EgressRule::Cidr(block) => block.contains(address),
        EgressRule::Host(_) => false,
    });
    let by_name = rules.allow.iter().any(|rule| match (rule, host) {
        (EgressRule::Host(allowed), UrlHost::Name(name)) => same_name(allowed, name),
        _ => false,
    });
    if !https && !rules.allow_http && !by_block && !by_name {
        return Err(EgressRefusal::PlainHttp);
    }
    let open = match class {
        AddressClass::Global => true,
        AddressClass::Unspecified | AddressClass::Multicast | AddressClass::Broadcast => false,
        AddressClass::Loopback | AddressClass::Private => {
            rules.allow_private || by_name || by_block
        }
        AddressClass::LinkLocal | AddressClass::Tunnel | AddressClass::Reserved => by_block,
    };
    if open {
        Ok(())
    } else {
        Err(EgressRefusal::Address { address, class })
    }
}

/// Names compare without regard to case and to the dot at the end.
fn same_name(a: &str, b: &str) -> bool {
    let trim = |name: &str| name.strip_suffix('.').unwrap_or(name).len();
    a[..trim(a)].eq_ignore_ascii_case(&b[..trim(b)])
}
