//! Training as users meet it: what a run leaves behind, however it ends.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A run of a second or so.
const TINY: &[&str] = &[
    "experiment=default",
    "trainer.device=cpu",
    "trainer.crop=16",
    "trainer.batch=4",
    "model.network.channels=[4,8]",
    "model.network.blocks=1",
    "data.sizes=[32]",
    "data.pool=4",
    "validation.images=4",
    "validation.crop=16",
    "validation.every=4",
    "records.every=2",
    "checkpoint.every=2",
    "performance.threads=1",
    "schedule.warm_up=2",
];

fn program(changes: &[&str], out: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_clearshot"));
    command.arg("train").args(changes).arg("--out").arg(out).args(more);
    command
}

fn finished(output: Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("text");
    serde_json::from_str(text.lines().last().expect("a summary")).expect("JSON")
}

fn complaint(output: Output) -> String {
    assert!(!output.status.success());
    let text = String::from_utf8(output.stderr).expect("text");
    assert!(!text.contains("panicked"), "{text}");
    text
}

fn with<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [TINY, more].concat()
}

/// Checkpoints that bear a name, each with its iteration.
fn checkpoints(out: &Path) -> Vec<(u64, PathBuf)> {
    let Ok(entries) = std::fs::read_dir(out.join("checkpoints")) else { return vec![] };
    let of = |path: PathBuf| {
        let number = path.file_name()?.to_str()?.strip_prefix("iteration-")?.parse().ok()?;
        Some((number, path))
    };
    let mut all: Vec<(u64, PathBuf)> = entries.flatten().filter_map(|e| of(e.path())).collect();
    all.sort();
    all
}

/// Whether all of a checkpoint is there and can be read.
fn is_whole(path: &Path) -> bool {
    let json = |name: &str| {
        let text = std::fs::read_to_string(path.join(name)).unwrap_or_default();
        serde_json::from_str::<Value>(&text).is_ok()
    };
    json("progress.json")
        && json("config.json")
        && json("model/model.json")
        && path.join("states.safetensors").is_file()
}

fn wait_for(child: &mut Child, what: impl Fn() -> bool) {
    let start = Instant::now();
    while !what() && child.try_wait().expect("a child").is_none() {
        assert!(start.elapsed() < Duration::from_secs(60), "nothing happens");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_run_leaves_a_model_records_and_its_configuration() {
    let dir = tempfile::tempdir().expect("a folder");
    let out = dir.path().join("run");
    let summary =
        finished(program(&with(&["trainer.iterations=6"]), &out, &["--json"]).output().expect("a start"));
    assert_eq!((summary["ending"].as_str(), summary["iteration"].as_u64()), (Some("finished"), Some(6)));
    for file in ["config.yaml", "records.jsonl", "best.clearshot", "pictures/iteration-000000006.png"] {
        assert!(out.join(file).is_file(), "{file}");
    }
    let records = std::fs::read_to_string(out.join("records.jsonl")).expect("records");
    let rows: Vec<Value> = records.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
    let steps: Vec<u64> = rows.iter().map(|r| r["iteration"].as_u64().expect("a number")).collect();
    assert!(steps.is_sorted() && rows.iter().any(|r| r["psnr"].is_number()));
    // The same command again does not write over it.
    let text = complaint(program(&with(&["trainer.iterations=6"]), &out, &[]).output().expect("a start"));
    assert!(text.contains("--resume"), "{text}");
    // Twice as long by resuming.
    let summary = finished(
        program(&["trainer.iterations=8"], &out, &["--resume", "--json"]).output().expect("a start"),
    );
    assert_eq!(summary["iteration"], 8);
}

/// Weights that do not move never score better than the first time.
#[test]
fn a_run_ends_early_when_validations_no_longer_improve() {
    let dir = tempfile::tempdir().expect("a folder");
    let changes = with(&["trainer.iterations=200", "trainer.early_stop=2", "optimizer.rate=1e-30"]);
    let output = program(&changes, &dir.path().join("run"), &["--json"]).output().expect("a start");
    let summary = finished(output);
    // Validations after 4, 8 and 12 iterations, of which the last two are no better.
    assert_eq!((summary["ending"].as_str(), summary["iteration"].as_u64()), (Some("early stop"), Some(12)));
}

#[test]
fn errors_are_clear() {
    let dir = tempfile::tempdir().expect("a folder");
    let out = dir.path().join("run");
    let say = |changes: &[&str]| complaint(program(changes, &out, &[]).output().expect("a start"));
    let text = say(&with(&["trainer.iterations=4", "trainer.bach=2"]));
    assert!(text.contains("trainer.bach") && text.contains("trainer.batch"), "{text}");
    assert!(say(&["experiment=defualt"]).contains("default"));
    assert!(say(&[]).contains("experiment=NAME"));
    let text = say(&with(&[
        "trainer.iterations=4",
        "data.kind=pairs",
        "data.inputs=nowhere",
        "data.targets=nowhere",
    ]));
    assert!(text.contains("nowhere"), "{text}");
    let text = say(&with(&["trainer.iterations=4", "performance.precision=bf16"]));
    assert!(text.contains("GPU"), "{text}");
    // Unknown keys are refused, and errors of the validation are reported at the start.
    for (change, words) in [
        (
            "trainer.batch=-1",
            "trainer.batch (command line): found -1, and a whole number, or auto, is needed",
        ),
        ("data.sizes=32", "data.sizes (command line): found 32, and a list, [a, b], is needed"),
        (
            "data.camera.peak=[5]",
            "data.camera.peak (command line): found a list of 1, and a list of 2 values is needed",
        ),
        ("trainer.depth=0", "trainer.depth: 0; one plane or more"),
        (
            "validation.crop=15",
            "validation.crop: 15 x 15; an image of 15 x 15 pixels: the sizes must be multiples",
        ),
        ("validation.crop=48", "data.sizes: 32; crops of 48 pixels"),
        (
            "trainer.seconds=5",
            "trainer.iterations (command line) and trainer.seconds (command line) are given together",
        ),
    ] {
        let text = say(&with(&["trainer.iterations=4", change]));
        assert!(text.contains(words), "{change}: {text}");
        assert!(checkpoints(&out).is_empty(), "{change}");
    }
    let text = complaint(program(&[], &out, &["--resume"]).output().expect("a start"));
    assert!(text.contains("config.yaml"), "{text}");
    // A file where the folder should be.
    let file = dir.path().join("file");
    std::fs::write(&file, "x").expect("a file");
    let text = complaint(
        program(&with(&["trainer.iterations=4"]), &file.join("run"), &[]).output().expect("a start"),
    );
    assert!(text.contains("file"), "{text}");
}

#[cfg(unix)]
#[test]
fn an_interrupted_run_resumes_bit_identically() {
    let dir = tempfile::tempdir().expect("a folder");
    let changes = with(&["trainer.iterations=60", "checkpoint.every=0", "validation.every=0"]);
    let straight = dir.path().join("straight");
    let whole = finished(program(&changes, &straight, &["--json"]).output().expect("a start"));
    let out = dir.path().join("run");
    let mut child = program(&changes, &out, &["--quiet"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("a start");
    wait_for(&mut child, || out.join("records.jsonl").metadata().is_ok_and(|m| m.len() > 0));
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill");
    let status = child.wait().expect("an end");
    let left = checkpoints(&out);
    if status.code() == Some(0) {
        eprintln!("skipped: the run was faster than the signal");
        return;
    }
    assert_eq!(status.code(), Some(130));
    assert!(left.len() == 1 && left[0].0 < 60 && is_whole(&left[0].1), "{left:?}");
    let rest = finished(program(&[], &out, &["--resume", "--json"]).output().expect("a start"));
    assert_eq!(rest["digest"], whole["digest"]);
}

/// What is trained where runs are killed and disks filled: every task, and a model that is fitted to noisy images.
#[cfg(unix)]
fn tasks(at: &Path) -> Vec<Vec<String>> {
    let of = |task: &&str| with(&[task]).into_iter().map(String::from).collect();
    let kinds = ["conditional", "supervised", "noise2noise", "noise2void", "splitting"]
        .map(|k| format!("task.kind={k}"));
    let mut all: Vec<Vec<String>> = kinds.iter().map(|k| of(&k.as_str())).collect();
    begin(at);
    let fitted = [
        "experiment=adapt".into(),
        format!("model.init={}", at.join("first/best.clearshot").display()),
        format!("data.inputs={}", at.join("scenes/noisy").display()),
    ];
    let camera = ["data.gain=1", "data.offset=0", "data.read_noise=1", "validation.images=4"];
    let short = ["trainer.device=cpu", "trainer.crop=16", "trainer.seconds=null", "performance.threads=1"];
    all.push(fitted.into_iter().chain(camera.into_iter().chain(short).map(String::from)).collect());
    all
}

/// Killed at one moment after another: whatever has a checkpoint's name is whole, none that was there is lost,
/// and the run resumes bit-identically. `CLEARSHOT_KILLS` says how often.
#[cfg(unix)]
#[test]
fn a_killed_run_never_loses_a_checkpoint() {
    let kills: u64 = std::env::var("CLEARSHOT_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(10);
    let dir = tempfile::tempdir().expect("a folder");
    let tasks = tasks(dir.path());
    for (number, task) in tasks.iter().enumerate() {
        let out = dir.path().join(number.to_string());
        kill_again_and_again(task, &out, kills.div_ceil(tasks.len() as u64));
    }
}

#[cfg(unix)]
fn kill_again_and_again(task: &[String], at: &Path, kills: u64) {
    let more = ["trainer.iterations=4000", "checkpoint.every=1", "checkpoint.top=1", "validation.every=0"];
    let changes: Vec<&str> = task.iter().map(String::as_str).chain(more).collect();
    let out = at.join("run");
    let mut last = 0;
    for kill in 0..kills {
        let more: &[&str] = if last > 0 { &["--resume", "--quiet"] } else { &["--quiet"] };
        let changes: &[&str] = if last > 0 { &[] } else { &changes };
        let mut child = program(changes, &out, more).stdout(Stdio::null()).spawn().expect("a start");
        let newest = || checkpoints(&out).last().map_or(0, |c| c.0);
        wait_for(&mut child, || newest() > last + 1);
        // Somewhere between two checkpoints, or within one.
        std::thread::sleep(Duration::from_micros(kill * 7919 % 20_011));
        let before = newest();
        child.kill().expect("a kill");
        child.wait().expect("an end");
        let left = checkpoints(&out);
        assert!(left.iter().all(|(_, path)| is_whole(path)), "{left:?}");
        last = left.last().expect("a checkpoint").0;
        assert!(last >= before, "there was a checkpoint of {before}, and now the last is {last}");
    }
    let stop = (last + 3).to_string();
    let end =
        finished(program(&[], &out, &["--resume", "--json", "--stop-at", &stop]).output().expect("a start"));
    let straight = at.join("straight");
    let whole =
        finished(program(&changes, &straight, &["--json", "--stop-at", &stop]).output().expect("a start"));
    assert_eq!(end["digest"], whole["digest"], "{task:?}");
}

/// On a file system of its own that is too small. Needs the right to make one.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_reported_and_complete_files_are_kept() {
    let dir = tempfile::tempdir().expect("a folder");
    tasks(dir.path()).iter().for_each(|task| fill_a_disk(task));
}

#[cfg(target_os = "linux")]
fn fill_a_disk(task: &[String]) {
    let dir = tempfile::tempdir().expect("a folder");
    let more = ["trainer.iterations=400", "checkpoint.keep_every=1", "checkpoint.every=1"];
    let changes: Vec<String> =
        task.iter().map(String::as_str).chain(more).map(|c| format!("'{c}'")).collect();
    let script = format!(
        "mount -t tmpfs -o size=1m tmpfs {0} || exit 77; {1} train {2} --quiet --out {0}/run; code=$?; ls {0}/run/checkpoints; exit $code",
        dir.path().display(),
        env!("CARGO_BIN_EXE_clearshot"),
        changes.join(" "),
    );
    let output = Command::new("unshare").args(["--map-root-user", "--mount", "sh", "-c", &script]).output();
    let Some(output) = output.ok().filter(|o| o.status.code() != Some(77) && !o.stdout.is_empty()) else {
        eprintln!("skipped: no right to make a file system");
        return;
    };
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("disk is full"), "{task:?}: {text}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("iteration-"), "{text}");
}

fn clearshot(arguments: &[&str], at: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_clearshot")).current_dir(at).args(arguments).output().expect("a start")
}

/// A model of a few iterations in `first`, and noisy images in `scenes`.
fn begin(at: &Path) {
    finished(
        program(&with(&["trainer.iterations=8"]), &at.join("first"), &["--json"]).output().expect("a start"),
    );
    let made = clearshot(
        &["synth", "--scene", "nuclei", "--size", "160x160", "--count", "2", "--out", "scenes"],
        at,
    );
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

/// A model is fitted to noisy files by its own verb and before restoring, says what it gained, and leaves nothing but what was asked for.
#[test]
fn a_model_is_fitted_to_noisy_images() {
    let dir = tempfile::tempdir().expect("a folder");
    let at = dir.path();
    begin(at);
    let model = [
        "--model",
        "first/best.clearshot",
        "--gain",
        "1",
        "--offset",
        "0",
        "--read-noise",
        "1",
        "--device",
        "cpu",
        "--json",
    ];
    let short = [
        "--set",
        "trainer.crop=32",
        "--set",
        "trainer.iterations=20",
        "--set",
        "optimizer.rate=2e-3",
        "--keep",
    ];
    let adapt = [&["adapt", "scenes/noisy", "-o", "mine.clearshot"][..], &short, &model].concat();
    let said = finished(clearshot(&adapt, at));
    assert!(said["gain_db"].as_f64().is_some() && said["gain_error_db"].as_f64() > Some(0.0), "{said}");
    assert_eq!(
        (&said["model"], &said["iterations"]),
        (&Value::from("mine.clearshot"), &Value::from(20)),
        "{said}"
    );
    assert!(at.join("mine.clearshot").is_file() && !at.join("mine.run").exists());
    // Before restoring: what is restored with is what the record says.
    let restore =
        [&["restore", "scenes/noisy", "-o", "out", "--method", "model", "--adapt", "2"][..], &model].concat();
    let output = clearshot(&restore, at);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines: Vec<Value> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let adapted = lines.iter().find(|l| l["event"] == "adapt").expect("what it gained");
    let file = std::fs::read_dir(at.join("out")).expect("files").flatten().next().expect("a file").path();
    let info = clearshot(&["info", "--json", &file.display().to_string()], at);
    let text = String::from_utf8_lossy(&info.stdout);
    let kept = format!("\"kept\":{}", adapted["kept"]);
    assert!(text.replace(' ', "").contains(&kept), "{adapted} {text}");
}

/// A schedule shifted for finer images, a network that learns the variance of its steps by the bound, and terms that compare with the measurement: the keys of
/// `train`, what the model says of itself afterwards, and samples by the variance that it has learned.
#[test]
fn variances_are_learned_schedules_shifted_and_measurements_compared() {
    let dir = tempfile::tempdir().expect("a folder");
    let out = dir.path().join("run");
    let changes = [
        "trainer.iterations=4",
        "task.prediction=epsilon",
        "task.timesteps=50",
        "task.finer=2",
        "task.learned_variance=true",
        "task.bound.weight=0.5",
        "task.poisson.weight=0.01",
        "task.consistency.weight=0.02",
        "data.camera.blur=0",
        "records.every=1",
    ];
    finished(program(&with(&changes), &out, &["--json"]).output().expect("a start"));
    let records = std::fs::read_to_string(out.join("records.jsonl")).expect("records");
    let rows: Vec<Value> = records.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
    let with_terms: Vec<&Value> = rows.iter().filter(|r| r["term.bound"].is_number()).collect();
    assert!(!with_terms.is_empty(), "{records}");
    for row in with_terms {
        let number = |key: &str| row[key].as_f64().expect("a number");
        let sum = number("term.main")
            + number("term.error")
            + 0.5 * number("term.bound")
            + 0.01 * number("term.poisson")
            + 0.02 * number("term.consistency");
        assert!((number("loss") - sum).abs() < 1e-5 * sum.abs(), "{row}");
        assert!(number("term.poisson") > 0.0 && number("term.consistency") > 0.0, "{row}");
    }
    let model = clearshot_model::Model::load(&out.join("best.clearshot")).expect("a model");
    assert_eq!(model.network.out_channels(), 2 * model.about.channels);
    let clearshot_model::Task::Diffusion { process, .. } = &model.about.task else { panic!("diffusion") };
    let clearshot_model::Process::Timesteps { law, first, last, steps, finer } = process.clone() else {
        panic!("timesteps")
    };
    assert_eq!(finer, 2.0);
    // log(SNR) is lowered by 2 ln 2 at every timestep.
    let plain = clearshot_model::Process::Timesteps { law, first, last, steps, finer: 1.0 };
    let (shifted, plain) = (process.schedule().expect("levels"), plain.schedule().expect("levels"));
    for t in 0..steps {
        let [a, b] = [&shifted, &plain].map(|s| -2.0 * s.level(t).expect("a level").ratio().ln());
        assert!((b - a - 2.0 * 2f64.ln()).abs() < 1e-9, "{t}: {a} {b}");
    }
    // Samples: the learned variance is another one than the fixed one, and only a network that has one is asked for it.
    let clearshot = |line: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_clearshot"));
        command.current_dir(dir.path()).args(line.split_whitespace()).output().expect("a start")
    };
    let made = clearshot("synth --scene nuclei --size 64x64 --peak 50 --seed 3 --out scene");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let sample = |sampler: &str| {
        let line = format!(
            "restore scene/noisy/nuclei_0000.tif -o {}.tif --model run/best.clearshot --method model --samples 1 --estimate samples --steps 5 --float --device cpu --threads 1 --quiet --gain 1 --offset 0 --read-noise 1.5 --sampler {sampler}",
            sampler.replace([':', '='], "_")
        );
        let out = clearshot(&line);
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let image = clearshot_image::Image::open(
            dir.path().join(format!("{}.tif", sampler.replace([':', '='], "_"))),
        )
        .expect("an image");
        image.read_f64(&image.whole()).expect("values")
    };
    let (fixed, learned) = (sample("ddpm"), sample("ddpm:learned=1"));
    assert!(fixed.iter().zip(&learned).any(|(a, b)| a != b) && learned.iter().all(|v| v.is_finite()));
    let refused = complaint(clearshot(
        "restore scene/noisy/nuclei_0000.tif -o no.tif --samples 1 --steps 5 --sampler ddpm:learned=1 --method model --device cpu --gain 1 --offset 0 --read-noise 1.5",
    ));
    assert!(refused.contains("learned variance"), "{refused}");
    // What does not go together.
    let say = |changes: &[&str]| {
        complaint(program(&with(changes), &dir.path().join("no"), &[]).output().expect("a start"))
    };
    assert!(
        say(&["task.learned_variance=true", "task.bound.weight=0.001"]).contains("task.prediction=epsilon")
    );
    assert!(say(&["task.prediction=epsilon", "task.learned_variance=true"]).contains("task.bound.weight"));
    assert!(say(&["task.bound.weight=0.001"]).contains("task.learned_variance=true"));
    assert!(say(&["task.finer=2"]).contains("task.mean"));
    assert!(say(&["task.poisson.weight=1"]).contains("data.camera.blur=0"));
    let text = say(&["task.kind=splitting", "task.consistency.weight=1", "data.camera.blur=0"]);
    assert!(text.contains("task.consistency.weight"), "{text}");
    assert!(say(&["model.init=WRONG"]).contains("default"));
}

/// A table of betas of one's own: the same bits as a law that makes the same table, what the model says of itself, and samples by its timesteps.
#[test]
fn betas_are_a_law_or_a_table() {
    let dir = tempfile::tempdir().expect("a folder");
    let run = |name: &str, changes: &[&str]| {
        let out = dir.path().join(name);
        let all = [
            &[
                "trainer.iterations=4",
                "task.prediction=epsilon",
                "validation.every=0",
                "calibration.images=0",
            ],
            changes,
        ]
        .concat();
        finished(program(&with(&all), &out, &["--json"]).output().expect("a start"))
    };
    let law = run("law", &["task.betas=[0.1,0.5]", "task.timesteps=5"]);
    let table = run("table", &["task.schedule=custom", "task.betas=[0.1,0.2,0.3,0.4,0.5]"]);
    assert_eq!(law["digest"], table["digest"]);
    let model = clearshot_model::Model::load(&dir.path().join("table/best.clearshot")).expect("a model");
    let clearshot_model::Task::Diffusion { process, .. } = &model.about.task else { panic!("diffusion") };
    assert_eq!(process.timesteps(), Some(5));
    let signal = process.schedule().expect("a schedule").alphas_cumprod();
    let products = [0.9, 0.72, 0.504, 0.3024, 0.1512];
    assert!(signal.iter().zip(products).all(|(a, b)| (a - b).abs() < 1e-6), "{signal:?}");
    let say = |changes: &[&str]| {
        let all = [&["trainer.iterations=4", "task.prediction=epsilon"], changes].concat();
        complaint(program(&with(&all), &dir.path().join("no"), &[]).output().expect("a start"))
    };
    let said = say(&["task.betas=[0.1,0.2,0.3]"]);
    assert!(said.contains("task.betas") && said.contains("task.schedule=custom"), "{said}");
    let said = say(&["task.schedule=custom", "task.betas=[0.1,1.2]"]);
    assert!(said.contains("1.2 at timestep 1"), "{said}");
}
