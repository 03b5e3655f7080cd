//! `GET /v1/dlq`: dead letters of all shards, newest first; never their bodies.
//!
//! A page is merged from what each shard offers. The cursor holds a place in every shard's list;
//! it is good until the node restarts. It may show a letter twice when others are replayed
//! meanwhile, and skips none. A page may hold fewer letters than asked for, and still have a next
//! one: a shard looks at a bounded number of them for one page. Runs on the admin core, the
//! looking on each shard's.

use std::collections::BTreeMap;
use std::rc::Rc;

use ankusa_wal::state::{DeadCursor, RowState};
use ankusa_wal::{Disk, Host};
use serde_json::{Value, json};

use super::input::{Query, invalid};
use super::reply::{self, Refused, Reply};
use crate::dispatch::DeadReason;
use crate::node::ask;
use crate::node::core::Core;
use crate::replay::Wanted;
use crate::shard::Shard;

/// Dead letters that one shard looks at for one page.
const LOOK_MAX: usize = 100_000;
/// Looked at without a yield.
const SLICE: usize = 256;

/// A place in the list of each shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Places(BTreeMap<u16, u64>);

impl Places {
    fn parse(text: &str) -> Option<Places> {
        let place = |part: &str| {
            let (shard, at) = part.split_once('_')?;
            let shard = u16::from_str_radix(shard, 16).ok()?;
            Some((shard, u64::from_str_radix(at, 16).ok()?))
        };
        text.split('-')
            .map(place)
            .collect::<Option<_>>()
            .map(Places)
    }

    fn of(&self, shard: u16) -> DeadCursor {
        DeadCursor(self.0.get(&shard).copied().unwrap_or(u64::MAX))
    }
}

impl std::fmt::Display for Places {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, (shard, at)) in self.0.iter().enumerate() {
            let dash = if i > 0 { "-" } else { "" };
            write!(f, "{dash}{shard:x}_{at:x}")?;
        }
        Ok(())
    }
}

/// What one shard offers for a page.
struct Offer {
    shard: u16,
    from: u64,
    /// Newest first: when it died, the place behind it, the letter.
    letters: Vec<(u32, u64, Value)>,
    /// Where the looking stopped.
    to: u64,
}

/// Answers.
pub async fn list(core: &Rc<Core>, query: &Query<'_>) -> Result<Reply, Refused> {
    let limit = query.limit()?;
    let wanted = Wanted {
        tenant: query.name("tenant")?,
        source: query.name("source")?,
        sink: query.name("sink")?,
    };
    let places = match query.get("cursor") {
        None => Places::default(),
        Some(text) => Places::parse(text).ok_or_else(|| invalid("cursor"))?,
    };
    let question = {
        let places = places.clone();
        move |core: Rc<Core>| -> ankusa_wal::host::LocalFuture<Vec<Offer>> {
            let (wanted, places) = (wanted.clone(), places.clone());
            Box::pin(async move {
                let shards = core.shards.borrow().clone();
                let mut offers = Vec::new();
                for shard in shards {
                    let from = places.of(shard.id.0);
                    offers.push(offer(&*core.host, &shard, &wanted, from, limit).await);
                }
                offers
            })
        }
    };
    let mut offers = Vec::new();
    for answer in ask::every_core(core, ask::PATIENCE, question).await {
        // Without one core's letters the order would be a lie.
        offers.extend(
            answer.map_err(|e| {
                Refused::unavailable("core_unavailable").with("reason", e.to_string())
            })?,
        );
    }
    let (items, next) = merge(offers, limit);
    let next = next.map(|places| places.to_string());
    Ok(reply::ok(&json!({ "items": items, "next": next })))
}

fn merge(offers: Vec<Offer>, limit: usize) -> (Vec<Value>, Option<Places>) {
    let mut places = Places::default();
    let mut has_more = false;
    let mut all: Vec<(u32, u16, u64, Value)> = Vec::new();
    let mut ends = BTreeMap::new();
    for offer in offers {
        places.0.insert(offer.shard, offer.from);
        ends.insert(offer.shard, (offer.letters.len(), offer.to));
        let letters = offer.letters.into_iter();
        all.extend(letters.map(|(at, place, letter)| (at, offer.shard, place, letter)));
    }
    // Stable: letters of one shard keep their order.
    all.sort_by_key(|(died_at_s, ..)| std::cmp::Reverse(*died_at_s));
    let mut items = Vec::new();
    for (_, shard, place, letter) in all.into_iter().take(limit) {
        places.0.insert(shard, place);
        if let Some((left, _)) = ends.get_mut(&shard) {
            *left -= 1;
        }
        items.push(letter);
    }
    for (shard, (left, to)) in ends {
        if left == 0 {
            places.0.insert(shard, to);
        }
        has_more |= left > 0 || to > 0;
    }
    (items, has_more.then_some(places))
}

async fn offer<D: Disk>(
    host: &dyn Host,
    shard: &Shard<D>,
    wanted: &Wanted,
    from: DeadCursor,
    limit: usize,
) -> Offer {
    let mut offer = Offer {
        shard: shard.id.0,
        from: from.0,
        letters: Vec::new(),
        to: from.0,
    };
    let mut looked = 0;
    while looked < LOOK_MAX && offer.letters.len() < limit && offer.to > 0 {
        look(shard, wanted, limit, &mut offer);
        looked += SLICE;
        host.yield_now().await;
    }
    offer
}

fn look<D: Disk>(shard: &Shard<D>, wanted: &Wanted, limit: usize, offer: &mut Offer) {
    let state = shard.store.state();
    for _ in 0..SLICE {
        if offer.letters.len() == limit {
            return;
        }
        let (rows, next) = state.dead_letters(DeadCursor(offer.to), 1);
        let Some(&row_id) = rows.first() else {
            offer.to = 0;
            return;
        };
        offer.to = next.0;
        let row = state.row(row_id);
        let (Some(hook), Some(name)) = (state.hook(row.slot), state.names().get(row.sink)) else {
            continue;
        };
        let RowState::Dead { at_s, reason } = row.state else {
            continue;
        };
        if !wanted.is(name) {
            continue;
        }
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let letter = json!({
            "id": hook.id.to_string(),
            "tenant": text(&name.tenant),
            "source": text(&name.source),
            "sink": text(&name.name),
            "reason": DeadReason::from_code(reason).map(DeadReason::word),
            "attempts": row.attempts,
            "received_at": received_ms(&hook.id.0),
            "died_at": died_ms(at_s, &hook.id.0),
            "shard": shard.id.0,
            "seq": hook.seq.0,
        });
        offer.letters.push((at_s, next.0, letter));
    }
}

/// When a delivery of this hook died. Kept in whole seconds, so that one that died in the second of
/// its receipt would seem to have died before it.
pub(super) fn died_ms(at_s: u32, id: &[u8; 16]) -> u64 {
    (u64::from(at_s) * 1000).max(received_ms(id))
}

/// A hook's id begins with the time of its receipt.
fn received_ms(id: &[u8; 16]) -> u64 {
    u64::from_be_bytes([0, 0, id[0], id[1], id[2], id[3], id[4], id[5]])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn offered(shard: u16, died: &[u32], to: u64) -> Offer {
        let letter = |(i, at): (usize, &u32)| (*at, 100 - i as u64, json!([shard, at]));
        Offer {
            shard,
            from: u64::MAX,
            letters: died.iter().enumerate().map(letter).collect(),
            to,
        }
    }

    #[test]
    fn page_is_the_newest_of_all_shards_and_goes_on_behind_each() {
        let (items, next) = merge(vec![offered(0, &[9, 5, 1], 0), offered(1, &[7, 6], 0)], 3);
        assert_eq!(items, [json!([0, 9]), json!([1, 7]), json!([1, 6])]);
        // Shard 0 goes on behind its first letter, shard 1 is at its end.
        let next = next.unwrap();
        assert_eq!((next.of(0).0, next.of(1).0), (100, 0));
        assert_eq!(Places::parse(&next.to_string()), Some(next));
    }

    #[test]
    fn shard_of_which_nothing_was_taken_starts_where_it_did() {
        let (_, next) = merge(vec![offered(0, &[9, 8], 0), offered(1, &[1], 0)], 2);
        assert_eq!(next.unwrap().of(1), DeadCursor::NEWEST);
    }

    #[test]
    fn last_page_has_no_next_and_a_page_that_stopped_looking_has() {
        assert_eq!(merge(vec![offered(0, &[9], 0)], 5).1, None);
        assert_eq!(merge(vec![offered(0, &[], 77)], 5).1.unwrap().of(0).0, 77);
    }

    #[test]
    fn nothing_dies_before_it_is_received() {
        let mut id = [0xff; 16];
        id[..6].copy_from_slice(&1_700_000_000_900u64.to_be_bytes()[2..]);
        assert_eq!(received_ms(&id), 1_700_000_000_900);
        assert_eq!(died_ms(1_700_000_000, &id), 1_700_000_000_900);
        assert_eq!(died_ms(1_700_000_001, &id), 1_700_000_001_000);
    }

    #[test]
    fn odd_cursor_is_refused() {
        for text in ["", "-", "0", "0_", "x_1", "0_1-", "10000_1", "0_1_2"] {
            assert_eq!(Places::parse(text), None, "{text}");
        }
    }
}
