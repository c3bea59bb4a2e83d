//! Ctrl-C (and a request to end): what is half written is taken away, and the program ends with the status that shells
//! give a program ended by that signal: 130 for Ctrl-C.

use std::sync::atomic::{AtomicBool, Ordering};

static ENDING: AtomicBool = AtomicBool::new(false);

/// From now on. Where the system has no signals, or refuses, the program is ended as any other is.
pub fn listen() {
    #[cfg(unix)]
    {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
        let mut signals = match signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP]) {
            Ok(signals) => signals,
            Err(e) => return eprintln!("clearshot: Ctrl-C may leave half-written files behind: {e}"),
        };
        std::thread::spawn(move || {
            if let Some(signal) = signals.forever().next() {
                ENDING.store(true, Ordering::SeqCst);
                clearshot_image::discard_unfinished();
                eprintln!("\nclearshot: interrupted; nothing half written is left");
                std::process::exit(128 + signal);
            }
        });
    }
}

/// Does not return while the program is being ended: errors that come of files being taken away are not told.
pub fn hold_if_ending() {
    while ENDING.load(Ordering::SeqCst) {
        std::thread::park();
    }
}
