//! Drills and the simulation: what was acked is still there.
