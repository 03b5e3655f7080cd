//! The `ankusa` command.

fn main() {}
