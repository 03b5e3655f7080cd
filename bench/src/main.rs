//! The `ankusa-bench` command.

fn main() {}
