//! `clearshot train --devices N`: runs the same command in N processes on this machine, which find each other over TCP.

use anyhow::{Context, Result};
use clearshot_train::distributed::{Fault, Launch, Meeting, Peer, Way};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a rank stays after its last words under mpiexec, which ends all ranks when one has ended.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// How long the others have to end by themselves when one has ended with an error.
const GRACE: Duration = Duration::from_secs(15);
/// From one look at the processes to the next.
const PAUSE: Duration = Duration::from_millis(10);

fn launch() -> Result<Option<Launch>> {
    Ok(Launch::from_environment()?.filter(|launch| launch.size > 1))
}

/// Whether this process is one of several that train together, and not the one that speaks.
pub fn is_silent() -> bool {
    matches!(launch(), Ok(Some(launch)) if launch.rank > 0)
}

/// Whether this process has been started among others.
pub fn is_started() -> Result<bool> {
    Ok(launch()?.is_some())
}

/// Says why training failed, with the rank where there are several.
pub fn told(error: anyhow::Error) -> Result<u8> {
    let Ok(Some(launch)) = launch() else { return Err(error) };
    // In one piece: the others say theirs at the same moment.
    let text = format!("clearshot: rank {}: {}\n", launch.rank, crate::failure::worded(&error));
    let _ = std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes());
    if launch.way == Way::Mpi {
        std::thread::sleep(LAST_WORDS);
    }
    Ok(crate::FAILURE)
}

/// Lets a process of [`start`] finish when the one that started it asks for that, or is gone: its end of the standard input is closed then.
pub fn follow_parent(stop: &Arc<AtomicBool>) {
    if matches!(launch(), Ok(Some(launch)) if matches!(launch.way, Way::Parent(_))) {
        let stop = Arc::clone(stop);
        std::thread::spawn(move || {
            // However it ends.
            let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            stop.store(true, Ordering::SeqCst);
        });
    }
}

/// Runs this very command in so many processes, and waits for them.
pub fn start(devices: usize, wait: Duration) -> Result<u8> {
    let meeting =
        Meeting::of_children(devices, wait).context("no free port on this machine for the ranks")?;
    let own = std::env::current_exe().context("the executable of this program was not found")?;
    let stop = crate::interrupt::finishing("the ranks finish their iteration and write a checkpoint");
    let mut ranks = Ranks(vec![]);
    for rank in 0..devices {
        let mut command = Command::new(&own);
        command.args(std::env::args_os().skip(1)).envs(meeting.variables(rank)).stdin(Stdio::piped());
        ranks.0.push(command.spawn().with_context(|| format!("{} cannot be run", own.display()))?);
    }
    let (mut failed, mut ended) = (None::<(usize, ExitStatus, Instant)>, false);
    loop {
        if stop.load(Ordering::SeqCst) {
            // What they take for a request to finish.
            ranks.0.iter_mut().for_each(|rank| drop(rank.stdin.take()));
        }
        let mut running = 0;
        for (rank, process) in ranks.0.iter_mut().enumerate() {
            match process.try_wait().context("the process of a rank cannot be watched")? {
                None => running += 1,
                Some(status) if !status.success() => match &mut failed {
                    None => {
                        failed = Some((rank, status, Instant::now()));
                        meeting.refuse(&format!("rank {rank} has ended; see its own message"));
                    }
                    // The others end because of one that was killed.
                    Some(first) if !ended && killed(status).is_some() && killed(first.1).is_none() => {
                        (first.0, first.1) = (rank, status);
                    }
                    Some(_) => {}
                },
                Some(_) => {}
            }
        }
        if running == 0 {
            break;
        }
        if failed.is_some_and(|(.., at)| at.elapsed() > GRACE) {
            ranks.end();
            ended = true;
        }
        std::thread::sleep(PAUSE);
    }
    let Some((rank, status, _)) = failed else { return Ok(crate::SUCCESS) };
    if let Some(why) = killed(status) {
        let peer = Peer { process: ranks.0[rank].id(), ..Peer::here() }.to_string();
        let fault = Fault { rank, peer, why };
        eprintln!("clearshot: {fault}; complete checkpoints are intact; resume with --resume");
    }
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.filter(|code| *code > 0).unwrap_or(crate::FAILURE))
}

/// The processes of all ranks, which do not outlive an error here.
struct Ranks(Vec<Child>);

impl Ranks {
    fn end(&mut self) {
        for process in &mut self.0 {
            // One that has ended is left as it is.
            let _ = process.kill();
        }
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        self.end();
        for process in &mut self.0 {
            let _ = process.wait();
        }
    }
}

/// By which signal a process was killed.
#[cfg(unix)]
fn killed(status: ExitStatus) -> Option<String> {
    use std::os::unix::process::ExitStatusExt;
    status.signal().map(|signal| match signal {
        9 => "it was killed (signal 9; without memory, the system does so)".to_string(),
        signal => format!("it was killed or has crashed (signal {signal})"),
    })
}

#[cfg(not(unix))]
fn killed(_: ExitStatus) -> Option<String> {
    None
}
