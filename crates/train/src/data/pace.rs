//! The number of images per second that the data provide, without a network.

use super::feed::Feed;
use super::{Data, Part, batch};
use crate::config::{Count, RunConfig};
use crate::error::Result;
use crate::run::adopt;
use crate::task::Task;
use std::time::Instant;

/// Images of a batch where the configuration leaves them to the device's memory.
const USUAL_BATCH: usize = 32;

/// As many crops as this times the images are not timed: files are decoded and cameras estimated when first drawn, and draws repeat.
const PASSES: usize = 3;

/// Images a second of a training's batches, made by so many threads for so many seconds; by the thread that takes them where there are none. Files are
/// decoded before, as many as are held in memory.
///
/// # Errors
/// If the configuration cannot be meant, or a sample cannot be had.
pub fn pace(config: &RunConfig, threads: usize, seconds: f64) -> Result<f64> {
    let mut config = config.clone();
    config.check()?;
    adopt(&mut config)?;
    let (task, data, trainer) = (Task::new(&config.task)?, Data::new(&config)?, &config.trainer);
    let size: Vec<usize> = trainer.depth.into_iter().chain([trainer.crop; 2]).collect();
    let source = data.source(Part::Training, &size, None)?;
    let images = match trainer.batch {
        Count::Number(n) => n.max(1),
        Count::Word(_) => USUAL_BATCH,
    };
    let seed = config.seed;
    let untimed = (PASSES * source.images().unwrap_or(1)).div_ceil(images).max(2) as u64;
    let turns = source.clone();
    let make = move |i: u64| {
        let domain = |n| data.in_turn(&*turns, n);
        batch(&*turns, i * images as u64, images, &size, domain, |n| task.drops(seed, n))
    };
    if threads == 0 {
        return timed(untimed, seconds, images, &mut |i| make(i).map(drop));
    }
    let mut feed = Feed::new(0, threads, 2 * threads, make);
    timed(untimed, seconds, images, &mut |_| feed.take().map(drop))
}

fn timed(untimed: u64, seconds: f64, images: usize, next: &mut dyn FnMut(u64) -> Result<()>) -> Result<f64> {
    (0..untimed).try_for_each(&mut *next)?;
    let begun = Instant::now();
    let mut done = 0;
    while begun.elapsed().as_secs_f64() < seconds {
        next(untimed + done)?;
        done += 1;
    }
    Ok(done as f64 * images as f64 / begun.elapsed().as_secs_f64())
}
