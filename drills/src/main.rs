//! The `ankusa-drills` command.

fn main() {}
