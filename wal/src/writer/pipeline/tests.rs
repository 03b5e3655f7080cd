//! The pipeline, enumerated.

use super::*;

fn settled(pipeline: &mut Pipeline) -> Vec<(u64, Outcome)> {
    std::iter::from_fn(|| pipeline.take_settled())
        .map(|s| (s.lsn.0, s.outcome))
        .collect()
}

#[test]
fn durable_rises_in_lsn_order_only() {
    let mut p = Pipeline::new(Lsn(10), Lsn(10), 2);
    let (a, b) = (p.submit(0, false), p.submit(0, false));
    assert!(!p.has_room());
    assert_eq!(p.complete(b, true), Step::Waiting);
    assert_eq!(p.durable(), Lsn(10));
    assert_eq!(p.complete(a, true), Step::Durable(Lsn(12)));
    assert_eq!(
        settled(&mut p),
        [(11, Outcome::Durable), (12, Outcome::Durable)]
    );
}

#[test]
fn a_failure_fences_only_what_is_above_the_mark_and_a_later_success_raises_nothing() {
    let mut p = Pipeline::new(Lsn(0), Lsn(0), 4);
    let lsns: Vec<Lsn> = (0..4).map(|_| p.submit(0, false)).collect();
    assert_eq!(p.complete(lsns[0], true), Step::Durable(Lsn(1)));
    assert_eq!(p.complete(lsns[2], false), Step::Froze { durable: Lsn(1) });
    assert_eq!(p.complete(lsns[1], true), Step::Waiting);
    assert_eq!(p.complete(lsns[3], true), Step::Waiting);
    assert_eq!(p.durable(), Lsn(1));
    assert_eq!(
        settled(&mut p),
        [
            (1, Outcome::Durable),
            (2, Outcome::Fenced),
            (3, Outcome::Fenced),
            (4, Outcome::Fenced)
        ]
    );
    assert!(!p.has_room());
    p.thaw();
    assert_eq!(p.submit(0, false), Lsn(5), "an LSN is never given twice");
}

/// Every order of completion of up to three groups, every result: the mark ends below the first
/// failure reaped, each group settles once and in order.
#[test]
fn every_order_and_result_of_three_groups_settles_each_once_in_order() {
    let orders = [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ];
    for order in orders {
        for results in 0..8u32 {
            let mut p = Pipeline::new(Lsn(0), Lsn(0), 3);
            let lsns: Vec<Lsn> = (0..3).map(|_| p.submit(0, false)).collect();
            let mut reaped = [false; 3];
            let mut expected_durable = 0;
            let mut failed = false;
            for &at in &order {
                let ok = results & (1 << at) != 0;
                p.complete(lsns[at], ok);
                failed |= !ok;
                reaped[at] = true;
                if !failed {
                    expected_durable = reaped.iter().take_while(|done| **done).count() as u64;
                }
                assert_eq!(
                    p.durable(),
                    Lsn(expected_durable),
                    "{order:?} {results:03b}"
                );
            }
            let told = settled(&mut p);
            assert_eq!(told.iter().map(|t| t.0).collect::<Vec<_>>(), [1, 2, 3]);
            for (lsn, outcome) in told {
                let durable = lsn <= expected_durable;
                assert_eq!(
                    outcome == Outcome::Durable,
                    durable,
                    "{order:?} {results:03b}"
                );
            }
            assert_eq!(p.inflight(), 0);
        }
    }
}

#[test]
fn internal_groups_settle_silently() {
    let mut p = Pipeline::new(Lsn(0), Lsn(0), 2);
    let a = p.submit(0, true);
    assert_eq!(p.complete(a, true), Step::Durable(Lsn(1)));
    assert_eq!(p.take_settled(), None);
}
