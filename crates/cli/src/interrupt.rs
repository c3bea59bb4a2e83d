//! Ctrl-C (and a request to end): what is half written is taken away, and the program ends with status 130.

use std::sync::atomic::{AtomicBool, Ordering};

/// What a shell reports of a program ended by Ctrl-C.
const STATUS: i32 = 130;

static ENDING: AtomicBool = AtomicBool::new(false);

/// From now on. Where the system refuses, the program is ended as any other is.
pub fn listen() {
    let end = || {
        if ENDING.swap(true, Ordering::SeqCst) {
            return;
        }
        clearshot_image::discard_unfinished();
        eprintln!("\nclearshot: interrupted; nothing half written is left");
        std::process::exit(STATUS);
    };
    if let Err(e) = ctrlc::set_handler(end) {
        eprintln!("clearshot: Ctrl-C may leave half-written files behind: {e}");
    }
}

/// Does not return while the program is being ended: errors that come of files being taken away are not told.
pub fn hold_if_ending() {
    while ENDING.load(Ordering::SeqCst) {
        std::thread::park();
    }
}
