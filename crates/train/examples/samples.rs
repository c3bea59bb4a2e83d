//! Measures the training images per second that threads make of a run's data: `samples [KEY=VALUE ...]`, with the changes
//! of `clearshot train`.

use clearshot_train::data::feed::Feed;
use clearshot_train::data::{Data, Part, batch};
use clearshot_train::presets;
use std::time::Instant;

/// Images of a batch, and seconds that each row of the table takes.
const BATCH: usize = 32;
const SECONDS: f64 = 4.0;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let changes: Vec<String> = std::env::args().skip(1).collect();
    let config = presets::read(None, &changes)?;
    let size: Vec<usize> = config.trainer.depth.into_iter().chain([config.trainer.crop; 2]).collect();
    let data = Data::new(&config)?;
    let source = data.source(Part::Training, &size, None)?;
    println!("crops of {size:?} in batches of {BATCH}");
    let mut first = 0;
    for threads in [0, 1, 2, 4, 8, 15] {
        let (start, mut batches) = (Instant::now(), 0u64);
        if threads == 0 {
            while start.elapsed().as_secs_f64() < SECONDS {
                batch(&*source, first + batches * BATCH as u64, BATCH, &size, |_| None, |_| false)?;
                batches += 1;
            }
        } else {
            let (source, size) = (source.clone(), size.clone());
            let mut feed = Feed::new(0, threads, 2 * threads, move |i| {
                batch(&*source, first + i * BATCH as u64, BATCH, &size, |_| None, |_| false)
            });
            while start.elapsed().as_secs_f64() < SECONDS {
                feed.take()?;
                batches += 1;
            }
        }
        first += batches * BATCH as u64;
        let rate = (batches * BATCH as u64) as f64 / start.elapsed().as_secs_f64();
        println!("{threads:2} threads: {rate:8.0} images a second");
    }
    Ok(())
}
