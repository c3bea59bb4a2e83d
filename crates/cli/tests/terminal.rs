//! What is shown on a terminal and not in a pipe: how far things are and how long they will take.

mod program;

use program::{clearshot, folder, must, refused};
use std::path::Path;
use std::process::Command;

/// What a run shows on a terminal of its own; none without util-linux's `script`, which makes one.
fn on_a_terminal(arguments: &str, folder: &Path) -> Option<String> {
    let line = format!("{} {arguments}", env!("CARGO_BIN_EXE_clearshot"));
    let made = Command::new("script").args(["-qec", &line, "/dev/null"]).current_dir(folder).output();
    match made {
        Ok(out) => {
            let said = String::from_utf8_lossy(&out.stdout).into_owned();
            assert!(out.status.success(), "{arguments}: {said}");
            Some(said)
        }
        Err(e) => {
            eprintln!("skipped: there is no `script` to make a terminal with: {e}");
            None
        }
    }
}

#[test]
fn progress_with_the_time_left_is_for_terminals() {
    let at = folder("terminal");
    must("synth --scene nuclei --count 1 --peak 20 --size 64x64 --out s", &at);
    let restore =
        "restore s/noisy/nuclei_0000.tif --gain 1 --read-noise 1.5 --samples 1 --steps 6 --threads 1";
    let piped = clearshot(&format!("{restore} -o piped.tif"), &at);
    let piped =
        format!("{}{}", String::from_utf8_lossy(&piped.stdout), String::from_utf8_lossy(&piped.stderr));
    assert!(piped.contains("plan: ") && !piped.contains(" left") && !piped.contains('\x1b'), "{piped}");
    let Some(shown) = on_a_terminal(&format!("{restore} -o shown.tif"), &at) else { return };
    assert!(shown.contains(" %, ") && shown.contains(" s left"), "{shown}");
    // The line is wiped before the last word.
    let last = shown.rsplit('\r').find(|part| part.contains("shown.tif (")).expect("the result");
    assert!(last.starts_with("\x1b[K") && !last.contains(" left"), "{last}");
    let quiet = on_a_terminal(&format!("{restore} -o quiet.tif --quiet"), &at).expect("a terminal");
    assert!(!quiet.contains(" left"), "{quiet}");
    assert!(refused(&format!("{restore} -o shown.tif --seed 2"), &at).contains("--force"));
}

#[test]
fn training_draws_on_terminals_only() {
    let at = folder("terminal_train");
    let train = "train experiment=default trainer.device=cpu trainer.crop=16 trainer.batch=4 trainer.iterations=6 model.network.channels=[4,8] model.network.blocks=1 data.sizes=[32] data.pool=4 validation.images=4 validation.crop=16 validation.every=0 records.every=2";
    let piped = clearshot(&format!("{train} --out piped"), &at);
    let piped =
        format!("{}{}", String::from_utf8_lossy(&piped.stdout), String::from_utf8_lossy(&piped.stderr));
    assert!(piped.contains("done: 6 iterations") && !piped.contains('\x1b'), "{piped}");
    let Some(shown) = on_a_terminal(&format!("{train} --out shown"), &at) else { return };
    assert!(shown.contains('\x1b') && shown.contains("left"), "{shown}");
}
