//! `clearshot train --devices N`: the same command in N processes of this machine, started by the mpiexec of the MPI library.

use anyhow::{Context, Result};
use clearshot_train::distributed::{Launch, mpiexec};
use std::process::Command;

/// Whether this process is one of several that train together, and not the one that speaks.
pub fn is_silent() -> bool {
    matches!(Launch::from_environment(), Ok(Some(launch)) if launch.rank > 0)
}

/// Whether this process has been started among others.
pub fn is_started() -> Result<bool> {
    Ok(Launch::from_environment()?.is_some())
}

/// Runs this very command in so many processes, and waits for them.
pub fn start(devices: usize) -> Result<u8> {
    let mpiexec = mpiexec()?;
    let mut command = Command::new(&mpiexec);
    let version = Command::new(&mpiexec).arg("--version").output();
    if version.is_ok_and(|v| String::from_utf8_lossy(&v.stdout).contains("HYDRA")) {
        // A rank that dies is named by the others, which then end: mpiexec would end them before.
        command.arg("-disable-auto-cleanup");
    }
    let own = std::env::current_exe().context("this program's own file is not to be found")?;
    command.arg("-n").arg(devices.to_string()).arg(own).args(std::env::args_os().skip(1));
    // Ctrl-C reaches the ranks, which write a checkpoint; this process waits for them.
    crate::interrupt::finishing("the ranks finish their iteration and write a checkpoint");
    let status = command.status().with_context(|| format!("{} cannot be run", mpiexec.display()))?;
    Ok(status.code().map_or(1, |code| u8::try_from(code).unwrap_or(1)))
}
