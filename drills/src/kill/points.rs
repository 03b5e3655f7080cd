//! The points of the code at which the drill lets the node kill itself, and how it gets there.
//!
//! Every run of the drill goes through all of them. A point that is in the code and not in this
//! table, or the other way round, fails a test; one that the node never comes to fails the drill.

use crate::rng::Rng;

/// What brings the node to a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Its first boot, in an empty directory.
    FirstBoot,
    /// Any later boot.
    Boot,
    /// Hooks coming in.
    Load,
    /// Hooks coming in, some of which stay, so that old segments are nearly empty.
    LoadWithBacklog,
    /// Hooks coming in for a while, then a clean stop.
    Stop,
}

/// One point.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    /// Its name in the code.
    pub name: &'static str,
    /// What brings the node there.
    pub way: Way,
    /// It may die there the first time or up to this one.
    pub count_max: u64,
}

const fn at(name: &'static str, way: Way, count_max: u64) -> Point {
    Point {
        name,
        way,
        count_max,
    }
}

/// All of them. What happens once in each shard happens twice in a boot of the drill's node.
pub const POINTS: &[Point] = &[
    // The data directory, and the first slot of each shard.
    at("home.written", Way::FirstBoot, 1),
    at("home.renamed", Way::FirstBoot, 1),
    at("slot.filled", Way::FirstBoot, 2),
    at("slot.renamed", Way::FirstBoot, 1),
    // The opening of a shard.
    at("open.surveyed", Way::Boot, 2),
    at("open.loaded", Way::Boot, 2),
    at("open.scanned", Way::Boot, 2),
    at("open.slot_chosen", Way::Boot, 2),
    at("open.rewritten", Way::Boot, 2),
    at("open.header_written", Way::Boot, 2),
    at("open.header_synced", Way::Boot, 2),
    at("open.done", Way::Boot, 2),
    // From opened to serving.
    at("boot.opened", Way::Boot, 2),
    at("boot.claims_slice", Way::Boot, 2),
    at("boot.claims_restored", Way::Boot, 2),
    at("boot.sinks_numbered", Way::Boot, 2),
    at("boot.listening", Way::Boot, 2),
    // A group, and a new segment.
    at("commit.built", Way::Load, 300),
    at("commit.submitted", Way::Load, 300),
    at("commit.settled", Way::Load, 300),
    at("segment.chosen", Way::Load, 2),
    at("segment.header_written", Way::Load, 2),
    // Relocation.
    at("relocate.built", Way::LoadWithBacklog, 2),
    at("relocate.submitted", Way::LoadWithBacklog, 2),
    // Dedupe rows, and the checkpoint that lists them.
    at("generation.created", Way::Stop, 1),
    at("generation.written", Way::Stop, 1),
    at("generation.synced", Way::Stop, 1),
    at("checkpoint.written", Way::Stop, 2),
    at("checkpoint.synced", Way::Stop, 2),
    at("checkpoint.renamed", Way::Stop, 2),
    at("checkpoint.named", Way::Stop, 2),
    at("checkpoint.pruned", Way::Stop, 2),
    at("close.claimed", Way::Stop, 2),
    at("close.done", Way::Stop, 2),
];

/// The points that are come to on these ways, in an order of the seed, dealt out over `rounds`.
pub fn deal(rng: &mut Rng, rounds: usize, of: impl Fn(Way) -> bool) -> Vec<Vec<Point>> {
    let mut points: Vec<Point> = POINTS.iter().copied().filter(|p| of(p.way)).collect();
    for last in (1..points.len()).rev() {
        let other = rng.range(0, last as u64) as usize;
        points.swap(last, other);
    }
    let mut dealt = vec![Vec::new(); rounds.max(1)];
    for (at, point) in points.into_iter().enumerate() {
        let round = at % rounds.max(1);
        dealt[round].push(point);
    }
    dealt
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    fn in_code(dir: &Path, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                in_code(&path, found);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                let names = text.split("mutations::point(\"").skip(1);
                let names = names.filter_map(|rest| rest.split('"').next());
                found.extend(names.map(str::to_owned));
            }
        }
    }

    #[test]
    fn the_points_of_the_code_and_of_the_drill_are_the_same() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut code = BTreeSet::new();
        for part in ["wal/src", "engine/src", "recovery/src"] {
            in_code(&root.join(part), &mut code);
        }
        let drill: BTreeSet<String> = POINTS.iter().map(|p| p.name.to_owned()).collect();
        assert_eq!(drill.len(), POINTS.len(), "a point is named twice");
        let dual = crate::dual::points::POINTS.iter();
        let dual: BTreeSet<String> = dual.map(|p| p.name.to_owned()).collect();
        assert!(drill.is_disjoint(&dual), "a point is in both tables");
        assert_eq!(code, drill.union(&dual).cloned().collect());
    }

    #[test]
    fn every_point_is_dealt_out_once() {
        for rounds in [1, 3, 5, 40] {
            let dealt = deal(&mut Rng::new(7), rounds, |_| true);
            assert_eq!(dealt.len(), rounds);
            let names: BTreeSet<&str> = dealt.iter().flatten().map(|p| p.name).collect();
            assert_eq!(names.len(), POINTS.len());
        }
    }
}
