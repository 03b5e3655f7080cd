//! The small parsers: URLs, blocks of addresses, numbers, expansion. And texts of every shape.

use std::io::Write;

use proptest::prelude::*;

use super::super::expand::expand;
use super::super::key::{Parsed, Unit};
use super::super::text::{parse_egress, parse_public_key, parse_url, parse_whsec};
use super::*;

#[test]
fn urls_are_read_in_parts_and_odd_ones_refused() {
    let url = |t: &str| parse_url(t).map(|u| (u.https, u.authority(), u.port, u.path_and_query));
    let ok = |https, authority: &str, port, path: &str| {
        Ok((https, authority.to_string(), port, path.to_string()))
    };
    assert_eq!(
        url("https://App.Example"),
        ok(true, "app.example", 443, "/")
    );
    assert_eq!(
        url("HTTP://a:8080/x/y?z=1"),
        ok(false, "a:8080", 8080, "/x/y?z=1")
    );
    assert_eq!(url("https://a:443?q"), ok(true, "a", 443, "/?q"));
    assert_eq!(
        url("https://[::1]:8443/"),
        ok(true, "[::1]:8443", 8443, "/")
    );
    assert_eq!(url("https://[::1]"), ok(true, "[::1]", 443, "/"));
    assert_eq!(url("http://127.0.0.1:80/"), ok(false, "127.0.0.1", 80, "/"));
    for bad in [
        "",
        "a.example",
        "ftp://a",
        "https://",
        "https://:80",
        "https://a:0",
        "https://a:65536",
        "https://a:+1",
        "https://a:",
        "https://u@a",
        "https://u:p@a",
        "https://a/ b",
        "https://a/\n",
        "https://a#f",
        "https://a/ü",
        "https://[::1",
        "https://::1",
        "https://a..b",
        "https://-a",
        "https://a b",
        // Other spellings of an address, which some resolvers would take for one.
        "https://127.1",
        "https://2130706433",
        "https://0x7f.1",
        "https://0177.0.0.1",
        "https://1.2.3.256",
        "https://a\\@b",
    ] {
        assert!(parse_url(bad).is_err(), "{bad}");
    }
}

#[test]
fn blocks_of_addresses_hold_what_they_say() {
    let cidr = |t: &str| match parse_egress(t) {
        Ok(EgressRule::Cidr(cidr)) => cidr,
        other => panic!("{t}: {other:?}"),
    };
    let holds = |block: &str, ip: &str| cidr(block).contains(ip.parse().unwrap());
    assert!(holds("10.1.0.0/16", "10.1.255.255") && !holds("10.1.0.0/16", "10.2.0.0"));
    assert!(holds("0.0.0.0/0", "255.1.2.3") && !holds("0.0.0.0/0", "::1"));
    assert!(holds("10.0.0.1", "10.0.0.1") && !holds("10.0.0.1/32", "10.0.0.0"));
    assert!(
        holds("fd00::/8", "fdff::1")
            && !holds("fd00::/8", "fe00::1")
            && holds("::/0", "::1")
            && holds("::1/128", "::1")
    );
    assert_eq!(
        parse_egress("App.Internal"),
        Ok(EgressRule::Host("app.internal".into()))
    );
    for bad in [
        "10.1.0.0/33",
        "10.1.0.1/16",
        "10.1/16",
        "a/8",
        "",
        "*.example",
        "a b",
        "::/129",
    ] {
        assert!(parse_egress(bad).is_err(), "{bad}");
    }
}

#[test]
fn numbers_take_units_and_nothing_odd() {
    let number = |unit: Unit, t: &str| match unit.parse(t) {
        Parsed::Number(n) => Some(n),
        _ => None,
    };
    let cases = [
        (Unit::Bytes, "128 MiB", Some(128 << 20)),
        (Unit::Bytes, "8MB", Some(8_000_000)),
        (Unit::Bytes, "7", Some(7)),
        (Unit::Bytes, "7B", Some(7)),
        (Unit::Bytes, "1.5GiB", None),
        (Unit::Bytes, "8Mb", None),
        (Unit::Bytes, "MiB", None),
        (Unit::Bytes, "99999999 TiB", None),
        (Unit::Millis, "5s", Some(5000)),
        (Unit::Millis, "5 ms", Some(5)),
        (Unit::Millis, "5sec", None),
        (Unit::Seconds, "3d", Some(259_200)),
        (Unit::Seconds, "3ms", None),
        (Unit::Percent, "25 %", Some(25)),
        (Unit::Of(""), "20_000_000", Some(20_000_000)),
        (Unit::Of(""), "_1", None),
        (Unit::Of(""), "1_", None),
        (Unit::Of(""), "-0", Some(0)),
        (Unit::Of(""), "--1", None),
        (Unit::Of(""), "1-", None),
        (Unit::Of(""), "+1", None),
        (Unit::Of(""), "٣", None),
    ];
    for (unit, text, expected) in cases {
        assert_eq!(number(unit, text), expected, "{text}");
    }
}

#[test]
fn expansion_knows_its_three_forms() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"  from ${HOME} file\r\n\n").unwrap();
    let env = Env::of(&[("A", "x"), ("E", ""), ("R", "${A}")]);
    let text = |t: &str| expand(t, &env).map(|g| g.text);
    assert_eq!(text("a${A}b${A}").unwrap(), "axbx");
    assert_eq!(text("${E:-d}${U:-}${U:-e:-f}").unwrap(), "de:-f");
    assert_eq!(text("$${A} $A $ ${E}").unwrap(), "${A} $A $ ");
    assert_eq!(
        text("${R}").unwrap(),
        "${A}",
        "what was expanded is not expanded again"
    );
    assert_eq!(
        text(&format!("${{file:{}}}", file.path().display())).unwrap(),
        "  from ${HOME} file"
    );
    file.as_file().set_len(70_000).unwrap();
    assert!(
        text(&format!("${{file:{}}}", file.path().display()))
            .unwrap_err()
            .ends_with("it has more than 65536 bytes")
    );
    assert!(text("${}").is_err() && text("${A B}").is_err());
}

#[test]
fn keys_are_decoded() {
    assert_eq!(parse_whsec("whsec_c2VjcmV0"), Some(b"secret".to_vec()));
    assert_eq!(parse_whsec("c2VjcmV0"), Some(b"secret".to_vec()));
    assert_eq!(parse_whsec("whsec_"), None);
    assert_eq!(parse_public_key(&"ab".repeat(32)), Some([0xab; 32]));
    assert_eq!(
        parse_public_key("q6urq6urq6urq6urq6urq6urq6urq6urq6urq6urq6s="),
        Some([0xab; 32])
    );
    assert_eq!(parse_public_key("abcd"), None);
    assert_eq!(parse_public_key(&"ü".repeat(32)), None);
}

#[test]
fn a_load_of_ten_thousand_sources_stays_quick_and_one_more_is_refused() {
    let mut yaml = "http: { ip: 127.0.0.1 }\nsources:\n".to_string();
    for i in 0..=10_000 {
        yaml += &format!("  s{i}: {{verify: {{type: none}}, sinks: [{{type: log}}]}}\n");
    }
    assert!(
        problems(&yaml, &[]).iter().any(|l| l
            .contains("sources: has 10001 entries; allowed: at most 10000")
            || l.contains("values")),
        "{:?}",
        problems(&yaml, &[])
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_text_makes_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = build(&bytes, Origin::File("f".into()), &Env::default(), &[]);
    }

    #[test]
    fn no_yaml_like_text_makes_it_panic(text in "[a-z:\\-\\[\\]{}&*!|>'\"%@`#,? \n\t0-9$]{0,120}") {
        let _ = build(text.as_bytes(), Origin::File("f".into()), &Env::default(), &[]);
    }

    #[test]
    fn a_spoiled_example_is_refused_or_accepted_and_never_panics(at in 0..EXAMPLE.len(), byte in any::<u8>(), cut in 0..40usize) {
        let mut bytes = EXAMPLE.as_bytes().to_vec();
        bytes[at] = byte;
        let end = (at + 1 + cut).min(bytes.len());
        bytes.drain(at + 1..end);
        let _ = build(&bytes, Origin::File("f".into()), &Env::of(EXAMPLE_ENV), NOT_BUILT);
    }

    #[test]
    fn no_url_or_template_makes_it_panic(text in "\\PC{0,40}") {
        let _ = parse_url(&text);
        let _ = parse_url(&format!("https://{text}"));
        let _ = parse_egress(&text);
        let _ = super::super::text::parse_signed(&text);
        let _ = expand(&text, &Env::default());
        let _ = parse_public_key(&text);
    }
}
