//! The table, whole.

use super::*;

const READABLE: [Readable; 3] = [Readable::Whole, Readable::Newer, Readable::Broken];
const PLACES: [Place; 6] = [
    Place::Nothing,
    Place::SameHook,
    Place::SameDamaged,
    Place::OtherHook,
    Place::FinishedHere,
    Place::FinishedElsewhere,
];

/// The rows in words: each input must be in exactly one, and get that row.
#[test]
fn every_input_is_in_exactly_one_row() {
    type Is = fn(Readable, Place, bool, bool) -> bool;
    let taken = |place| matches!(place, Place::OtherHook | Place::FinishedElsewhere);
    let rows: [(Row, Is); 8] = [
        (Row::Hold, |r, _, _, _| r == Readable::Newer),
        (Row::Reject, |r, _, _, _| r == Readable::Broken),
        (Row::Restore, |r, p, _, _| {
            r == Readable::Whole && p == Place::SameDamaged
        }),
        (Row::Present, |r, p, marked, _| {
            let here = matches!(p, Place::SameHook | Place::FinishedHere);
            r == Readable::Whole && p != Place::SameDamaged && (here || marked)
        }),
        (Row::Resequence, |r, p, marked, known| {
            let taken = matches!(p, Place::OtherHook | Place::FinishedElsewhere);
            r == Readable::Whole && taken && !marked && known
        }),
        (Row::ResequenceUnroutable, |r, p, marked, known| {
            let taken = matches!(p, Place::OtherHook | Place::FinishedElsewhere);
            r == Readable::Whole && taken && !marked && !known
        }),
        (Row::Apply, |r, p, marked, known| {
            r == Readable::Whole && p == Place::Nothing && !marked && known
        }),
        (Row::Unroutable, |r, p, marked, known| {
            r == Readable::Whole && p == Place::Nothing && !marked && !known
        }),
    ];
    let mut inputs = 0;
    for readable in READABLE {
        for place in PLACES {
            for (marked, known) in [(false, false), (false, true), (true, false), (true, true)] {
                inputs += 1;
                let mut found = rows
                    .iter()
                    .filter(|(_, is)| is(readable, place, marked, known));
                let what = format!("{readable:?} {place:?} marked {marked} known {known}");
                let row = found.next().map(|(row, _)| *row);
                assert!(found.next().is_none(), "{what} is in two rows");
                let (decided, label) = decide(readable, place, marked, known);
                assert_eq!(Some(decided), row, "{what}");
                assert!(!label.is_empty());
                // Never overwritten: a seq that is another hook's is never written under.
                let overwrites = matches!(decided, Row::Apply | Row::Unroutable | Row::Restore);
                assert!(!(taken(place) && overwrites), "{what}");
            }
        }
    }
    assert_eq!(inputs, 72);
}
