//! The command `flyball`.

use std::process::ExitCode;

fn main() -> ExitCode {
    flyball::cli::main()
}
