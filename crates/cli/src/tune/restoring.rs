//! Measures tiles and threads for restoring on a generated image: they affect the time, but not the result.

use anyhow::Result;
use clearshot::{Array, Candidate, KnownCamera, Restorer, Settings};
use clearshot_runtime::{Device, DeviceName};
use clearshot_scenes::{Camera, Scene};
use serde::Serialize;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// How much faster another value must be to be taken.
const FASTER: f64 = 1.05;
const SIDES: [usize; 4] = [64, 128, 256, 512];
const AT_ONCE: [usize; 3] = [1, 2, 4];

/// Another value of a setting.
type Change = Box<dyn Fn(&mut Choice)>;

/// What is asked for.
pub struct RestoreTuning<'a> {
    pub model: Option<&'a Path>,
    pub side: usize,
    pub seconds: f64,
    pub quiet: bool,
}

/// What is chosen; nothing for what `restore` chooses by itself.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Choice {
    pub threads: usize,
    pub tile: Option<usize>,
    pub tiles: Option<usize>,
}

#[derive(Clone, Debug, Serialize)]
pub struct RestoreTrial {
    #[serde(flatten)]
    pub choice: Choice,
    pub megapixels_per_second: f64,
    pub taken: bool,
}

/// The result of tuning.
#[derive(Clone, Debug, Serialize)]
pub struct RestoreTuned {
    pub device: String,
    pub best: Choice,
    pub megapixels_per_second: f64,
    pub began_with: f64,
    pub trials: Vec<RestoreTrial>,
}

impl RestoreTuning<'_> {
    /// # Errors
    /// If the model cannot be read or run.
    pub fn run(&self, stop: &AtomicBool) -> Result<RestoreTuned> {
        let begun = Instant::now();
        let device = DeviceName::Auto.device(None)?;
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let shape = [self.side; 2];
        let scene = Scene::by_name("nuclei")?.generate(0, 0, &shape)?;
        let picture = Camera::for_peak(100.0).take(&scene, &shape, 0, 0)?;
        let array = Array::new(&picture.values, &shape, "YX")?;
        let first = Choice { threads: if is_gpu(&device) { 0 } else { cores }, tile: None, tiles: None };
        let mut trials: Vec<RestoreTrial> = vec![];
        let mut tell = |choice: Choice, rate: f64, taken: bool| {
            if !self.quiet {
                eprintln!("restoring {}: {rate:.3} megapixels/s", choice.in_words());
            }
            trials.push(RestoreTrial { choice, megapixels_per_second: rate, taken });
        };
        let began_with = self.measure(&array, &first)?;
        tell(first, began_with, true);
        let (mut best, mut rate) = (first, began_with);
        let sides = SIDES.into_iter().filter(|s| *s <= self.side);
        let mut changes: Vec<Change> = vec![];
        changes.extend(sides.map(|s| Box::new(move |c: &mut Choice| c.tile = Some(s)) as Change));
        changes.extend(AT_ONCE.map(|n| Box::new(move |c: &mut Choice| c.tiles = Some(n)) as Change));
        if !is_gpu(&device) {
            let fewer = (1..cores).rev().take(2);
            changes.extend(fewer.map(|n| Box::new(move |c: &mut Choice| c.threads = n) as Change));
        }
        for change in changes {
            if stop.load(Ordering::Relaxed) || begun.elapsed().as_secs_f64() > self.seconds {
                break;
            }
            let mut next = best;
            change(&mut next);
            let found = self.measure(&array, &next)?;
            let taken = found > FASTER * rate;
            tell(next, found, taken);
            if taken {
                (best, rate) = (next, found);
            }
        }
        Ok(RestoreTuned { device: device.to_string(), best, megapixels_per_second: rate, began_with, trials })
    }

    /// Megapixels a second, after a first run that compiles.
    fn measure(&self, array: &Array, choice: &Choice) -> Result<f64> {
        let device = DeviceName::Auto.device(Some(choice.threads).filter(|n| *n > 0))?;
        let restorer = match self.model {
            Some(path) => Restorer::load_on(path, device)?,
            None => Restorer::builtin_on(device)?,
        };
        let camera = KnownCamera { gain: Some(1.0), ..KnownCamera::default() };
        let settings = Settings {
            camera,
            only: Some(Candidate::Model),
            tile: choice.tile,
            batch: choice.tiles,
            ..Settings::default()
        };
        restorer.restore(array, &settings, &mut ())?;
        let begun = Instant::now();
        let mut runs = 0;
        while runs < 2 || begun.elapsed().as_secs_f64() < self.seconds / 30.0 {
            restorer.restore(array, &settings, &mut ())?;
            runs += 1;
        }
        Ok(runs as f64 * (self.side * self.side) as f64 * 1e-6 / begun.elapsed().as_secs_f64())
    }
}

fn is_gpu(device: &Device) -> bool {
    matches!(device, Device::Cuda { .. })
}

impl Choice {
    fn in_words(&self) -> String {
        let or_auto = |n: Option<usize>| n.map_or("auto".to_string(), |n| n.to_string());
        format!(
            "by tiles of {}, {} at once, {} threads",
            or_auto(self.tile),
            or_auto(self.tiles),
            self.threads
        )
    }
}

impl RestoreTuned {
    /// The trials for people.
    pub fn table(&self) -> String {
        let mut text = format!("restoring on {}\n", self.device);
        for t in &self.trials {
            let mark = if t.taken { "*" } else { " " };
            text += &format!(
                "{mark} {:<48} {:>8.3} megapixels/s\n",
                t.choice.in_words(),
                t.megapixels_per_second
            );
        }
        text
    }
}
