//! The judgement of a run: what the client was told against what the sinks were given.

use std::collections::{BTreeMap, BTreeSet};

use super::book::{Book, Hex, Id, Kind};
use super::sinks::{SECOND_ATTEMPTS_MAX, SINKS};

/// Judges a run that has drained.
pub fn judge(book: &Book) {
    missing(book);
    duplicates(book);
    places(book);
    repeats(book);
}

/// Every hook that a 201 named reached every sink of its source, or was given up as it must be.
fn missing(book: &Book) {
    let delivered: BTreeSet<(Id, &str)> = book
        .deliveries
        .borrow()
        .iter()
        .map(|delivery| (delivery.id, delivery.sink))
        .collect();
    let refused = book.refused.borrow();
    let attempts = book.attempts.borrow();
    let mut told = BTreeSet::new();
    for (number, sent) in book.requests.borrow().iter() {
        let sinks = if sent.source == "keyed" {
            &SINKS[..]
        } else {
            &SINKS[..1]
        };
        for id in sent.answers.iter().filter_map(|answer| answer.id) {
            for sink in sinks {
                let at = (id, *sink);
                let is_given_up = refused.contains(&at)
                    || *sink == SINKS[1]
                        && attempts.get(&at).is_some_and(|n| *n >= SECOND_ATTEMPTS_MAX);
                if !delivered.contains(&at) && !is_given_up && told.insert(at) {
                    let text = format!("{} of request {number} never reached {sink}", Hex(&id));
                    book.broken(Kind::Missing, text);
                }
            }
        }
    }
}

/// One hook for one key.
fn duplicates(book: &Book) {
    let requests = book.requests.borrow();
    let mut by_key: BTreeMap<&str, BTreeSet<Id>> = BTreeMap::new();
    for sent in requests.values() {
        if let Some(key) = &sent.key {
            let ids = sent.answers.iter().filter_map(|answer| answer.id);
            by_key.entry(key).or_default().extend(ids);
        }
    }
    for delivery in book.deliveries.borrow().iter() {
        let key = requests
            .get(&delivery.number)
            .and_then(|sent| sent.key.as_deref());
        if let Some(key) = key {
            by_key.entry(key).or_default().insert(delivery.id);
        }
    }
    let given_up = book.given_up.borrow();
    for ids in by_key.values_mut() {
        // A carried hook that gave its claim up, or was on a lost host only, may have a second.
        ids.retain(|id| !given_up.contains(id));
    }
    for (key, ids) in by_key.iter().filter(|(_, ids)| ids.len() > 1) {
        let ids: Vec<String> = ids.iter().map(|id| Hex(id).to_string()).collect();
        book.broken(Kind::DuplicateHook, format!("{key} has {ids:?}"));
    }
}

/// A seq of a shard is one hook's, and a hook has one place.
fn places(book: &Book) {
    let mut by_place: BTreeMap<(usize, u16, u64), Id> = BTreeMap::new();
    let mut by_id: BTreeMap<Id, (usize, u16, u64)> = BTreeMap::new();
    for delivery in book.deliveries.borrow().iter() {
        // What was on a lost host only is nowhere: its place may be another's.
        let era = book.losses_before(delivery.life);
        let place = (era, delivery.shard, delivery.seq);
        let id = *by_place.entry(place).or_insert(delivery.id);
        let known = *by_id.entry(delivery.id).or_insert(place);
        if id == delivery.id && (known.1, known.2) == (place.1, place.2) {
            continue;
        }
        if id != delivery.id || known != place {
            let text = format!(
                "{} at {place:?}, {} at {known:?}",
                Hex(&id),
                Hex(&delivery.id)
            );
            book.broken(Kind::SeqReused, text);
        }
    }
}

/// What a sink confirmed comes again only when the node died in between, and not after a clean
/// stop.
fn repeats(book: &Book) {
    let clean = book.clean_lives.borrow();
    for ((id, sink), lives) in book.confirmed.borrow().iter() {
        for pair in lives.windows(2) {
            if book.losses_before(pair[1]) > book.losses_before(pair[0]) {
                continue;
            }
            if pair[0] == pair[1] || clean.contains(&pair[0]) {
                let text = format!("{} to {sink} in life {} and {}", Hex(id), pair[0], pair[1]);
                book.broken(Kind::ExtraDelivery, text);
            }
        }
    }
}
