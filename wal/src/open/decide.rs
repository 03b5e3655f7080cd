//! What an open does with each piece of the log: a table.
//!
//! Pieces come in LSN order, whole segments first, then frames. **D** is the highest LSN that
//! anything intact claims durable. At or below D everything was acked, or could have been, and
//! must be there; above D nothing was acked, so that a torn frame is an ordinary power cut and
//! what follows it never counted.
//!
//! Pure; boot and offline.

/// How a piece looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Every checksum holds and its place in the order is right.
    Intact,
    /// A checksum fails, or there is nothing, or something of an older use of the slot.
    Bad,
    /// A segment that something intact names is not there.
    Missing,
    /// A second piece for the same place in the order.
    Duplicate,
    /// Of another store.
    ForeignStore,
    /// Of another shard.
    WrongShard,
    /// Of a newer release.
    Newer,
}

/// Where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// At or below D.
    Claimed,
    /// Above D.
    Unclaimed,
}

/// What came before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// Everything before it is there.
    Whole,
    /// A bad piece came before it.
    Broken,
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Part of the log as it lies.
    Keep,
    /// Part of the log, written and synced again before anything relies on it.
    Rewrite,
    /// The log ends before it.
    Cut,
    /// Never was part of the log.
    Drop,
    /// Acked data is damaged: no open.
    RefuseDamaged,
    /// No open.
    RefuseForeign,
    /// No open.
    RefuseShard,
    /// No open.
    RefuseNewer,
}

/// A row of the table; `None` matches anything.
struct Row {
    label: &'static str,
    piece: Option<Piece>,
    place: Option<Place>,
    before: Option<Before>,
    decision: Decision,
}

const fn row(
    label: &'static str,
    piece: Piece,
    place: Option<Place>,
    before: Option<Before>,
    decision: Decision,
) -> Row {
    Row {
        label,
        piece: Some(piece),
        place,
        before,
        decision,
    }
}

const CLAIMED: Option<Place> = Some(Place::Claimed);
const UNCLAIMED: Option<Place> = Some(Place::Unclaimed);
const WHOLE: Option<Before> = Some(Before::Whole);
const BROKEN: Option<Before> = Some(Before::Broken);

const TABLE: [Row; 16] = [
    row(
        "acked and there",
        Piece::Intact,
        CLAIMED,
        WHOLE,
        Decision::Keep,
    ),
    row(
        "acked behind a hole",
        Piece::Intact,
        CLAIMED,
        BROKEN,
        Decision::RefuseDamaged,
    ),
    row(
        "not known to be on the medium",
        Piece::Intact,
        UNCLAIMED,
        WHOLE,
        Decision::Rewrite,
    ),
    row(
        "behind a torn frame",
        Piece::Intact,
        UNCLAIMED,
        BROKEN,
        Decision::Drop,
    ),
    row(
        "acked and damaged",
        Piece::Bad,
        CLAIMED,
        None,
        Decision::RefuseDamaged,
    ),
    row(
        "torn tail, or the end",
        Piece::Bad,
        UNCLAIMED,
        WHOLE,
        Decision::Cut,
    ),
    row(
        "torn behind a torn frame",
        Piece::Bad,
        UNCLAIMED,
        BROKEN,
        Decision::Drop,
    ),
    row(
        "acked and gone",
        Piece::Missing,
        CLAIMED,
        None,
        Decision::RefuseDamaged,
    ),
    row(
        "gone, never acked",
        Piece::Missing,
        UNCLAIMED,
        WHOLE,
        Decision::Cut,
    ),
    row(
        "gone behind a torn frame",
        Piece::Missing,
        UNCLAIMED,
        BROKEN,
        Decision::Drop,
    ),
    row(
        "two for one acked place",
        Piece::Duplicate,
        CLAIMED,
        None,
        Decision::RefuseDamaged,
    ),
    row(
        "repeated, never acked",
        Piece::Duplicate,
        UNCLAIMED,
        WHOLE,
        Decision::Cut,
    ),
    row(
        "repeated behind a torn frame",
        Piece::Duplicate,
        UNCLAIMED,
        BROKEN,
        Decision::Drop,
    ),
    row(
        "another store's",
        Piece::ForeignStore,
        None,
        None,
        Decision::RefuseForeign,
    ),
    row(
        "another shard's",
        Piece::WrongShard,
        None,
        None,
        Decision::RefuseShard,
    ),
    row(
        "a newer release's",
        Piece::Newer,
        None,
        None,
        Decision::RefuseNewer,
    ),
];

/// The table's answer, and the label of the row that gave it.
pub fn decide(piece: Piece, place: Place, before: Before) -> (Decision, &'static str) {
    for row in &TABLE {
        let matches = row.piece.is_none_or(|p| p == piece)
            && row.place.is_none_or(|p| p == place)
            && row.before.is_none_or(|b| b == before);
        if matches {
            return (row.decision, row.label);
        }
    }
    // The test below shows that no input comes here; refusing is what is safe.
    (Decision::RefuseDamaged, "no row")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECES: [Piece; 7] = [
        Piece::Intact,
        Piece::Bad,
        Piece::Missing,
        Piece::Duplicate,
        Piece::ForeignStore,
        Piece::WrongShard,
        Piece::Newer,
    ];

    #[test]
    fn every_input_matches_exactly_one_row() {
        for piece in PIECES {
            for place in [Place::Claimed, Place::Unclaimed] {
                for before in [Before::Whole, Before::Broken] {
                    let rows = TABLE
                        .iter()
                        .filter(|row| {
                            row.piece.is_none_or(|p| p == piece)
                                && row.place.is_none_or(|p| p == place)
                                && row.before.is_none_or(|b| b == before)
                        })
                        .count();
                    assert_eq!(rows, 1, "{piece:?} {place:?} {before:?}");
                }
            }
        }
    }

    #[test]
    fn nothing_claimed_is_ever_cut_or_dropped_and_nothing_broken_is_kept() {
        for piece in PIECES {
            for before in [Before::Whole, Before::Broken] {
                let (claimed, _) = decide(piece, Place::Claimed, before);
                assert!(!matches!(
                    claimed,
                    Decision::Cut | Decision::Drop | Decision::Rewrite
                ));
                if piece != Piece::Intact || before == Before::Broken {
                    assert_ne!(claimed, Decision::Keep);
                }
                let (unclaimed, _) = decide(piece, Place::Unclaimed, before);
                assert_ne!(unclaimed, Decision::Keep);
                assert_ne!(unclaimed, Decision::RefuseDamaged);
            }
        }
    }
}
