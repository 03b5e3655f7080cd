//! The `ankusa` command: hands the arguments to the command line and ends with its code.

use std::process::ExitCode;

fn main() -> ExitCode {
    ankusa_engine::cli::run(std::env::args_os()).into()
}
