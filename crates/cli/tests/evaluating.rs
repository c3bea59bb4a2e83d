//! The verbs that evaluate and find out, as a user runs them.

mod program;

use program::{clearshot, folder, must, refused};
use std::process::Command;

#[test]
fn a_comparison_is_made_once_and_again_the_same() {
    let at = folder("compare");
    let line =
        "compare raw gaussian gat+median --scenes nuclei,stars --peaks 5,50 --count 2 --size 40 --out c";
    let first = must(line, &at);
    assert!(first.contains("| nuclei | 5 |") && first.contains("| stars | 50 |"), "{first}");
    let files = ["report.md", "report.html", "summary.json", "records.csv", "records.jsonl"];
    let read = || files.map(|f| std::fs::read(at.join("c").join(f)).expect(f));
    let before = read();
    assert_eq!(before[4].iter().filter(|b| **b == b'\n').count(), 3 * 2 * 2 * 2);
    assert_eq!(must(line, &at), first);
    assert_eq!(read(), before);
    // One more method: only its records are made, and the others' lines stay.
    let more = clearshot(&line.replace("gat+median", "gat+median median"), &at);
    let said = String::from_utf8_lossy(&more.stderr);
    assert!(more.status.success() && said.contains("24 of 32 records existed already"), "{said}");
    // Fewer methods, all of them new to the store: what others left there does not count.
    let other = clearshot(&line.replace("raw gaussian gat+median", "tv"), &at);
    let said = String::from_utf8_lossy(&other.stderr);
    assert!(other.status.success() && !said.contains("existed already"), "{said}");
    assert!(read()[4].starts_with(&before[4]) && read()[4].len() > before[4].len());
    let html = String::from_utf8(before[1].clone()).expect("text");
    assert!(html.contains("<svg") && html.contains("data:image/png;base64,"));
}

#[test]
fn pairs_of_files_and_wrong_cameras() {
    let at = folder("pairs");
    must("synth --scene nuclei --count 2 --peak 50 --size 48x40 --seed 4 --out s", &at);
    let json = must("eval gaussian --truth s/truth --noisy s/noisy --read-noise 1.5 --json", &at);
    let summary: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    // The files differ by a number, so they are one group and there are intervals; their peak is rounded there.
    let cells = summary["cells"].as_array().expect("cells");
    assert_eq!(cells.len(), 3);
    for cell in cells {
        assert_eq!((cell["scene"].as_str(), cell["images"].as_u64()), (Some("nuclei"), Some(2)), "{cell}");
        let [mean, low, high] = [0usize, 1, 2].map(|i| cell["psnr"][i].as_f64().expect("a number"));
        assert!(low < mean && mean < high, "{cell}");
    }
    assert_eq!(summary["failures"].as_array().expect("a list").len(), 0);
    let swept = must(
        "eval raw --scenes nuclei --peaks 20 --count 1 --size 32 --sweep gain=0.8,1 --sweep background=1,2,3 --json",
        &at,
    );
    let summary: serde_json::Value = serde_json::from_str(&swept).expect("JSON");
    let names: Vec<&str> =
        summary["rows"].as_array().expect("rows").iter().filter_map(|r| r["method"].as_str()).collect();
    assert_eq!(names.len(), 2 * 6, "{names:?}");
    assert!(names.contains(&"raw (gain=0.8, background=3)"), "{names:?}");
}

/// An OME-Zarr is a folder: another image under its name has scores of its own.
#[test]
fn a_changed_folder_is_scored_again() {
    let at = folder("changed_zarr");
    must("synth --scene nuclei --count 1 --peak 50 --size 40x48 --seed 4 --out s", &at);
    must("synth --scene nuclei --count 1 --peak 50 --size 40x48 --seed 5 --out t", &at);
    let convert = |from: &str, to: &str| must(&format!("convert {from}/nuclei_0000.tif {to}.ome.zarr"), &at);
    convert("s/truth", "truth");
    convert("s/noisy", "noisy");
    let line = "compare raw --truth truth.ome.zarr --noisy noisy.ome.zarr --read-noise 1.5 --out c";
    let psnr = || {
        let out = clearshot(line, &at);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success(), "{said}");
        let csv = std::fs::read_to_string(at.join("c/records.csv")).expect("records");
        (csv, said.contains("1 of 1 records existed already"))
    };
    let (first, _) = psnr();
    assert_eq!(psnr(), (first.clone(), true));
    for (from, to) in [("t/noisy", "noisy"), ("t/truth", "truth")] {
        std::fs::remove_dir_all(at.join(format!("{to}.ome.zarr"))).expect("a folder");
        convert(from, to);
        let (other, found) = psnr();
        assert!(!found && other != first, "{to}: {other}");
    }
}

/// What only scenes have, or only files, is refused beside the other by both names.
#[test]
fn options_of_scenes_do_not_go_with_files() {
    let at = folder("scene_only");
    for option in [
        "--scenes nuclei",
        "--peaks 5",
        "--count 3",
        "--size 32",
        "--psf-sigma 1.5",
        "--stress",
        "--max-memory 1GiB",
        "--max-seconds 3",
        "--min-psnr 20",
    ] {
        for verb in ["eval raw", "compare raw", "validate raw gaussian"] {
            let said = refused(&format!("{verb} --truth a --noisy b {option}"), &at);
            let name = option.split(' ').next().expect("a name");
            assert!(said.contains(name) && said.contains("--truth"), "{verb} {option}: {said}");
        }
    }
    for option in ["--gain 2", "--offset -3", "--read-noise 1", "--fit", "--range 255", "--group all"] {
        let said = refused(&format!("eval raw {option}"), &at);
        assert!(said.contains("--truth"), "{option}: {said}");
    }
}

/// A PSF of another width or place, another background and gain: each costs something, more the further off, and what
/// it costs is kept.
#[test]
fn wrong_calibrations_make_curves() {
    let at = folder("curves");
    let scenes = "--scenes nuclei,filaments --peaks 100 --count 2 --size 64 --psf-sigma 1.5";
    // Losses in dB at the most: at 10 % of the PSF's width, at a quarter of a pixel, at 20 % of the gain.
    for (sweep, [near, bound], falls) in [
        ("psf=0.8,0.9,1,1.1,1.2", [0.1, 3.0], true),
        ("shift=0,0.25,0.5,1", [0.25, 3.0], true),
        ("gain=0.8,1,1.2", [0.2, 1.0], false),
    ] {
        let key = sweep.split('=').next().expect("a key");
        let said = must(&format!("compare rl {scenes} --sweep {sweep} --out {key}"), &at);
        assert!(said.contains(&format!("## What a wrong {key} costs")), "{said}");
        assert!(!falls || said.contains("| yes |"), "{said}");
        let csv = std::fs::read_to_string(at.join(key).join("curves.csv")).expect("curves");
        let number = |text: &str| text.parse::<f64>().expect("a number");
        let points: Vec<Vec<f64>> =
            csv.lines().skip(1).map(|line| line.split(',').skip(2).map(number).collect()).collect();
        assert_eq!(points.len(), sweep.split(',').count(), "{csv}");
        let truth = if key == "shift" { 0.0 } else { 1.0 };
        for point in &points {
            let (off, loss) = ((point[0] - truth).abs(), point[2]);
            assert!(off > near + 1e-9 || loss < bound, "{csv}");
            assert!(off > 0.0 || loss == 0.0, "{csv}");
        }
    }
    let said = refused("compare rl --scenes nuclei --sweep psf=0.9,1", &at);
    assert!(said.contains("--psf-sigma"), "{said}");
}

#[test]
fn a_size_is_recommended_under_limits() {
    let at = folder("sizes");
    let line = "eval gaussian --scenes nuclei --peaks 20 --count 1 --size 32,48";
    let said = must(&format!("{line} --min-psnr 5"), &at);
    assert!(said.contains("## Which size to use") && said.contains("\nUse "), "{said}");
    let said = must(&format!("{line} --min-psnr 500"), &at);
    assert!(said.contains("Nothing is within all limits") && said.contains("500 are asked for"), "{said}");
}

/// Nothing is invented where there is nothing, and lines are found: a row for each method and brightness.
#[test]
fn empty_images_and_faint_lines_are_reported() {
    let at = folder("stress");
    let said =
        must("eval raw gaussian --scenes nuclei --peaks 20 --count 1 --size 32 --stress --out made", &at);
    let rows = |title: &str, method: &str| -> Vec<Vec<f64>> {
        let table = said.split(title).nth(1).expect("a table").split("\n## ").next().unwrap_or_default();
        let rows = table.lines().filter(|l| l.starts_with(&format!("| {method} |")));
        let number = |cell: &str| cell.split_whitespace().next()?.parse::<f64>().ok();
        rows.map(|row| row.split('|').filter_map(number).collect()).collect()
    };
    let empty = rows("## Empty images", "raw");
    assert!(empty.len() == 1 && empty[0][1].abs() < 0.1, "{empty:?}");
    let lines = rows("## Faint lines", "raw");
    assert_eq!(lines.len(), 4);
    // Of the measurement itself all of a line comes back, and brighter lines stand out more.
    assert!(lines.iter().all(|l| (l[2] - 1.0).abs() < 0.15), "{lines:?}");
    assert!(lines.windows(2).all(|w| w[0][3] < w[1][3]), "{lines:?}");
}

#[test]
fn a_worse_method_does_not_take_the_place() {
    let at = folder("validate");
    let settings = "--scenes nuclei --peaks 5 --count 2 --size 48";
    assert!(must(&format!("validate raw gat+nlm {settings}"), &at).contains("may replace"));
    // A folder of a method's name is not taken for a model.
    std::fs::create_dir_all(at.join("raw")).expect("a folder");
    let said = refused(&format!("validate gat+nlm raw {settings}"), &at);
    assert!(said.contains("of raw are under 95 % of those of gat+nlm"), "{said}");
    // For programs, one JSON object whatever comes of it.
    for (line, passes) in [("raw gat+nlm", true), ("gat+nlm raw", false)] {
        let out = clearshot(&format!("validate {line} {settings} --json"), &at);
        assert_eq!(out.status.success(), passes, "{line}");
        let said: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
        assert_eq!(said["judgement"]["passes"], passes, "{line}");
        let checks = said["judgement"]["checks"].as_array().expect("checks");
        assert_eq!(checks.iter().all(|c| c["passes"] == true), passes, "{line}");
    }
}

#[test]
fn wrong_words_are_answered() {
    let at = folder("wrong");
    for (line, words) in [
        ("eval gat+bm3", "the nearest is 'gat+bm3d'"),
        ("eval raw --scenes nucleii", "nucleii"),
        ("eval raw --peaks 0", "a finite number above zero"),
        ("eval raw --count 0", "one or more"),
        (
            "eval raw --sweep gian=1",
            "there are gain, background, read_noise, psf, shift and samples, steps, sampler",
        ),
        ("eval raw --sweep gain=much", "a factor"),
        ("eval raw --size 3", "8"),
        ("eval raw --truth nowhere --noisy nowhere", "nowhere"),
        ("validate raw raw", "compared with itself"),
        ("validate raw gaussian --sweep steps=5,10", "--sweep steps=5,10: two models are compared under one"),
        ("validate raw gaussian --size 32,48", "--size 32,48: two models are compared at one size"),
        ("eval raw --truth a --noisy b --sweep gain=0.8,1", "--sweep gain=0.8,1: the camera is swept over"),
        ("eval rl --scenes nuclei --peaks 20 --count 1 --size 32", "needs a PSF"),
        ("config experiment=defualt", "the nearest is 'default'"),
        ("config trainer.secnods=3", "the nearest is 'trainer.seconds'"),
        ("config nonsense", "key=value"),
    ] {
        let out = clearshot(line, &at);
        let said =
            format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        assert!(!out.status.success() && said.contains(words), "{line}: {said}");
    }
}

#[test]
fn the_doctor_speaks_and_writes_json() {
    let at = folder("doctor");
    let said = must("doctor", &at);
    assert!(said.contains("What will be used: ") && said.contains("processor"), "{said}");
    let record: serde_json::Value = serde_json::from_str(&must("doctor --json", &at)).expect("JSON");
    assert!(record["cpu"]["threads"].as_u64().expect("threads") >= 1);
    assert!(record["device"].is_string() && record["findings"].as_array().expect("a list").len() >= 6);
    // A cache that cannot be written is reported, and the doctor still succeeds.
    let out = Command::new(env!("CARGO_BIN_EXE_clearshot"))
        .args(["doctor"])
        .env("CLEARSHOT_CACHE", "/dev/null/cache")
        .output()
        .expect("the program runs");
    assert!(out.status.success() && String::from_utf8_lossy(&out.stdout).contains("PROBLEM  cache"));
}

#[test]
fn a_configuration_prints_the_origin_of_its_values() {
    let at = folder("config");
    let line = "experiment=im2im/labelfree trainer=gpu_optimized performance=gpu_optimized optimizer=adamw_fused model.compile_mode=max-autotune data.inputs=a data.targets=b";
    let said = must(&format!("config {line}"), &at);
    let of = |key: &str| said.lines().find(|l| l.trim_start().starts_with(key)).expect(key).to_string();
    assert!(of("compile_mode:").ends_with("# command line"), "{said}");
    assert!(said.contains("# optimizer/adamw_fused.yaml:") && said.contains("# default"), "{said}");
    // What is printed is a configuration that comes to the same.
    std::fs::write(at.join("again.yaml"), must(&format!("config {line} --plain"), &at)).expect("a file");
    assert_eq!(must("config again.yaml --json", &at), must(&format!("config {line} --json"), &at));
}

#[test]
fn the_demo_overwrites_nothing() {
    let at = folder("demo");
    std::fs::create_dir_all(at.join("full")).expect("a folder");
    std::fs::write(at.join("full").join("mine.txt"), "mine").expect("a file");
    assert!(refused("demo --out full", &at).contains("nothing is overwritten"));
    assert_eq!(std::fs::read_to_string(at.join("full/mine.txt")).expect("mine"), "mine");
}

/// A small demo, without a terminal: everything that it promises is there.
#[test]
fn the_demo_makes_a_report() {
    let at = folder("demo_small");
    let said = must("demo --out d --train-seconds 1 --count 1 --size 32 --samples 2", &at);
    assert!(said.contains("What to try next") && said.contains("dB after"), "{said}");
    // One image shows nothing clearly.
    assert!(said.contains("with 1 image in each cell, the paired test calls 0 of them clear"), "{said}");
    for file in [
        "report.html",
        "table.md",
        "records.csv",
        "real/short_exposure.tif",
        "real/long_exposure.tif",
        "pictures/real.png",
        "pictures/real_camera.svg",
        "noisy/nuclei.tif",
        "truth/nuclei.tif",
        "pictures/stars.png",
        "pictures/uncertainty.png",
    ] {
        assert!(at.join("d").join(file).exists(), "{file}");
    }
    // The real image comes first, on the console and in the report, and its camera after it.
    let place = |text: &str, of: &str| text.find(of).unwrap_or_else(|| panic!("no {of:?}"));
    assert!(place(&said, "GigaDB 100888") < place(&said, "noisy scenes"), "{said}");
    assert!(said.contains("gain and offset fitted: raw "), "{said}");
    let report = std::fs::read_to_string(at.join("d/report.html")).expect("a report");
    let figures: Vec<&str> = report.split("<figure>").skip(1).map(str::trim_start).collect();
    assert!(figures[0].starts_with("<img alt=\"A real image") && figures[0].contains("CC0"));
    assert!(figures[1].starts_with("<svg") && figures[1].contains("variance of the noise"));
    assert!(place(&report, "A real image") < place(&report, "<table>"));
}

/// Impossible requests are refused before anything runs.
#[test]
fn a_method_without_its_psf_is_refused_first() {
    let at = folder("no_psf");
    for verb in ["compare raw rl", "eval rl"] {
        let said = refused(&format!("{verb} --scenes nuclei --peaks 20 --count 1 --size 32 --out r"), &at);
        assert!(said.contains("rl needs a PSF") && said.contains("--psf-sigma"), "{said}");
        assert!(!at.join("r").exists(), "{verb} began");
    }
    let said = refused("compare raw rl --truth a --noisy b", &at);
    assert!(said.contains("rl needs a PSF"), "{said}");
}

/// Every long verb has a form for programs.
#[test]
fn profiles_and_the_demo_have_json() {
    let at = folder("json_forms");
    let read = |line: &str| -> serde_json::Value {
        let out = must(line, &at);
        assert_eq!(out.lines().count(), 1, "{line}: {out}");
        serde_json::from_str(&out).expect("JSON")
    };
    let demo = read("demo --json --out d --train-seconds 0 --count 1 --size 32 --samples 0");
    assert_eq!(demo["rows"].as_array().map(Vec::len), Some(4), "{demo}");
    assert!(demo["rows"][0]["psnr"].is_number() && at.join("d/report.html").is_file(), "{demo}");
    let real = &demo["real"];
    let psnr = |of: &str| real["psnr"][of].as_f64().expect("a number");
    assert!(psnr("restored") > psnr("raw") && psnr("bm3d") > psnr("raw"), "{real}");
    assert!(real["camera"]["gain"].as_f64().is_some_and(|g| g > 0.0) && real["choice"]["shares"].is_array());
    let profile = read("profile --json --net tiny --size 32 --runs 1 --top 3 --device cpu");
    assert_eq!(profile["slowest"].as_array().map(Vec::len), Some(3), "{profile}");
    assert!(profile["ms"].as_f64().is_some_and(|ms| ms > 0.0) && profile["ops"][0]["nodes"].is_number());
}

/// Jobs that share the images, one of which is cut off while it writes, and the run after them: the report of a single run.
#[test]
fn parts_of_an_evaluation_make_one_report() {
    let at = folder("evaluating_parts");
    let verb = "eval raw gat+median --scenes nuclei,stars --peaks 20 --count 3 --size 32 --quiet";
    must(&format!("{verb} --out alone"), &at);
    for part in ["1/3", "3/3"] {
        must(&format!("{verb} --out shared --part {part}"), &at);
        assert!(!at.join("shared/report.md").exists(), "a report is of all parts");
    }
    // The second job was killed within a line.
    let records = std::fs::read_to_string(at.join("alone/records.jsonl")).expect("records");
    let cut = &records[..records.len() / 2];
    std::fs::write(at.join("shared/records.2-of-3.jsonl"), cut).expect("records");
    must(&format!("{verb} --out shared"), &at);
    for name in ["report.md", "report.html", "summary.json", "records.csv"] {
        let [alone, shared] = ["alone", "shared"].map(|f| std::fs::read(at.join(f).join(name)).expect(name));
        assert!(alone == shared, "{name}");
    }
    let own = std::fs::read_to_string(at.join("shared/records.jsonl")).expect("records");
    assert!(own.lines().count() < records.lines().count() / 3, "what the parts made is not made again");
    let out = refused("eval raw --part 1/2", &at);
    assert!(out.contains("--out"), "{out}");
    let judged = refused("validate raw gat+median --out shared --part 1/2", &at);
    assert!(judged.contains("--part"), "{judged}");
}
