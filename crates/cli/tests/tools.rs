//! The tools for performance as users meet them: profiles of training and of restoring, and settings found by measuring.

#[allow(dead_code)]
mod measured;
mod program;

use measured::{conditional, model};
use program::{clearshot, folder, must, refused};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// A training run of a moment.
const TINY: &str = "experiment=default trainer.device=cpu trainer.crop=16 trainer.batch=4 model.network.channels=[4,8] model.network.blocks=1 \
                    data.sizes=[32] data.pool=4 validation.images=4 validation.crop=16 validation.every=4 calibration.images=0 schedule.warm_up=2";

fn json_of(path: PathBuf) -> Value {
    serde_json::from_str(&std::fs::read_to_string(&path).expect("a file")).expect("JSON")
}

fn percent(profile: &Value) -> f64 {
    profile["phases"].as_array().expect("phases").iter().filter_map(|p| p["percent"].as_f64()).sum()
}

fn has(profile: &Value, phase: &str) -> bool {
    profile["phases"].as_array().expect("phases").iter().any(|p| p["phase"] == phase)
}

#[test]
fn a_training_run_is_profiled_from_the_command_line() {
    let at = folder("tools_profile_train");
    let said = must(&format!("profile train {TINY} --profile p --json"), &at);
    let profile: Value = serde_json::from_str(said.trim()).expect("JSON");
    assert_eq!(profile["iterations"], 6);
    assert!((percent(&profile) - 100.0).abs() < 1e-6);
    for phase in ["waiting for data", "copying", "forward", "backward", "optimiser"] {
        assert!(has(&profile, phase), "{phase}: {profile}");
    }
    let trace = json_of(at.join("p/trace.json"));
    assert!(trace["traceEvents"].as_array().is_some_and(|e| e.len() > 100));
    let again = refused(&format!("profile train {TINY} --profile p"), &at);
    assert!(again.contains("--replace-profile"), "{again}");
    let text = must(
        &format!("profile train {TINY} --profile p --replace-profile --active 1 --repeat 1 --profile-memory"),
        &at,
    );
    for words in ["phase", "forward", "planned memory", "memory of the process", "1 iterations"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    // As the pages ask for it.
    must(
        &format!("train {TINY} trainer.iterations=6 debug=profile_memory debug.active=3 --out run --quiet"),
        &at,
    );
    let memory = std::fs::read_to_string(at.join("run/profile/memory.csv")).expect("a table");
    assert!(
        memory.starts_with("phase,iteration,seconds,allocated,reserved,free,growth\n")
            && memory.lines().count() > 10
    );
    assert!(
        json_of(at.join("run/settings.json"))
            .as_array()
            .is_some_and(|s| s.iter().any(|s| s["key"] == "trainer.batch" && s["value"] == 4))
    );
}

fn noisy(at: &Path) -> String {
    must("synth --scene filaments --count 1 --size 96x96 --peak 100 --out scene --seed 3", at);
    let first =
        std::fs::read_dir(at.join("scene/noisy")).expect("pictures").flatten().next().expect("a picture");
    first.path().display().to_string()
}

#[test]
fn restoring_is_profiled_and_gives_the_same_file() {
    let at = folder("tools_profile_restore");
    model(&at, "m", 1, 2, conditional());
    let options = format!("{} --model m.clearshot --gain 1 --offset 0 --read-noise 2 --tile 64", noisy(&at));
    must(&format!("restore {options} -o plain.npy"), &at);
    let said = must(&format!("profile restore {options} -o profiled.npy --profile p"), &at);
    assert!(said.contains("forward") && said.contains("ui.perfetto.dev"), "{said}");
    assert_eq!(
        std::fs::read(at.join("plain.npy")).expect("plain"),
        std::fs::read(at.join("profiled.npy")).expect("profiled")
    );
    let profile = json_of(at.join("p/profile.json"));
    for phase in ["decoding", "copying", "forward", "tiling", "writing"] {
        assert!(has(&profile, phase), "{phase}: {profile}");
    }
    assert!((percent(&profile) - 100.0).abs() < 1e-6);
    assert!(
        std::fs::read_to_string(at.join("p/stacks.txt"))
            .expect("stacks")
            .lines()
            .any(|l| l.starts_with("restoring;network;forward "))
    );
}

#[test]
fn tuned_settings_are_used_by_train_and_restore() {
    let at = folder("tools_tune");
    model(&at, "m", 1, 2, conditional());
    let found: Value = serde_json::from_str(
        must(&format!("tune {TINY} --restore --model m.clearshot --size 64 --seconds 2 --json"), &at).trim(),
    )
    .expect("JSON");
    assert!(found["training"]["trials"].as_array().is_some_and(|t| !t.is_empty()), "{found}");
    assert!(found["restoring"]["trials"].as_array().is_some_and(|t| !t.is_empty()), "{found}");
    assert_eq!(json_of(at.join("configs/performance/auto_tuned.json"))["training"], found["training"]);
    let again = refused(&format!("tune {TINY} --seconds 1"), &at);
    assert!(again.contains("--force"), "{again}");
    // A key on the command line goes before what was found, so the batch is left out of it here.
    let untold = TINY.replace("trainer.batch=4", "");
    let out =
        clearshot(&format!("train {untold} trainer.iterations=2 performance=auto_tuned --out run"), &at);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{said}");
    let batch = found["training"]["best"]["batch"].to_string();
    assert!(said.lines().any(|l| l.contains("trainer.batch") && l.ends_with(&format!(" {batch}"))), "{said}");
    let settings = json_of(at.join("run/settings.json"));
    let value = |key: &str| {
        settings.as_array().and_then(|s| s.iter().find(|s| s["key"] == key)).map(|s| s["value"].clone())
    };
    for key in ["batch", "precision", "threads", "workers", "ahead", "compile_mode"] {
        let group = match key {
            "batch" => "trainer",
            "compile_mode" => "model",
            _ => "performance",
        };
        assert_eq!(value(&format!("{group}.{key}")).as_ref(), Some(&found["training"]["best"][key]), "{key}");
    }
    must(
        &format!("train {untold} trainer.iterations=2 performance=auto_tuned trainer.batch=3 --out told"),
        &at,
    );
    let told = json_of(at.join("told/settings.json"));
    assert!(
        told.as_array().is_some_and(|s| s.iter().any(|s| s["key"] == "trainer.batch" && s["value"] == 3)),
        "{told}"
    );
    // Results do not depend on any of it.
    let options = format!("{} --model m.clearshot --gain 1 --offset 0 --read-noise 2", noisy(&at));
    must(&format!("restore {options} -o plain.npy"), &at);
    must(&format!("restore {options} -o tuned.npy --performance auto_tuned"), &at);
    assert_eq!(
        std::fs::read(at.join("plain.npy")).expect("plain"),
        std::fs::read(at.join("tuned.npy")).expect("tuned")
    );
    let missing = refused(&format!("restore {options} -o no.npy --performance nowhere.yaml"), &at);
    assert!(missing.contains("nowhere.yaml"), "{missing}");
}

/// A number of jobs is proposed from the files at hand: one where there is time for all, else as many as end in time or as there are files.
#[test]
fn a_number_of_parts_is_proposed() {
    let at = folder("tools_jobs");
    model(&at, "m", 1, 2, conditional());
    must("synth --scene nuclei --count 5 --size 64x64 --peak 40 --out data --seed 5", &at);
    std::fs::write(at.join("data/noisy/broken.tif"), b"II*\0").expect("a file");
    let plan = |seconds: u32| -> Value {
        let said = must(
            &format!("plan data/noisy --part auto --part-seconds {seconds} --model m.clearshot --json"),
            &at,
        );
        serde_json::from_str(said.trim()).expect("JSON")
    };
    let all = plan(100_000);
    assert_eq!(
        (&all["files"], &all["parts"], &all["pixels"]),
        (&5.into(), &1.into(), &20480.into()),
        "{all}"
    );
    assert!(all["unreadable"][0][0].as_str().is_some_and(|name| name.ends_with("broken.tif")), "{all}");
    assert!(
        all["memory_bytes"].as_u64() > Some(1 << 20) && all["longest_seconds"] == all["alone_seconds"],
        "{all}"
    );
    let quick = plan(1);
    assert!(quick["parts"] == 5 || quick["longest_seconds"].as_f64() <= Some(1.0), "{quick}");
    let said = must("plan data/noisy --part auto --model m.clearshot", &at);
    assert!(said.contains("--array=0-0") && said.contains("left out: data/noisy/broken.tif"), "{said}");
    for (wrong, words) in [
        ("plan data/noisy", "--part"),
        ("plan --part auto", "IMAGES"),
        ("plan nowhere --part auto", "nowhere"),
    ] {
        let said = refused(wrong, &at);
        assert!(said.contains(words), "{wrong}: {said}");
    }
}
