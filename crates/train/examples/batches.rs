//! The batches that each rank of a training on generated scenes sees, as lines of JSON, for programs that are to see the same (`bench/powersgd_given.py`).
//!
//! cargo run --release -p clearshot-train --example batches -- FOLDER RANKS ITERATIONS [KEY=VALUE ...]

use clearshot_train::config::Count;
use clearshot_train::data::{Data, NUMBERS, Part, batch};
use clearshot_train::presets;
use clearshot_train::task::Task;
use serde_json::json;
use std::io::Write;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut given = std::env::args().skip(1);
    let mut next = |what: &str| given.next().ok_or(format!("{what} is missing"));
    let folder = next("FOLDER")?;
    let (ranks, iterations): (u64, u64) = (next("RANKS")?.parse()?, next("ITERATIONS")?.parse()?);
    let config = presets::read(None, &given.collect::<Vec<_>>())?;
    config.check()?;
    let Count::Number(each) = config.trainer.batch else {
        return Err("trainer.batch must be a number".into());
    };
    let (task, data) = (Task::new(&config.task)?, Data::new(&config)?);
    let size: Vec<usize> = config.trainer.depth.into_iter().chain([config.trainer.crop; 2]).collect();
    let source = data.source(Part::Training, &size, None)?;
    for rank in 0..ranks {
        let path = format!("{folder}/rank{rank}.jsonl");
        let mut file = std::io::BufWriter::new(std::fs::File::create(path)?);
        for i in 0..iterations {
            let first = (i * ranks + rank) * each as u64;
            let drops = |n| task.drops(config.seed, n);
            let made = batch(&*source, first, each, &size, |_| None, drops)?;
            let balance: Vec<f64> =
                made.numbers.as_f32()?.chunks(NUMBERS).map(|n| task.balance(n, None)).collect();
            let values = |tensor: &clearshot_tensor::Tensor| json!({"shape": tensor.shape().to_vec(), "values": tensor.to_f64()});
            let line = json!({
                "measured": values(&made.measured), "clean": values(&made.clean), "numbers": values(&made.numbers),
                "balance": balance,
            });
            writeln!(file, "{line}")?;
        }
    }
    Ok(())
}
