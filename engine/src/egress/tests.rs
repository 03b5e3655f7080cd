//! Every class of address, from the ways it can be written to the rules that open it.
#![allow(clippy::unwrap_used)]

use std::net::Ipv6Addr;

use proptest::prelude::*;

use super::*;
use crate::config::Cidr;

fn closed() -> EgressConfig {
    EgressConfig {
        allow_http: false,
        allow_private: false,
        allow: Vec::new(),
    }
}

fn block(text: &str) -> EgressRule {
    let (network, prefix_len) = text.split_once('/').unwrap();
    EgressRule::Cidr(Cidr {
        network: network.parse().unwrap(),
        prefix_len: prefix_len.parse().unwrap(),
    })
}

fn named(text: &str) -> UrlHost {
    UrlHost::Name(text.into())
}

fn allowed(rules: &EgressConfig, https: bool, host: &str, address: &str) -> bool {
    decide(rules, https, &named(host), address.parse().unwrap()).is_ok()
}

const CASES: [(&str, AddressClass); 88] = {
    use AddressClass::*;
    [
        ("1.1.1.1", Global),
        ("8.8.8.8", Global),
        ("9.255.255.255", Global),
        ("11.0.0.0", Global),
        ("100.63.255.255", Global),
        ("100.128.0.0", Global),
        ("126.255.255.255", Global),
        ("128.0.0.1", Global),
        ("169.253.255.255", Global),
        ("169.255.0.0", Global),
        ("172.15.255.255", Global),
        ("172.32.0.0", Global),
        ("192.0.1.0", Global),
        ("192.167.255.255", Global),
        ("192.169.0.0", Global),
        ("198.17.255.255", Global),
        ("198.20.0.0", Global),
        ("223.255.255.255", Global),
        ("0.0.0.0", Unspecified),
        ("0.0.0.1", Unspecified),
        ("0.255.255.255", Unspecified),
        ("10.0.0.0", Private),
        ("10.255.255.255", Private),
        ("100.64.0.0", Private),
        ("100.127.255.255", Private),
        ("172.16.0.0", Private),
        ("172.31.255.255", Private),
        ("192.168.0.0", Private),
        ("192.168.255.255", Private),
        ("127.0.0.0", Loopback),
        ("127.0.0.1", Loopback),
        ("127.255.255.255", Loopback),
        ("169.254.0.0", LinkLocal),
        ("169.254.169.254", LinkLocal),
        ("169.254.255.255", LinkLocal),
        ("192.0.0.0", Reserved),
        ("192.0.0.170", Reserved),
        ("192.0.2.1", Reserved),
        ("198.51.100.1", Reserved),
        ("203.0.113.255", Reserved),
        ("198.18.0.0", Reserved),
        ("198.19.255.255", Reserved),
        ("240.0.0.0", Reserved),
        ("255.255.255.254", Reserved),
        ("192.88.99.1", Tunnel),
        ("224.0.0.0", Multicast),
        ("239.255.255.255", Multicast),
        ("255.255.255.255", Broadcast),
        ("2606:4700:4700::1111", Global),
        ("2a00::1", Global),
        ("2001:200::1", Global),
        ("3ffe::1", Global),
        ("2003::1", Global),
        ("::", Unspecified),
        ("::1", Loopback),
        ("fc00::", Private),
        ("fdff:ffff::1", Private),
        ("fd00:ec2::254", Private),
        ("fec0::1", Private),
        ("fe80::1", LinkLocal),
        ("febf:ffff::1", LinkLocal),
        ("ff02::1", Multicast),
        ("ff0e::1", Multicast),
        ("2001:db8::1", Reserved),
        ("3fff::1", Reserved),
        ("3fff:fff::1", Reserved),
        ("2001:2::1", Reserved),
        ("2001:20::1", Reserved),
        ("100::1", Reserved),
        ("5f00::1", Reserved),
        ("4000::1", Reserved),
        ("fe00::1", Reserved),
        ("200::1", Reserved),
        ("::ffff:127.0.0.1", Loopback),
        ("::ffff:10.0.0.1", Private),
        ("::ffff:169.254.169.254", LinkLocal),
        ("::ffff:8.8.8.8", Global),
        ("::ffff:0.0.0.0", Unspecified),
        ("::ffff:255.255.255.255", Broadcast),
        ("::127.0.0.1", Tunnel),
        ("::8.8.8.8", Tunnel),
        ("::ffff:0:127.0.0.1", Tunnel),
        ("64:ff9b::127.0.0.1", Loopback),
        ("64:ff9b::169.254.169.254", LinkLocal),
        ("64:ff9b::8.8.8.8", Global),
        ("64:ff9b:1::7f00:1", Tunnel),
        ("2002:7f00:1::1", Tunnel),
        ("2001:0:4136:e378:8000:63bf:3fff:fdd2", Tunnel),
    ]
};

#[test]
fn every_address_has_its_class() {
    for (text, expected) in CASES {
        assert_eq!(classify(text.parse().unwrap()), expected, "{text}");
    }
}

#[test]
fn closed_rules_open_only_the_public_internet_over_https() {
    for (text, class) in CASES {
        let expected = class == AddressClass::Global;
        assert_eq!(
            allowed(&closed(), true, "app.example", text),
            expected,
            "{text}"
        );
        assert!(!allowed(&closed(), false, "app.example", text), "{text}");
    }
}

#[test]
fn allow_private_opens_loopback_and_private_only() {
    let rules = EgressConfig {
        allow_private: true,
        ..closed()
    };
    for (text, class) in CASES {
        let expected = matches!(
            class,
            AddressClass::Global | AddressClass::Loopback | AddressClass::Private
        );
        assert_eq!(
            allowed(&rules, true, "app.example", text),
            expected,
            "{text}"
        );
        assert!(!allowed(&rules, false, "app.example", text), "{text}");
    }
}

#[test]
fn allow_http_opens_no_further_address() {
    let rules = EgressConfig {
        allow_http: true,
        ..closed()
    };
    for (text, class) in CASES {
        let expected = class == AddressClass::Global;
        assert_eq!(
            allowed(&rules, false, "app.example", text),
            expected,
            "{text}"
        );
    }
}

#[test]
fn named_host_opens_private_addresses_for_that_name_alone() {
    let rules = EgressConfig {
        allow: vec![EgressRule::Host("app.internal".into())],
        ..closed()
    };
    for https in [true, false] {
        assert!(allowed(&rules, https, "app.internal", "10.0.0.1"));
        assert!(allowed(&rules, https, "APP.internal.", "127.0.0.1"));
        assert!(allowed(&rules, https, "app.internal", "1.1.1.1"));
        for other in ["app.internal.example", "xapp.internal", "internal", "app"] {
            assert!(!allowed(&rules, https, other, "10.0.0.1"), "{other}");
        }
        // Whoever answers for the name could point it at the metadata service.
        assert!(!allowed(&rules, https, "app.internal", "169.254.169.254"));
        assert!(!allowed(&rules, https, "app.internal", "224.0.0.1"));
    }
}

#[test]
fn named_block_opens_its_addresses_whatever_they_are() {
    let rules = EgressConfig {
        allow: vec![
            block("10.1.0.0/16"),
            block("169.254.169.254/32"),
            block("fd00:1::/32"),
        ],
        ..closed()
    };
    for (text, expected) in [
        ("10.1.0.0", true),
        ("10.1.255.255", true),
        ("10.2.0.0", false),
        ("10.0.255.255", false),
        ("::ffff:10.1.2.3", true),
        ("::10.1.2.3", false),
        ("169.254.169.254", true),
        ("169.254.169.253", false),
        ("fd00:1::9", true),
        ("fd00:2::9", false),
        ("127.0.0.1", false),
    ] {
        for https in [true, false] {
            assert_eq!(
                allowed(&rules, https, "x.example", text),
                expected,
                "{text}"
            );
        }
    }
}

#[test]
fn nothing_opens_what_is_no_destination() {
    let rules = EgressConfig {
        allow_http: true,
        allow_private: true,
        allow: vec![
            block("0.0.0.0/0"),
            block("::/0"),
            EgressRule::Host("x.example".into()),
        ],
    };
    for (text, class) in CASES {
        let none = matches!(
            class,
            AddressClass::Unspecified | AddressClass::Multicast | AddressClass::Broadcast
        );
        assert_eq!(allowed(&rules, true, "x.example", text), !none, "{text}");
    }
}

#[test]
fn address_as_host_is_judged_like_any_other() {
    let rules = EgressConfig {
        allow: vec![EgressRule::Host("10.0.0.1".into())],
        ..closed()
    };
    let ip: IpAddr = "10.0.0.1".parse().unwrap();
    let refusal = EgressRefusal::Address {
        address: ip,
        class: AddressClass::Private,
    };
    assert_eq!(decide(&rules, true, &UrlHost::Ip(ip), ip), Err(refusal));
    assert_eq!(
        refusal.to_string(),
        "10.0.0.1 is a private address, which is not allowed (egress.allow_private, egress.allow)"
    );
}

#[test]
fn way_of_writing_makes_no_difference() {
    use std::net::ToSocketAddrs as _;
    // The system's resolver reads all of these as addresses, without asking anyone.
    for (text, expected) in [
        ("2130706433", AddressClass::Loopback),
        ("127.1", AddressClass::Loopback),
        ("127.0.1", AddressClass::Loopback),
        ("0177.0.0.1", AddressClass::Loopback),
        ("017700000001", AddressClass::Loopback),
        ("0x7f000001", AddressClass::Loopback),
        ("0x7f.0.0.1", AddressClass::Loopback),
        ("0X7F.1", AddressClass::Loopback),
        ("127.0.0.0x1", AddressClass::Loopback),
        ("0", AddressClass::Unspecified),
        ("0x0", AddressClass::Unspecified),
        ("10.1", AddressClass::Private),
        ("012.1", AddressClass::Private),
        ("0xA9FEA9FE", AddressClass::LinkLocal),
        ("2852039166", AddressClass::LinkLocal),
        ("0251.0376.0251.0376", AddressClass::LinkLocal),
        ("fe80::1%lo", AddressClass::LinkLocal),
        ("fe80::1%1", AddressClass::LinkLocal),
        ("::ffff:7f00:1", AddressClass::Loopback),
        ("0:0:0:0:0:ffff:127.0.0.1", AddressClass::Loopback),
        (
            "0000:0000:0000:0000:0000:0000:0000:0001",
            AddressClass::Loopback,
        ),
    ] {
        for address in (text, 443).to_socket_addrs().unwrap() {
            assert_eq!(classify(address.ip()), expected, "{text}");
            assert!(
                decide(&closed(), true, &named(text), address.ip()).is_err(),
                "{text}"
            );
        }
    }
}

proptest! {
    #[test]
    fn mapped_addresses_are_what_is_inside(bits in any::<u32>()) {
        let inner = std::net::Ipv4Addr::from_bits(bits);
        prop_assert_eq!(classify(inner.to_ipv6_mapped().into()), classify(inner.into()));
        if classify(inner.into()) == AddressClass::Global {
            prop_assert!(!inner.is_private() && !inner.is_loopback() && !inner.is_link_local());
            prop_assert!(!inner.is_multicast() && !inner.is_broadcast() && !inner.is_documentation());
            prop_assert!(!inner.is_unspecified());
        }
    }

    #[test]
    fn only_handed_out_version_6_is_global(bits in any::<u128>()) {
        let address = Ipv6Addr::from_bits(bits);
        if classify(address.into()) == AddressClass::Global {
            prop_assert_eq!(bits >> 125, 1);
        }
    }
}
