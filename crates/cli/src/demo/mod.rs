//! `clearshot demo`: demonstrates the whole program in under three minutes on two cores, from a real image and noisy
//! scenes to a report.
//!
//! Nothing is overwritten: the folder must be new or empty.

mod real;

use anyhow::{Context, Result, bail};
use clap::Args;
use clearshot_evaluate::method::by_name;
use clearshot_evaluate::report::{self, Figure, Illustration};
use clearshot_evaluate::{
    Assumed, Bench, Case, DEFAULT, Learned, Method, Record, Store, Summary, picture, run,
};
use clearshot_image::{Axis, DType, Description, Dim, Provenance, WriteOptions, Writer};
use clearshot_model::Model;
use clearshot_restore::learned::Settings;
use clearshot_runtime::Device;
use clearshot_tensor::store::write_whole;
use clearshot_train::records::console::Show;
use clearshot_train::{Run, presets};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[derive(Args)]
pub struct Demo {
    /// Write everything to this folder, which must be new or empty. Default: `clearshot-demo` or the next free number.
    #[arg(long, short, alias = "output")]
    out: Option<PathBuf>,
    /// Seconds of training; 0 for none.
    #[arg(long, default_value_t = 50)]
    train_seconds: u32,
    /// Images of each kind at each light level.
    #[arg(long, default_value_t = 2)]
    count: u32,
    /// Set the side length of images in pixels.
    #[arg(long, default_value_t = 128)]
    size: usize,
    /// Draw this many posterior samples of a generated scene, for a picture of how they differ: two or more; 0 for none.
    #[arg(long, default_value_t = 4)]
    samples: usize,
    /// Print nothing but the last lines.
    #[arg(long)]
    quiet: bool,
    /// Print one JSON object at the end. Default: text.
    #[arg(long)]
    json: bool,
}

/// What the training is shown on: one kind of scene at one light level.
const TRAINED_ON: (&str, f64) = ("nuclei", 20.0);
/// The peaks of the table.
const PEAKS: [f64; 3] = [5.0, 20.0, 100.0];
/// The steps of each sample.
const STEPS: usize = 8;

impl Demo {
    pub fn run(self) -> Result<()> {
        let start = Instant::now();
        let out = self.folder()?;
        let say = |text: &str| -> Result<()> {
            if !self.quiet && !self.json {
                let mut stdout = std::io::stdout().lock();
                writeln!(stdout, "[{:5.1} s] {text}", start.elapsed().as_secs_f64())?;
                stdout.flush()?;
            }
            Ok(())
        };
        say(&format!("everything goes to {}", out.display()))?;
        let device = Device::best();
        say(&format!("computing on {device}"))?;
        say("restoring a real image first, with all its maps: a few seconds on two cores")?;
        let real = real::show(device, &out)?;
        real.lines.iter().try_for_each(|line| say(line))?;
        say("drew it next to its long exposure: pictures/real.png")?;

        let bench = Bench { peaks: PEAKS.to_vec(), count: self.count, size: self.size, ..Bench::default() };
        bench.check()?;
        let written = write_scenes(&bench, &out)?;
        say(&format!("wrote {written} noisy scenes to noisy/ and the clean scenes to truth/"))?;

        let mut methods: Vec<Box<dyn Method>> =
            ["raw", "gat+nlm", "gat+bm3d"].iter().map(|n| by_name(n)).collect::<Result<_, _>>()?;
        methods.push(Box::new(Learned::open(DEFAULT, Settings::default(), device)?));
        let (records, summary) = scored(&bench, &methods)?;
        say("restored them with the default model, BM3D and non-local means, and scored them")?;
        self.tell(&summary)?;

        let pictures = pictures(&bench, &methods, &out)?;
        say("drew truth, measurement and restorations side by side: pictures/")?;
        let uncertainty = uncertainty(&bench, self.samples, device, &out)?;
        say(&format!("drew {} posterior samples: pictures/uncertainty.png", self.samples))?;

        let mut about = vec![
            format!("clearshot {}, {device}", env!("CARGO_PKG_VERSION")),
            format!("{} generated scenes of {1} x {1} pixels, seed {2}", bench.len(), self.size, bench.seed),
        ];
        if self.train_seconds > 0 {
            say(&format!(
                "training for {} s, as an example: {} at peak {}",
                self.train_seconds, TRAINED_ON.0, TRAINED_ON.1
            ))?;
            let trained = self.train(&bench, device, &out)?;
            say(&trained)?;
            about.push(trained);
        }

        let next = next_steps(&out);
        let put = |name: &str, text: &str| {
            let path = out.join(name);
            write_whole(&path, text.as_bytes()).with_context(|| path.display().to_string())
        };
        let illustrations: Vec<Illustration> =
            real.illustrations.into_iter().chain(pictures).chain([uncertainty]).collect();
        put("table.md", &report::markdown("Clearshot's demo", &about, &summary))?;
        put("records.csv", &report::csv(&records))?;
        put("report.html", &report::html("Clearshot's demo", &about, &summary, &illustrations, &next))?;
        let mut stdout = std::io::stdout().lock();
        if self.json {
            let rows = summary.rows.iter().map(
                |r| serde_json::json!({ "method": r.method, "psnr": r.psnr, "ssim": r.ssim, "chi2": r.chi2 }),
            );
            let record = serde_json::json!({
                "out": out, "report": out.join("report.html"), "seconds": start.elapsed().as_secs_f64(), "about": about,
                "real": real.record, "rows": rows.collect::<Vec<_>>(),
            });
            writeln!(stdout, "{record}")?;
            return Ok(());
        }
        writeln!(
            stdout,
            "\nDone in {:.0} s. Look at {}",
            start.elapsed().as_secs_f64(),
            out.join("report.html").display()
        )?;
        writeln!(stdout, "\nWhat to try next:")?;
        for line in &next {
            writeln!(stdout, "  {line}")?;
        }
        Ok(())
    }

    fn folder(&self) -> Result<PathBuf> {
        let is_free =
            |path: &Path| !path.exists() || std::fs::read_dir(path).is_ok_and(|mut d| d.next().is_none());
        let out = match &self.out {
            Some(out) if is_free(out) => out.clone(),
            Some(out) => bail!(
                "{} exists and is not empty; nothing is overwritten, so name a new folder",
                out.display()
            ),
            None => {
                let numbered = |n: u32| {
                    PathBuf::from(if n == 1 {
                        "clearshot-demo".into()
                    } else {
                        format!("clearshot-demo-{n}")
                    })
                };
                let free = (1..1000).map(numbered).find(|p| is_free(p));
                free.context("clearshot-demo and the next 998 names exist already; name a folder with --out")?
            }
        };
        for folder in ["real", "noisy", "truth", "pictures"] {
            let path = out.join(folder);
            std::fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
        }
        Ok(out)
    }

    fn tell(&self, summary: &Summary) -> Result<()> {
        if self.quiet || self.json {
            return Ok(());
        }
        let mut out = std::io::stdout().lock();
        writeln!(
            out,
            "\n  mean over {} kinds of scenes at peaks of 5, 20 and 100 electrons:",
            Bench::default().scenes.len()
        )?;
        for row in &summary.rows {
            writeln!(
                out,
                "  {:10} {:6.2} dB   SSIM {:.3}   chi2 {:.2}",
                row.method, row.psnr, row.ssim, row.chi2
            )?;
        }
        let all = summary.comparisons.len();
        let highest = all - summary.lower().count();
        let clear = highest - summary.unclear().count();
        let images = if self.count == 1 { "image" } else { "images" };
        writeln!(
            out,
            "  the model scores highest in {highest} of {all} cells; with {} {images} in each cell, the paired test calls {clear} of them clear (table.md)\n",
            self.count
        )?;
        Ok(())
    }

    /// Fine-tunes the default model, and says what it came to.
    fn train(&self, bench: &Bench, device: Device, out: &Path) -> Result<String> {
        let first = out.join("default.clearshot");
        let builtin = Model::builtin()?;
        builtin.save_file(&first, clearshot_tensor::DType::F16)?;
        let (scene, peak) = TRAINED_ON;
        let folder = out.join("fine-tuned");
        let changes = [
            "experiment=default".to_string(),
            "name=fine-tuned".into(),
            format!("data={scene}"),
            "data.pool=48".into(),
            "data.sizes=[128]".into(),
            format!("data.camera.peak=[{peak}, {peak}]"),
            "data.camera.spread=1".into(),
            "data.camera.blur=0".into(),
            format!("trainer.device={}", device_name(device)),
            // The clock ends it, so the rate must not depend on how many iterations there will be.
            "schedule=constant".into(),
            "trainer.iterations=1000000".into(),
            "trainer.crop=64".into(),
            "trainer.batch=4".into(),
            "trainer.ema_half_life=400".into(),
            "optimizer.rate=2e-5".into(),
            "schedule.warm_up=10".into(),
            "validation.images=8".into(),
            "validation.every=100000".into(),
            "checkpoint.every=100000".into(),
        ];
        let mut config = presets::read(None, &changes)?;
        // The network that the program carries, whatever the experiment would build now.
        config.model.network = serde_json::from_str(&builtin.config)?;
        config.model.init = Some(first);
        let mut run = Run::open(config, &folder, false, Show::Quiet)?;
        let clock = Arc::new(AtomicBool::new(false));
        let (alarm, seconds) = (clock.clone(), Duration::from_secs(self.train_seconds.into()));
        std::thread::spawn(move || {
            std::thread::sleep(seconds);
            alarm.store(true, Ordering::Relaxed);
        });
        let trained = run.train(&clock, None)?;
        let model = out.join("fine-tuned.clearshot");
        run.model()?.save_file(&model, clearshot_tensor::DType::F16)?;
        drop(run);
        let small = Bench { scenes: vec![scene.into()], peaks: vec![peak], count: 4, ..bench.clone() };
        let name = model.display().to_string();
        let methods: Vec<Box<dyn Method>> = vec![
            Box::new(Learned::open(DEFAULT, Settings::default(), device)?),
            Box::new(Learned::open(&name, Settings::default(), device)?),
        ];
        let (_, summary) = scored(&small, &methods)?;
        let psnr = |i: usize| summary.rows.get(i).map_or(f64::NAN, |r| r.psnr);
        Ok(format!(
            "{} iterations ({:.1} a second) on {scene} at peak {peak}: {:.2} dB before, {:.2} dB after; the model is in {}",
            trained.iteration,
            trained.iterations_per_second,
            psnr(0),
            psnr(1),
            model.display()
        ))
    }
}

fn device_name(device: Device) -> String {
    match device {
        Device::Cpu { .. } => "cpu".into(),
        Device::Cuda { ordinal } => format!("cuda:{ordinal}"),
    }
}

fn scored(bench: &Bench, methods: &[Box<dyn Method>]) -> Result<(Vec<Record>, Summary)> {
    let (name, case) = (|n: usize| Ok(bench.name(n)), |n: usize| bench.case(n));
    let records = run(
        methods,
        bench.len(),
        &name,
        &case,
        &Assumed::default(),
        false,
        &mut Store::default(),
        &mut |_| (),
    )?;
    let summary = Summary::of(&records)?;
    Ok((records, summary))
}

/// The number of the case that stands for a scene at the middle peak.
fn example(bench: &Bench, scene: usize) -> usize {
    let count = bench.count as usize;
    scene * bench.peaks.len() * count + bench.peaks.len() / 2 * count
}

/// One file of each kind of scene at the middle peak, in electrons, and its truth.
fn write_scenes(bench: &Bench, out: &Path) -> Result<usize> {
    for scene in 0..bench.scenes.len() {
        let case = bench.case(example(bench, scene))?;
        let name = format!("{}.tif", case.scene);
        write_plane(&out.join("noisy").join(&name), &case.view.electrons, &case)?;
        write_plane(&out.join("truth").join(&name), &case.truth, &case)?;
    }
    Ok(bench.scenes.len())
}

fn write_plane(path: &Path, values: &[f32], case: &Case) -> Result<()> {
    let shape = &case.view.shape;
    let dims = [Axis::Y, Axis::X].iter().zip(shape).map(|(&a, &n)| Dim::new(a, n)).collect();
    let description = Description::new("", path, dims, DType::F32);
    let parameters = serde_json::json!({
        "scene": case.scene, "peak": case.peak, "background": case.background, "read_noise": case.read_noise,
    });
    let mut provenance = Provenance::new("demo", &description, parameters);
    provenance.source = String::new();
    let options = WriteOptions { replace: false, provenance: Some(provenance.value()) };
    let mut writer = Writer::create(path, &description, &options)?;
    let mut bytes = Vec::with_capacity(values.len() * DType::F32.bytes());
    DType::F32.encode(&values.iter().map(|&v| f64::from(v)).collect::<Vec<_>>(), &mut bytes);
    let whole: Vec<_> = shape.iter().map(|&n| 0..n).collect();
    writer.write(&whole, &bytes)?;
    Ok(writer.finish()?)
}

fn pictures(bench: &Bench, methods: &[Box<dyn Method>], out: &Path) -> Result<Vec<Illustration>> {
    let mut all = Vec::new();
    for scene in 0..bench.scenes.len() {
        let case = bench.case(example(bench, scene))?;
        let png = picture(methods, &case)?;
        let path = out.join("pictures").join(format!("{}.png", case.scene));
        write_whole(&path, &png).with_context(|| path.display().to_string())?;
        let caption = format!("{}, peak {} electrons", case.scene, case.peak);
        all.push(Illustration { caption, figure: Figure::Png(png) });
    }
    Ok(all)
}

/// Measurement, mean and standard deviation of a few samples.
fn uncertainty(bench: &Bench, samples: usize, device: Device, out: &Path) -> Result<Illustration> {
    use clearshot_image::picture::{Colours, Panel, Stretch, side_by_side};
    let case = bench.case(example(bench, 0))?;
    let settings = Settings { samples, steps: STEPS, ..Settings::default() };
    let model = Learned::open(DEFAULT, settings, device)?;
    let restored = model.restore(&case.view).map_err(anyhow::Error::msg)?;
    let shape = [case.view.shape[0], case.view.shape[1]];
    let stretch =
        Stretch { low: case.background as f32, high: (case.background + case.peak) as f32, gamma: 0.7 };
    let panel = |label: &str, values: Vec<f32>| Panel::new(label, values, shape);
    let mut panels = vec![
        Panel { stretch, ..panel("measurement", case.view.electrons.clone())? },
        Panel { stretch, ..panel("posterior mean", restored.mean)? },
    ];
    if let Some(std) = restored.std {
        panels.push(Panel { colours: Colours::Helix, ..panel("standard deviation", std)? });
    }
    let png = side_by_side(&panels, 3, 256).png()?;
    let path = out.join("pictures").join("uncertainty.png");
    write_whole(&path, &png).with_context(|| path.display().to_string())?;
    let caption = format!(
        "{}: the measurement, the posterior mean and the standard deviation ({samples} samples)",
        case.scene
    );
    Ok(Illustration { caption, figure: Figure::Png(png) })
}

fn next_steps(out: &Path) -> Vec<String> {
    let real = out.join("real").join("short_exposure.tif");
    let restored = out.join("real").join("restored.tif");
    let noisy = out.join("noisy").join("nuclei.tif");
    let clean = out.join("nuclei_clean.tif");
    vec![
        format!("clearshot restore {} -o {} --std    # the real image, as a file", real.display(), restored.display()),
        format!("clearshot restore {} -o {} --gain 1 --read-noise 1.5    # one file", noisy.display(), clean.display()),
        "clearshot restore 'your/images/*.tif' -o restored                # yours: the camera is estimated and printed".into(),
        "clearshot compare --out comparison                              # every classical method beside the model".into(),
        "clearshot train experiment=supervised --out runs/nuclei         # five minutes of training".into(),
        "clearshot doctor                                                # what this machine has, and what is used of it".into(),
    ]
}
