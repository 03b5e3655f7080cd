//! The two marks of a shard in the intake log: how far the log is confirmed to hold the store
//! (watermark), and how far the store holds the log (offset).
//!
//! Both are functions of what is not settled. Too low costs a redundant republish or a longer
//! replay; too high would lose a hook. Pure.

use ankusa_wal::record::WATERMARK_EXCEPTIONS_MAX;
use ankusa_wal::{IntakeOffset, LogOffset, Seq, Watermark, mutations};

/// The highest seq such that every seq at or below it is confirmed in the log or has no record in
/// it, stuck ones named. `lowest_unconfirmed` is the lowest one handed over (or carried) and neither
/// confirmed nor stuck; `stuck` are the stuck unconfirmed ones, ascending; `next_seq` was not handed
/// out yet.
pub fn watermark(
    lowest_unconfirmed: Option<Seq>,
    stuck: impl Iterator<Item = Seq>,
    next_seq: Seq,
) -> Watermark {
    let mut end = lowest_unconfirmed.map_or(next_seq, |seq| seq.min(next_seq));
    if mutations::is("watermark_from_unconfirmed") {
        end = next_seq;
    }
    let mut exceptions = Vec::new();
    for seq in stuck {
        if seq >= end {
            break;
        }
        if exceptions.len() == WATERMARK_EXCEPTIONS_MAX {
            end = seq;
            break;
        }
        exceptions.push(seq);
    }
    Watermark {
        seq: Seq(end.0.saturating_sub(1)),
        exceptions,
    }
}

/// Whether `new` says more than `old`, which stays true as long as the log keeps what it has.
pub fn is_ahead(new: &Watermark, old: &Watermark) -> bool {
    new.seq > old.seq || (new.seq == old.seq && new.exceptions.len() < old.exceptions.len())
}

/// The highest position such that every record of this shard at or below it is durable here:
/// below the head as last read, below the heads known when what is not durable here was handed
/// over, below the hold. `None`: no such position.
pub fn offset(
    head: LogOffset,
    floors: [Option<LogOffset>; 2],
    hold: Option<LogOffset>,
) -> Option<LogOffset> {
    let floors = floors.into_iter().flatten();
    let floors = floors.filter(|_| !mutations::is("offset_from_unconfirmed"));
    let end = floors.chain(hold).fold(head, LogOffset::min);
    end.0.checked_sub(1).map(LogOffset)
}

/// The offset row to write when `now` is how far it is: only forward.
pub fn moved(now: Option<LogOffset>, old: &IntakeOffset) -> Option<IntakeOffset> {
    (now > old.offset).then_some(IntakeOffset {
        offset: now,
        hold: old.hold,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(lowest: Option<u64>, stuck: &[u64], next: u64) -> (u64, Vec<u64>) {
        let stuck = stuck.iter().map(|&s| Seq(s));
        let mark = watermark(lowest.map(Seq), stuck, Seq(next));
        (mark.seq.0, mark.exceptions.iter().map(|s| s.0).collect())
    }

    #[test]
    fn the_watermark_is_below_the_lowest_unconfirmed_and_names_the_stuck_below_it() {
        assert_eq!(mark(None, &[], 1), (0, vec![]));
        assert_eq!(mark(None, &[], 10), (9, vec![]));
        assert_eq!(mark(Some(7), &[], 10), (6, vec![]));
        assert_eq!(mark(Some(7), &[3, 5, 8], 10), (6, vec![3, 5]));
        assert_eq!(mark(None, &[3, 5, 8], 10), (9, vec![3, 5, 8]));
        assert_eq!(mark(Some(20), &[], 10), (9, vec![]));
    }

    #[test]
    fn beyond_the_exceptions_that_fit_the_watermark_stays() {
        let most = WATERMARK_EXCEPTIONS_MAX as u64;
        let stuck: Vec<u64> = (10..10 + most).collect();
        let (seq, exceptions) = mark(None, &stuck, 100_000);
        assert_eq!((seq, exceptions.len()), (99_999, stuck.len()));
        let stuck: Vec<u64> = (10..10 + most + 5).collect();
        let (seq, exceptions) = mark(None, &stuck, 100_000);
        assert_eq!(
            (seq, exceptions.len()),
            (10 + most - 1, WATERMARK_EXCEPTIONS_MAX)
        );
    }

    #[test]
    fn the_offset_is_below_the_head_the_floors_and_the_hold() {
        let at = |n: u64| Some(LogOffset(n));
        assert_eq!(offset(LogOffset(9), [None, None], None), at(8));
        assert_eq!(offset(LogOffset(9), [at(5), None], None), at(4));
        assert_eq!(offset(LogOffset(9), [at(5), at(3)], None), at(2));
        assert_eq!(offset(LogOffset(9), [at(20), None], at(7)), at(6));
        assert_eq!(offset(LogOffset(0), [None, None], None), None);
        assert_eq!(offset(LogOffset(9), [at(0), None], None), None);
    }

    #[test]
    fn marks_only_move_forward_and_keep_the_hold() {
        let old = IntakeOffset {
            offset: Some(LogOffset(5)),
            hold: Some(LogOffset(9)),
        };
        for now in [None, Some(LogOffset(4)), Some(LogOffset(5))] {
            assert_eq!(moved(now, &old), None);
        }
        let new = moved(Some(LogOffset(6)), &old);
        assert_eq!(
            new.map(|n| (n.offset, n.hold)),
            Some((Some(LogOffset(6)), old.hold))
        );
        let mark = |seq, exceptions: &[u64]| Watermark {
            seq: Seq(seq),
            exceptions: exceptions.iter().map(|&s| Seq(s)).collect(),
        };
        assert!(is_ahead(&mark(9, &[3]), &mark(8, &[])));
        assert!(is_ahead(&mark(9, &[]), &mark(9, &[3])));
        assert!(!is_ahead(&mark(9, &[3]), &mark(9, &[3])));
        assert!(!is_ahead(&mark(8, &[]), &mark(9, &[3])));
    }
}
