//! Every target for a second: `CLEARSHOT_FUZZ_SECONDS` makes it longer. Inputs are the same each time, as far as the time goes.

use clearshot_fuzz::{TARGETS, Target, mutate};
use std::time::{Duration, Instant};

/// Seeds are files that are read well, or their mutations would test little but the first check.
#[test]
fn seeds_are_files() {
    for target in TARGETS {
        let seeds = (target.seeds)();
        assert!(!seeds.is_empty() && seeds.iter().all(|s| !s.is_empty()), "{}", target.name);
    }
    let folder = tempfile::tempdir().unwrap();
    for (target, ending) in
        [("tiff", "tif"), ("fits_gz", "fits.gz"), ("dicom", "dcm"), ("jpeg", "jpg"), ("zarr_zip", "zarr.zip")]
    {
        for (i, seed) in (clearshot_fuzz::by_name(target).unwrap().seeds)().iter().enumerate() {
            let path = folder.path().join(format!("{i}.{ending}"));
            std::fs::write(&path, seed).unwrap();
            clearshot_image::Image::open(&path).unwrap_or_else(|e| panic!("{target} {i}: {e}"));
        }
    }
    for (i, seed) in clearshot_fuzz::seeds::model().iter().enumerate() {
        let path = folder.path().join(format!("{i}.clearshot"));
        std::fs::write(&path, seed).unwrap();
        clearshot_model::Model::load(&path).unwrap_or_else(|e| panic!("{e}"));
    }
    for seed in clearshot_fuzz::seeds::camera() {
        let path = folder.path().join("camera.json");
        std::fs::write(&path, seed).unwrap();
        clearshot_restore::camera::file::read(&path).unwrap_or_else(|e| panic!("{e}"));
    }
}

#[test]
fn mutations_are_the_same_each_time_and_differ() {
    let seeds = vec![(0..=255).collect::<Vec<u8>>()];
    let all: Vec<Vec<u8>> = (0..200).map(|round| mutate::input(&seeds, 3, round)).collect();
    assert!((0..200).all(|round| mutate::input(&seeds, 3, round as u64) == all[round]));
    let distinct: std::collections::BTreeSet<&Vec<u8>> = all.iter().collect();
    assert!(distinct.len() > 180, "{}", distinct.len());
}

#[test]
fn no_reader_panics() {
    let seconds = std::env::var("CLEARSHOT_FUZZ_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(1.0);
    let folder = tempfile::tempdir().unwrap();
    for target in TARGETS {
        run(target, Duration::from_secs_f64(seconds), folder.path());
    }
}

fn run(target: &Target, time: Duration, folder: &std::path::Path) {
    let (seeds, start) = ((target.seeds)(), Instant::now());
    seeds.iter().for_each(|seed| (target.read)(seed, folder));
    let mut round = 0;
    while start.elapsed() < time {
        let input = mutate::input(&seeds, 1, round);
        let outcome = std::panic::catch_unwind(|| (target.read)(&input, folder));
        assert!(outcome.is_ok(), "{}: round {round} of seed 1 panics", target.name);
        round += 1;
    }
}
