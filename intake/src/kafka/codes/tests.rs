//! The table against the library's own list of codes.
#![allow(clippy::unwrap_used)]
#![expect(
    unsafe_code,
    reason = "the list of codes is only told through a pointer"
)]

use super::*;
use rdkafka::bindings::{rd_kafka_err_desc, rd_kafka_get_err_descs};
use std::ffi::CStr;

/// Every code that the linked library knows, with its name.
fn library_codes() -> Vec<(i32, String)> {
    let mut descs: *const rd_kafka_err_desc = std::ptr::null();
    let mut count = 0usize;
    // SAFETY: both pointers are valid for the call, which sets them to a static table.
    unsafe { rd_kafka_get_err_descs(&mut descs, &mut count) };
    (0..count)
        .filter_map(|at| {
            // SAFETY: the table has `count` entries. The code is read as the integer it is in C,
            // for it may be one that the bindings do not list.
            let (code, name) = unsafe {
                let desc = descs.add(at);
                ((&raw const (*desc).code).cast::<i32>().read(), (*desc).name)
            };
            if name.is_null() {
                return None;
            }
            // SAFETY: names are static strings.
            let name = unsafe { CStr::from_ptr(name) };
            Some((code, name.to_string_lossy().into_owned()))
        })
        .collect()
}

#[test]
fn every_code_of_the_library_has_a_row_of_the_same_name() {
    let codes = library_codes();
    assert!(codes.len() > 150, "the list was read");
    let mut missing = Vec::new();
    for (code, name) in codes {
        if matches!(
            name.as_str(),
            "_BEGIN" | "_END" | "NO_ERROR" | "ERR_END_ALL"
        ) {
            continue;
        }
        match TABLE.binary_search_by_key(&code, |row| row.0) {
            Ok(at) if TABLE[at].2 == name => {}
            _ => missing.push((code, name)),
        }
    }
    assert_eq!(missing, []);
}

#[test]
fn the_table_is_sorted_and_has_no_code_twice() {
    assert!(TABLE.windows(2).all(|pair| pair[0].0 < pair[1].0));
}

#[test]
fn the_classes_that_decide_something_are_as_documented() {
    let class = |name: &str| TABLE.iter().find(|row| row.2 == name).unwrap().1;
    for name in [
        "NOT_ENOUGH_REPLICAS",
        "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
        "LEADER_NOT_AVAILABLE",
        "NOT_LEADER_FOR_PARTITION",
        "REQUEST_TIMED_OUT",
        "KAFKA_STORAGE_ERROR",
        "INVALID_MSG",
        "UNKNOWN",
        "_TRANSPORT",
        "_MSG_TIMED_OUT",
        "_QUEUE_FULL",
        "_PURGE_QUEUE",
        "_ALL_BROKERS_DOWN",
        "_FATAL",
    ] {
        assert_eq!(class(name), Class::Unavailable, "{name}");
    }
    for name in [
        "UNKNOWN_TOPIC_OR_PART",
        "_UNKNOWN_TOPIC",
        "_UNKNOWN_PARTITION",
    ] {
        assert_eq!(class(name), Class::NotFound, "{name}");
    }
    for name in ["MSG_SIZE_TOO_LARGE", "INVALID_RECORD"] {
        assert_eq!(class(name), RECORD, "{name}");
    }
    for name in [
        "TOPIC_AUTHORIZATION_FAILED",
        "CLUSTER_AUTHORIZATION_FAILED",
        "SASL_AUTHENTICATION_FAILED",
        "_AUTHENTICATION",
    ] {
        assert_eq!(class(name), ACCESS, "{name}");
    }
    assert_eq!(class("THROTTLING_QUOTA_EXCEEDED"), THROTTLED);
}

#[test]
fn a_code_nobody_knows_is_unavailable_and_counted() {
    let before = unknown_codes();
    assert_eq!(failure_of(9999).class, Class::Unavailable);
    assert!(unknown_codes() > before);
}
