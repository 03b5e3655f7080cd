//! Load generator and benches.
