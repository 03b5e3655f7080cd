#![allow(clippy::unwrap_used)]

use std::sync::mpsc::sync_channel;

use super::*;

fn backups(max_age_ms: Option<u64>, require_fresh: bool) -> (Backups, Receiver<Order>) {
    let (orders, inbox) = sync_channel(ORDERS_MAX);
    let shared = Arc::new(Shared {
        max_age_ms,
        require_fresh,
        ..Shared::default()
    });
    let orders = Some(orders);
    (Backups { shared, orders }, inbox)
}

#[test]
fn word_follows_the_age_and_only_a_demand_makes_the_node_unready() {
    let off = Backups::off();
    assert_eq!((off.word(9_000), off.lets_serve(9_000)), ("off", true));
    let (strict, _inbox) = backups(Some(1_000), true);
    let (lenient, _inbox) = backups(Some(1_000), false);
    for (newest_ms, word, serves) in [
        (0, "none", false),
        (8_000, "fresh", true),
        (7_999, "stale", false),
    ] {
        for (of, serves) in [(&strict, serves), (&lenient, true)] {
            of.shared.newest_ms.store(newest_ms, Ordering::SeqCst);
            assert_eq!((of.word(9_000), of.lets_serve(9_000)), (word, serves));
        }
    }
    let (ageless, _inbox) = backups(None, false);
    ageless.shared.newest_ms.store(1, Ordering::SeqCst);
    assert_eq!(ageless.word(u64::MAX), "fresh");
}

#[test]
fn order_names_a_run_that_begins_after_it_and_orders_are_bounded() {
    let (some, inbox) = backups(None, false);
    assert_eq!(some.now(), Some(1));
    some.shared.begun.store(4, Ordering::SeqCst);
    assert_eq!(some.now(), Some(5));
    for _ in 2..ORDERS_MAX {
        assert!(some.now().is_some());
    }
    assert_eq!(some.now(), None);
    drop(inbox);
    assert_eq!(some.now(), None);
    assert_eq!(Backups::off().now(), None);
}
