//! The decisions, whole.

use super::*;

const ORIGINS: [StoreOrigin; 3] = [
    StoreOrigin::Fresh,
    StoreOrigin::Restored,
    StoreOrigin::Existing,
];

#[test]
fn store_of_another_node_is_never_taken() {
    assert_eq!(identity(None, "a"), Identity::Stamp);
    assert_eq!(identity(Some("a"), "a"), Identity::Same);
    assert_eq!(identity(Some("b"), "a"), Identity::Mismatch);
    assert_eq!(identity(Some(""), "a"), Identity::Mismatch);
}

#[test]
fn log_that_lost_what_it_held_is_never_taken_for_the_same() {
    for known in [None, Some("one")] {
        for found in ["one", "other", ""] {
            for (offset, head) in [(None, 0), (Some(5), 5), (Some(5), 6), (Some(5), 60)] {
                for origin in ORIGINS {
                    for allow in [false, true] {
                        let decided = log_identity(known, found, offset, head, origin, allow);
                        let lost = (known.is_some() && found == "other")
                            || offset.is_some_and(|offset| head <= offset);
                        let expected = match (lost, known, origin, allow) {
                            (false, None, ..) => LogIdentity::First,
                            (false, Some(_), ..) => LogIdentity::Same,
                            (true, _, StoreOrigin::Existing, _) => LogIdentity::Republish,
                            (true, _, _, false) => LogIdentity::Refuse,
                            (true, _, _, true) => LogIdentity::AllowedGap,
                        };
                        assert_eq!(decided, expected, "{known:?} {found} {offset:?} {head}");
                    }
                }
            }
        }
    }
}

#[test]
fn gap_is_refused_exactly_where_a_hook_may_be_lost_in_it() {
    let bools = [false, true];
    let mut refused = 0;
    for wanted in [None, Some(4), Some(5), Some(6)] {
        for origin in ORIGINS {
            for (is_known, holds_ours) in bools.iter().flat_map(|a| bools.map(|b| (*a, b))) {
                for (first_is_beyond, allow_gap) in
                    bools.iter().flat_map(|a| bools.map(|b| (*a, b)))
                {
                    let reach = Reach {
                        wanted,
                        earliest: 5,
                        origin,
                        is_known,
                        holds_ours,
                        first_is_beyond,
                        allow_gap,
                    };
                    let is_gap = wanted.is_none_or(|wanted| wanted < 5);
                    let may_lose = is_gap
                        && match origin {
                            StoreOrigin::Fresh => holds_ours,
                            StoreOrigin::Restored => is_known || holds_ours,
                            StoreOrigin::Existing => first_is_beyond,
                        };
                    let decided = truncation(&reach);
                    match decided {
                        Truncation::Refuse => assert!(may_lose && !allow_gap, "{reach:?}"),
                        Truncation::AllowedGap => assert!(may_lose && allow_gap, "{reach:?}"),
                        Truncation::Warn => {
                            let is_existing = origin == StoreOrigin::Existing;
                            assert!(is_gap && !may_lose && is_existing, "{reach:?}");
                        }
                        Truncation::Whole => assert!(!may_lose, "{reach:?}"),
                    }
                    refused += usize::from(decided == Truncation::Refuse);
                }
            }
        }
    }
    assert!(refused > 0);
}
