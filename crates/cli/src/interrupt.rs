//! Ctrl-C (and termination requests): half-written files are removed (those of a training run by the next run in its
//! folder), and the program exits with the usual status for that signal: 130 for Ctrl-C.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

static ENDING: AtomicBool = AtomicBool::new(false);
static FINISHING: OnceLock<(Arc<AtomicBool>, &'static str)> = OnceLock::new();

/// From now on. Where the system has no signals, or refuses, the program is ended as any other is.
pub fn listen() {
    #[cfg(unix)]
    {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
        let mut signals = match signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP]) {
            Ok(signals) => signals,
            Err(e) => return eprintln!("clearshot: Ctrl-C may leave incomplete files behind: {e}"),
        };
        std::thread::spawn(move || {
            for signal in signals.forever() {
                if let Some((flag, says)) = FINISHING.get()
                    && !flag.swap(true, Ordering::SeqCst)
                {
                    eprintln!("\n{says}; press Ctrl-C again to stop at once");
                    continue;
                }
                ENDING.store(true, Ordering::SeqCst);
                let unfinished = clearshot_image::discard_unfinished();
                let left = match FINISHING.get() {
                    Some(_) => {
                        "a checkpoint that was being written is lost, earlier ones are complete".to_string()
                    }
                    None if unfinished.is_empty() => "no incomplete file is left".to_string(),
                    None => {
                        let places: Vec<String> =
                            unfinished.iter().map(|p| p.display().to_string()).collect();
                        format!("{} is incomplete, and the same command completes it", places.join(", "))
                    }
                };
                eprintln!("\nclearshot: interrupted; {left}");
                std::process::exit(128 + signal);
            }
        });
    }
}

/// A flag that the first signal sets, for work that comes to an end by itself; the second ends the program. What the
/// first prints is that of the first caller.
pub fn finishing(says: &'static str) -> Arc<AtomicBool> {
    Arc::clone(&FINISHING.get_or_init(|| (Arc::default(), says)).0)
}

/// Does not return while the program is being ended: errors that come of files being taken away are not printed.
pub fn hold_if_ending() {
    while ENDING.load(Ordering::SeqCst) {
        std::thread::park();
    }
}
