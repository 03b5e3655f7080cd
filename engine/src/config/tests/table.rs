//! The table itself: its rows hold together, and every range of it is kept.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::super::key::{Fallback, Key, Kind};
use super::super::suggest::FOREIGN;
use super::super::table::{children, row, rows};
use super::super::values::default;
use super::super::{json_schema, reference};
use super::*;

#[test]
fn every_path_and_every_variable_is_unique() {
    let paths: HashSet<_> = rows().map(|k| k.path).collect();
    assert_eq!(paths.len(), rows().count());
    let variables: Vec<_> = rows().filter_map(|k| k.variable()).collect();
    assert_eq!(
        variables.iter().collect::<HashSet<_>>().len(),
        variables.len()
    );
    assert!(!variables.iter().any(|v| v == FILE_VARIABLE));
}

#[test]
fn every_default_is_valid_and_every_row_has_a_text() {
    for key in rows() {
        assert!(key.doc.len() > 3, "{}", key.path);
        if matches!(key.fallback, Fallback::Value(_)) {
            assert!(
                default(key).is_some(),
                "{}: its default is refused",
                key.path
            );
        }
        if !key.types.is_empty() {
            let beside = format!("{}.type", key.path.rsplit_once('.').unwrap().0);
            let Some(Key {
                kind: Kind::Word(words),
                ..
            }) = row(&beside)
            else {
                panic!("{}: no type beside it", key.path)
            };
            assert!(key.types.iter().all(|t| words.contains(t)), "{}", key.path);
        }
    }
}

#[test]
fn what_is_not_built_and_what_is_foreign_is_told_from_what_is_there() {
    for n in NOT_BUILT {
        assert!(
            row(n.path).is_some() || !children(n.path).is_empty(),
            "{}",
            n.path
        );
        if let (
            Some(word),
            Some(Key {
                kind: Kind::Word(words),
                ..
            }),
        ) = (n.word, row(n.path))
        {
            assert!(words.contains(&word), "{}: {word}", n.path);
        }
    }
    for (path, _) in FOREIGN {
        assert!(
            row(path).is_none() && children(path).is_empty(),
            "{path} is a key of ours"
        );
    }
}

/// A configuration in which this key, and what it needs around it, is set.
fn document(key: &Key, value: Value) -> String {
    let mut root = json!({ "sources": { "a": { "verify": { "type": "none" }, "sinks": [{ "type": "log" }] } } });
    let parts: Vec<&str> = key.path.split('.').collect();
    let mut at = &mut root;
    for (i, part) in parts.iter().enumerate() {
        let last = i == parts.len() - 1;
        if let Some(Key {
            types: [first, ..], ..
        }) = row(&parts[..=i].join("."))
        {
            at["type"] = json!(first);
        }
        at = match *part {
            "*" => &mut at["a"],
            "#" => &mut at[0],
            name => &mut at[name],
        };
        if last {
            *at = value.clone();
        } else if at.is_null() {
            *at = json!({});
        }
    }
    root.to_string()
}

fn concrete(path: &str) -> String {
    path.replace('*', "a").replace(".#", "[0]")
}

/// The out-of-range fault of this key, if there is one.
fn out_of_range(result: Result<Loaded, ConfigError>, path: &str) -> Option<Problem> {
    let problems = result.err()?.problems;
    let here: Vec<_> = problems.into_iter().filter(|p| p.path == path).collect();
    here.into_iter().find(|p| {
        matches!(
            p.fault,
            Fault::OutOfRange { .. }
                | Fault::NotValid { .. }
                | Fault::WrongType { .. }
                | Fault::UnknownKey(_)
        )
    })
}

#[test]
fn every_number_is_refused_below_and_above_its_range_and_accepted_at_its_ends() {
    let mut seen = 0;
    for key in rows() {
        let Kind::Int(min, max, _) = key.kind else {
            continue;
        };
        seen += 1;
        let path = concrete(key.path);
        let ask = |text: String| {
            out_of_range(
                load_all_built(&document(key, serde_json::from_str(&text).unwrap()), &[]),
                &path,
            )
        };
        for good in [min, max] {
            assert_eq!(ask(good.to_string()), None, "{path}: {good}");
        }
        let below = if min == 0 {
            "-1".to_string()
        } else {
            (min - 1).to_string()
        };
        for bad in [
            below,
            (max + 1).to_string(),
            u64::MAX.to_string(),
            "\"99999999999999999999999\"".to_string(),
        ] {
            let problem = ask(bad.clone()).unwrap_or_else(|| panic!("{path}: {bad} is accepted"));
            let Fault::OutOfRange { allowed, .. } = &problem.fault else {
                panic!("{path}: {bad}: {problem:?}")
            };
            assert!(
                allowed.starts_with(&format!("{min} to {max}")),
                "{path}: {allowed}"
            );
            assert!(
                matches!(problem.place, Place::File(at) if at.line == 1 && at.column > 1),
                "{path}: {problem:?}"
            );
        }
        for bad in [
            "\"\"",
            "\"x\"",
            "1.5",
            "\"12 parsecs\"",
            "\"1e3\"",
            "\"0x10\"",
            "\"010\"",
            "[1]",
            "{}",
        ] {
            assert!(ask(bad.to_string()).is_some(), "{path}: {bad} is accepted");
        }
        if let Some(variable) = key.variable() {
            let result = load_all_built("sources: {}", &[(&variable, &(max + 1).to_string())]);
            let problem = out_of_range(result, key.path).unwrap();
            assert_eq!(problem.place, Place::Env(variable));
        }
    }
    assert!(seen > 50, "only {seen}");
}

#[test]
fn every_switch_and_word_is_refused_when_it_is_another() {
    for key in rows().filter(|k| matches!(k.kind, Kind::Bool | Kind::Word(_))) {
        let path = concrete(key.path);
        for bad in ["perhaps", "yes", "TRUE ", ""] {
            let result = load_all_built(&document(key, json!(bad)), &[]);
            assert!(
                out_of_range(result, &path).is_some(),
                "{path}: {bad:?} is accepted"
            );
        }
    }
}

#[test]
fn every_row_is_in_the_schema() {
    let schema = json_schema();
    for key in rows() {
        let mut at = &schema;
        for part in key.path.split('.') {
            // A map that a single value may stand for offers both.
            if let Some(map) = at["anyOf"]
                .as_array()
                .and_then(|a| a.iter().find(|s| s["properties"].is_object()))
            {
                at = map;
            }
            at = match part {
                "*" => &at["additionalProperties"],
                "#" => &at["items"],
                name => &at["properties"][name],
            };
        }
        assert!(at.is_object(), "{}", key.path);
        assert_eq!(at["description"], key.doc, "{}", key.path);
    }
}

#[test]
fn the_reference_page_is_the_generated_one() {
    let page = include_str!("../../../../docs/configuration.md");
    assert!(
        page == reference(),
        "docs/configuration.md is old: run `ankusa config-reference > docs/configuration.md`"
    );
    for key in rows() {
        assert!(
            page.contains(&format!("| `{}` |", super::super::table::spoken(key.path))),
            "{}",
            key.path
        );
    }
}
