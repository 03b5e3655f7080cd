//! What an address is for: the special-purpose registries of IANA as two tables.
//!
//! Anything that is not plainly part of the public internet is something else. Of version 6 only
//! `2000::/3` is handed out; everything beside it is reserved. An address that carries one of
//! version 4 inside is what the inner one is where it is merely another way of writing it
//! (`::ffff:a.b.c.d`) or the ordinary way to reach it (`64:ff9b::a.b.c.d`), and a tunnel otherwise.
//!
//! Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// What an address is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressClass {
    /// The public internet.
    Global,
    /// This machine.
    Loopback,
    /// Private, shared (CGNAT) or unique-local.
    Private,
    /// This link, where metadata services are.
    LinkLocal,
    /// It carries another address inside and leads wherever that leads.
    Tunnel,
    /// Documentation, benchmarks, protocol use, never handed out.
    Reserved,
    /// No address.
    Unspecified,
    /// Many.
    Multicast,
    /// All.
    Broadcast,
}

impl AddressClass {
    /// As part of a sentence.
    pub fn as_str(self) -> &'static str {
        match self {
            AddressClass::Global => "a public address",
            AddressClass::Loopback => "a loopback address",
            AddressClass::Private => "a private address",
            AddressClass::LinkLocal => "a link-local address",
            AddressClass::Tunnel => "a tunnel address",
            AddressClass::Reserved => "a reserved address",
            AddressClass::Unspecified => "the unspecified address",
            AddressClass::Multicast => "a multicast address",
            AddressClass::Broadcast => "the broadcast address",
        }
    }
}

/// First match wins.
const V4: [([u8; 4], u32, AddressClass); 17] = [
    // Linux delivers 0.0.0.0 to itself.
    ([0, 0, 0, 0], 8, AddressClass::Unspecified),
    ([10, 0, 0, 0], 8, AddressClass::Private),
    ([100, 64, 0, 0], 10, AddressClass::Private),
    ([127, 0, 0, 0], 8, AddressClass::Loopback),
    ([169, 254, 0, 0], 16, AddressClass::LinkLocal),
    ([172, 16, 0, 0], 12, AddressClass::Private),
    ([192, 0, 0, 0], 24, AddressClass::Reserved),
    ([192, 0, 2, 0], 24, AddressClass::Reserved),
    ([192, 88, 99, 0], 24, AddressClass::Tunnel),
    ([192, 168, 0, 0], 16, AddressClass::Private),
    ([198, 18, 0, 0], 15, AddressClass::Reserved),
    ([198, 51, 100, 0], 24, AddressClass::Reserved),
    ([203, 0, 113, 0], 24, AddressClass::Reserved),
    ([224, 0, 0, 0], 4, AddressClass::Multicast),
    ([255, 255, 255, 255], 32, AddressClass::Broadcast),
    ([240, 0, 0, 0], 4, AddressClass::Reserved),
    ([0, 0, 0, 0], 0, AddressClass::Global),
];

/// First match wins.
const V6: [([u16; 8], u32, AddressClass); 16] = [
    ([0, 0, 0, 0, 0, 0, 0, 0], 128, AddressClass::Unspecified),
    ([0, 0, 0, 0, 0, 0, 0, 1], 128, AddressClass::Loopback),
    // NAT64 of the local network; the well-known prefix is judged by what is inside.
    ([0x64, 0xFF9B, 1, 0, 0, 0, 0, 0], 48, AddressClass::Tunnel),
    // Teredo and other protocol use.
    ([0x2001, 0, 0, 0, 0, 0, 0, 0], 32, AddressClass::Tunnel),
    ([0x2001, 0, 0, 0, 0, 0, 0, 0], 23, AddressClass::Reserved),
    (
        [0x2001, 0x0DB8, 0, 0, 0, 0, 0, 0],
        32,
        AddressClass::Reserved,
    ),
    ([0x2002, 0, 0, 0, 0, 0, 0, 0], 16, AddressClass::Tunnel),
    ([0x3FFF, 0, 0, 0, 0, 0, 0, 0], 20, AddressClass::Reserved),
    ([0x2000, 0, 0, 0, 0, 0, 0, 0], 3, AddressClass::Global),
    ([0xFC00, 0, 0, 0, 0, 0, 0, 0], 7, AddressClass::Private),
    ([0xFE80, 0, 0, 0, 0, 0, 0, 0], 10, AddressClass::LinkLocal),
    // Site-local, given up in 2004 and still routed here and there.
    ([0xFEC0, 0, 0, 0, 0, 0, 0, 0], 10, AddressClass::Private),
    ([0xFF00, 0, 0, 0, 0, 0, 0, 0], 8, AddressClass::Multicast),
    // Version 4 "compatible" and "translated": obsolete, and some stacks still dial what is inside.
    ([0, 0, 0, 0, 0, 0, 0, 0], 96, AddressClass::Tunnel),
    ([0, 0, 0, 0, 0xFFFF, 0, 0, 0], 96, AddressClass::Tunnel),
    ([0, 0, 0, 0, 0, 0, 0, 0], 0, AddressClass::Reserved),
];

/// The class of an address.
pub fn classify(address: IpAddr) -> AddressClass {
    match address.to_canonical() {
        IpAddr::V4(address) => classify_v4(address),
        IpAddr::V6(address) => match nat64(address) {
            Some(inner) => classify_v4(inner),
            None => classify_v6(address),
        },
    }
}

/// What is inside `64:ff9b::/96`.
fn nat64(address: Ipv6Addr) -> Option<Ipv4Addr> {
    match address.segments() {
        [0x64, 0xFF9B, 0, 0, 0, 0, high, low] => {
            Some(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)))
        }
        _ => None,
    }
}

fn classify_v4(address: Ipv4Addr) -> AddressClass {
    let within = |(block, prefix_len, _): &&([u8; 4], u32, AddressClass)| {
        let differing = address.to_bits() ^ Ipv4Addr::from(*block).to_bits();
        differing.leading_zeros() >= *prefix_len
    };
    V4.iter()
        .find(within)
        .map_or(AddressClass::Reserved, |row| row.2)
}

fn classify_v6(address: Ipv6Addr) -> AddressClass {
    let within = |(block, prefix_len, _): &&([u16; 8], u32, AddressClass)| {
        let differing = address.to_bits() ^ Ipv6Addr::from(*block).to_bits();
        differing.leading_zeros() >= *prefix_len
    };
    V6.iter()
        .find(within)
        .map_or(AddressClass::Reserved, |row| row.2)
}
