//! `clearshot train --devices N`: runs the same command in N processes on this machine, started by the mpiexec of the
//! MPI library.

use anyhow::{Context, Result};
use clearshot_train::distributed::{Keeper, Launch, mpiexec};
use std::process::Command;
use std::time::Duration;

/// How long a rank stays after its last words.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Whether this process is one of several that train together, and not the one that speaks.
pub fn is_silent() -> bool {
    matches!(Launch::from_environment(), Ok(Some(launch)) if launch.rank > 0)
}

/// Whether this process has been started among others.
pub fn is_started() -> Result<bool> {
    Ok(Launch::from_environment()?.is_some())
}

/// Says why training failed. mpiexec ends all ranks when one has ended, so it stays until the others have said it too.
pub fn told(error: anyhow::Error) -> Result<u8> {
    let Ok(Some(launch)) = Launch::from_environment() else { return Err(error) };
    if launch.size == 1 {
        return Err(error);
    }
    eprintln!("clearshot: rank {}: {}", launch.rank, crate::failure::worded(&error));
    std::thread::sleep(LAST_WORDS);
    Ok(crate::FAILURE)
}

/// Runs this very command in so many processes, and waits for them.
pub fn start(devices: usize) -> Result<u8> {
    let mpiexec = mpiexec()?;
    let mut command = Command::new(&mpiexec);
    let keeper = Keeper::start().context("no free port on this machine for messages of the ranks")?;
    let (name, value) = keeper.variable();
    command.env(name, value);
    let own = std::env::current_exe().context("the executable of this program was not found")?;
    command.arg("-n").arg(devices.to_string()).arg(own).args(std::env::args_os().skip(1));
    // Ctrl-C reaches the ranks, which write a checkpoint; this process waits for them.
    crate::interrupt::finishing("the ranks finish their iteration and write a checkpoint");
    let status = command.status().with_context(|| format!("{} cannot be run", mpiexec.display()))?;
    if status.success() {
        return Ok(crate::SUCCESS);
    }
    if let Some(fault) = keeper.fault() {
        eprintln!("clearshot: {fault}; complete checkpoints are intact; resume with --resume");
    }
    Ok(status
        .code()
        .and_then(|code| u8::try_from(code).ok())
        .filter(|code| *code > 0)
        .unwrap_or(crate::FAILURE))
}
