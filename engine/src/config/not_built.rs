//! What a configuration may ask for one day, and this version does not do yet.
//!
//! One list. A row is a key, or a key and one of its values; setting it is an error that says so.
//! The checks of these keys are written and tested all the same: a row that goes from this list
//! switches its keys on. Pure; runs anywhere.

/// A key, or a value of a key, that is not built.
pub(super) struct NotBuilt {
    /// The key's path in the table; a whole area's path stands for all below it.
    pub path: &'static str,
    /// The value that is not built; `None`: none is.
    pub word: Option<&'static str>,
    /// The value that asks for nothing and is accepted.
    pub but: Option<&'static str>,
    /// What to say.
    pub says: &'static str,
}

const fn key(path: &'static str, says: &'static str) -> NotBuilt {
    NotBuilt {
        path,
        word: None,
        but: None,
        says,
    }
}

const fn word(path: &'static str, word: &'static str, says: &'static str) -> NotBuilt {
    NotBuilt {
        path,
        word: Some(word),
        but: None,
        says,
    }
}

/// Whether a row stands for this key, whatever its value.
pub(super) fn covers(row: &NotBuilt, pattern: &str) -> bool {
    let here = pattern.strip_prefix(row.path);
    row.word.is_none()
        && row.but != Some(pattern)
        && here.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// The list.
pub(super) const NOT_BUILT: &[NotBuilt] = &[
    word(
        "wal.type",
        "none",
        "none is not in this version yet; disk and dual are",
    ),
    word(
        "dedupe.scope",
        "fleet",
        "fleet is not in this version yet; node is",
    ),
    key("fleet", "claims of a fleet are not in this version yet"),
    key(
        "sources.*.dedupe.on_fleet_down",
        "claims of a fleet are not in this version yet",
    ),
    word(
        "intake.type",
        "jetstream",
        "jetstream is not in this version yet; kafka and memory are",
    ),
    key(
        "intake.jetstream",
        "jetstream is not in this version yet; kafka and memory are",
    ),
    #[cfg(not(feature = "kafka"))]
    word(
        "intake.type",
        "kafka",
        "this binary is built without the feature kafka",
    ),
    word(
        "backup.store.type",
        "s3",
        "s3 is not in this version yet; local is",
    ),
    key(
        "backup.secondary",
        "a second place for backups is not in this version yet",
    ),
    key("storage", "the archive is not in this version yet"),
    key("archive", "the archive is not in this version yet"),
    key(
        "quarantine",
        "the quarantine pen is not in this version yet",
    ),
    key("rate_limits", "rate limits are not in this version yet"),
    key(
        "http.tls",
        "TLS on the ingest port is not in this version yet; put a proxy in front",
    ),
    word(
        "sources.*.on_verify_failure",
        "quarantine",
        "quarantine is not in this version yet; reject and accept_flag are",
    ),
    word(
        "sources.*.sinks.#.type",
        "kafka",
        "the sink kafka is not in this version yet; http, file and log are",
    ),
    word(
        "sources.*.sinks.#.type",
        "jetstream",
        "the sink jetstream is not in this version yet; http, file and log are",
    ),
];
