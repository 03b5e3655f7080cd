//! The `ankusa-bench` command: parses, runs one bench, says how it ended.

use std::process::ExitCode;

use ankusa_bench::cli;

fn main() -> ExitCode {
    cli::main()
}
