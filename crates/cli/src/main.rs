//! The program's binary; see the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(clearshot_cli::run(std::env::args_os()))
}
