//! Checkpoints: one folder each, complete or absent.
//!
//! A folder is written under a temporary name, synchronised file by file, and renamed; it is removed in reverse. A folder
//! with the name of a checkpoint is therefore complete, whenever a run was killed. Which ones to keep follows from their
//! own contents, so there is no list that could be lost.

use crate::config::{CheckpointConfig, RunConfig};
use crate::error::{Result, TrainError, advised, io};
use crate::run::Judgement;
use clearshot_nn::Weights;
use clearshot_tensor::store::{Store, write_whole};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

/// The folder of them in a run's.
pub const FOLDER: &str = "checkpoints";
/// The folder of the model in one.
pub const MODEL: &str = "model";
pub(crate) const STATES: &str = "states.safetensors";
const PROGRESS: &str = "progress.json";
const CONFIG: &str = "config.json";
const PREFIX: &str = "iteration-";
/// How the names end of folders that are being written, that wait until another has taken their place, and that are
/// being removed.
const PART: &str = "part";
const OLD: &str = "old";
const GONE: &str = "gone";

/// How far a run is, beside its states.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// Iterations done.
    pub iteration: u64,
    /// Samples used; the number of the next one.
    pub images: u64,
    /// Iterations in all, once they are known.
    pub total: Option<u64>,
    /// Images of an iteration at the last stage, of each rank.
    pub batch: usize,
    /// How many ranks trained.
    #[serde(default = "one")]
    pub ranks: usize,
    pub stage: usize,
    /// The iteration that the stage began at.
    pub stage_began: u64,
    /// The best score, and validations since.
    pub best: Option<f64>,
    pub stale: usize,
    /// The same within the stage.
    pub stage_best: Option<f64>,
    pub stage_stale: usize,
    pub validations: u64,
    /// The score of these very weights, if they were validated.
    pub score: Option<f64>,
    /// Bytes of the records, and the iteration of the last one.
    pub records: u64,
    pub recorded: u64,
    /// Seconds of training.
    pub seconds: f64,
    /// Iterations that changed nothing because a gradient was not finite or the guard refused it, and how many of the latest,
    /// less a quarter for each good one since.
    pub skipped: u64,
    pub skipped_in_a_row: u64,
    /// Shares of domains in the present period and the next, where they follow the losses.
    #[serde(default)]
    pub shares: Vec<Vec<f64>>,
    /// Which files it trains on, as one number.
    #[serde(default)]
    pub files: Option<String>,
    /// How often the run went back to a checkpoint because it had diverged.
    #[serde(default)]
    pub returns: u64,
    /// The iteration that it went back to last.
    #[serde(default)]
    pub returned_to: Option<u64>,
    /// Images of every validation, where time decided how many.
    #[serde(default)]
    pub judged: Option<usize>,
    /// The score of the model that the run began from.
    #[serde(default)]
    pub start: Option<f64>,
    /// What estimates by the model that the run began from, and by the best so far, come to.
    #[serde(default)]
    pub judged_at_start: Vec<Judgement>,
    #[serde(default)]
    pub judged_at_best: Vec<Judgement>,
}

fn one() -> usize {
    1
}

/// What a checkpoint holds.
pub struct Saved {
    pub path: PathBuf,
    pub config: RunConfig,
    pub progress: Progress,
    pub states: Weights,
}

/// A checkpoint that is there.
#[derive(Clone, Debug)]
pub struct Found {
    pub path: PathBuf,
    pub progress: Progress,
}

fn name_of(iteration: u64) -> String {
    format!("{PREFIX}{iteration:09}")
}

fn sync(path: &Path) -> Result<()> {
    File::open(path).and_then(|f| f.sync_all()).map_err(io(path))
}

/// Makes every file below durable, then the folders.
fn sync_all(folder: &Path) -> Result<()> {
    for entry in std::fs::read_dir(folder).map_err(io(folder))? {
        let path = entry.map_err(io(folder))?.path();
        if path.is_dir() { sync_all(&path)? } else { sync(&path)? }
    }
    sync(folder)
}

/// Writes a checkpoint into `run`'s folder of them; `model` writes the model into the folder that it is given.
///
/// # Errors
/// If it cannot be written: then there is none, and those before are as they were.
pub fn write(
    run: &Path,
    config: &RunConfig,
    progress: &Progress,
    states: &Weights,
    model: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    let folder = run.join(FOLDER);
    std::fs::create_dir_all(&folder).map_err(io(&folder))?;
    let path = folder.join(name_of(progress.iteration));
    let aside = folder.join(format!(".{}.{}.{PART}", name_of(progress.iteration), std::process::id()));
    let attempt = (|| {
        std::fs::create_dir_all(&aside).map_err(io(&aside))?;
        model(&aside.join(MODEL))?;
        Store { tensors: states.clone(), metadata: BTreeMap::new() }.write(&aside.join(STATES))?;
        write_json(&aside.join(CONFIG), config)?;
        write_json(&aside.join(PROGRESS), progress)?;
        sync_all(&aside)?;
        let old = match path.exists() {
            true => Some(set_aside(&path, OLD)?),
            false => None,
        };
        if let Err(error) = std::fs::rename(&aside, &path) {
            if let Some(old) = &old {
                std::fs::rename(old, &path).map_err(io(&path))?;
            }
            return Err(TrainError::Io { path: path.clone(), error });
        }
        sync(&folder)?;
        match old {
            Some(old) => std::fs::remove_dir_all(&old).map_err(io(&old)),
            None => Ok(()),
        }
    })();
    if attempt.is_err() {
        let _ = std::fs::remove_dir_all(&aside);
    }
    attempt.map_err(|e| advised(&path, e))?;
    Ok(path)
}

fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|e| TrainError::Checkpoint { path: path.into(), reason: e.to_string() })?;
    write_whole(path, text.as_bytes()).map_err(io(path))
}

fn read_json<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<T> {
    let text = std::fs::read_to_string(path).map_err(io(path))?;
    let refused = |e: serde_json::Error| TrainError::Checkpoint { path: path.into(), reason: e.to_string() };
    serde_json::from_str(&text).map_err(refused)
}

/// Takes away its name.
fn set_aside(path: &Path, ending: &str) -> Result<PathBuf> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let aside = path.with_file_name(format!(".{name}.{}.{ending}", std::process::id()));
    std::fs::rename(path, &aside).map_err(io(path))?;
    Ok(aside)
}

/// Takes away its name first.
fn remove(path: &Path) -> Result<()> {
    let gone = set_aside(path, GONE)?;
    std::fs::remove_dir_all(&gone).map_err(io(&gone))
}

/// The checkpoints of a run, in the order of their iterations; damaged ones are left out.
///
/// # Errors
/// If the folder cannot be read.
pub fn list(run: &Path) -> Result<Vec<Found>> {
    Ok(sorted_out(run)?.0)
}

/// The last checkpoint of a run that is whole, and which others are not and why, a line each.
///
/// # Errors
/// If the folder cannot be read.
pub fn newest(run: &Path) -> Result<(Option<Saved>, Vec<String>)> {
    let (found, mut damaged) = sorted_out(run)?;
    let mut newest = None;
    for f in found.iter().rev() {
        match read(&f.path) {
            Ok(saved) => {
                newest = Some(saved);
                break;
            }
            Err(e) => damaged.push(e),
        }
    }
    Ok((newest, damaged.iter().map(|e| format!("a damaged checkpoint is ignored: {e}")).collect()))
}

/// The checkpoints whose progress can be read, in the order of their iterations, and why the others' cannot.
fn sorted_out(run: &Path) -> Result<(Vec<Found>, Vec<TrainError>)> {
    let folder = run.join(FOLDER);
    let (mut found, mut damaged) = (vec![], vec![]);
    if !folder.is_dir() {
        return Ok((found, damaged));
    }
    for entry in std::fs::read_dir(&folder).map_err(io(&folder))? {
        let path = entry.map_err(io(&folder))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with(PREFIX) {
            match read_json(&path.join(PROGRESS)) {
                Ok(progress) => found.push(Found { path, progress }),
                Err(e) => damaged.push(e),
            }
        }
    }
    found.sort_by_key(|f| f.progress.iteration);
    Ok((found, damaged))
}

/// Reads a checkpoint.
///
/// # Errors
/// If it is damaged or of another version: which file.
pub fn read(path: &Path) -> Result<Saved> {
    Ok(Saved {
        path: path.to_owned(),
        config: read_json(&path.join(CONFIG))?,
        progress: read_json(&path.join(PROGRESS))?,
        states: Store::read(&path.join(STATES))?.tensors,
    })
}

/// Removes what a killed run left half done; a checkpoint whose place no other has taken goes back. Only for who has
/// the run's lock.
///
/// # Errors
/// If it cannot be removed.
pub fn tidy(run: &Path) -> Result<()> {
    let folder = run.join(FOLDER);
    let Ok(entries) = std::fs::read_dir(&folder) else { return Ok(()) };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(of) = name.strip_prefix('.').filter(|n| n.starts_with(PREFIX)) else { continue };
        let (Some((of, _)), Some((_, ending))) = (of.split_once('.'), of.rsplit_once('.')) else { continue };
        let place = folder.join(of);
        if ending == OLD && !place.exists() {
            std::fs::rename(entry.path(), &place).map_err(io(&place))?;
        } else if [PART, OLD, GONE].contains(&ending) {
            std::fs::remove_dir_all(entry.path()).map_err(io(entry.path()))?;
        }
    }
    Ok(())
}

/// Whether it was written because its time had come, not because a run was stopped then. A run that has diverged goes
/// back to such a one only, for it must not matter where it was stopped.
pub fn is_timely(progress: &Progress, config: &CheckpointConfig) -> bool {
    config.every > 0 && progress.iteration.is_multiple_of(config.every)
}

/// Which checkpoints a configuration keeps: the last, the last timely one, the best of the latest stage, and one every so
/// often.
fn kept(found: &[Found], config: &CheckpointConfig) -> Vec<bool> {
    let last = found.len().saturating_sub(1);
    let mut by_score: Vec<usize> = (0..found.len()).filter(|&i| found[i].progress.score.is_some()).collect();
    by_score.sort_by(|&a, &b| {
        let rank = |i: usize| (found[i].progress.stage, found[i].progress.score.unwrap_or(f64::NEG_INFINITY));
        let ((stage_a, score_a), (stage_b, score_b)) = (rank(a), rank(b));
        stage_b.cmp(&stage_a).then(score_b.total_cmp(&score_a))
    });
    by_score.truncate(config.top);
    let periodic = |p: &Progress| config.keep_every > 0 && p.iteration.is_multiple_of(config.keep_every);
    let timely = found.iter().rposition(|f| is_timely(&f.progress, config));
    (0..found.len())
        .map(|i| i == last || timely == Some(i) || by_score.contains(&i) || periodic(&found[i].progress))
        .collect()
}

/// Whether a score is among those that are kept; one that is not finite never is.
pub fn is_among_best(found: &[Found], config: &CheckpointConfig, stage: usize, score: f64) -> bool {
    let better = |f: &&Found| f.progress.stage == stage && f.progress.score.is_some_and(|s| s >= score);
    score.is_finite() && found.iter().filter(better).count() < config.top
}

/// Removes the checkpoints of later iterations.
///
/// # Errors
/// If one cannot be removed.
pub fn remove_after(run: &Path, iteration: u64) -> Result<()> {
    list(run)?.iter().filter(|f| f.progress.iteration > iteration).try_for_each(|f| remove(&f.path))
}

/// Removes the checkpoints that need not be kept.
///
/// # Errors
/// If one cannot be removed.
pub fn prune(run: &Path, config: &CheckpointConfig) -> Result<()> {
    let found = list(run)?;
    for (f, kept) in found.iter().zip(kept(&found, config)) {
        if !kept {
            remove(&f.path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clearshot_tensor::Tensor;

    fn progress(iteration: u64, stage: usize, score: Option<f64>) -> Progress {
        Progress { iteration, stage, score, ..Progress::default() }
    }

    #[test]
    fn the_last_the_best_and_the_periodic_are_kept() {
        let found: Vec<Found> = [
            (1, 0, Some(40.0)),
            (2, 1, Some(30.0)),
            (3, 1, None),
            (4, 1, Some(31.0)),
            (5, 1, Some(29.0)),
            (6, 1, None),
        ]
        .map(|(i, stage, score)| Found { path: PathBuf::new(), progress: progress(i, stage, score) })
        .into();
        let config = CheckpointConfig { every: 0, top: 2, keep_every: 3 };
        assert_eq!(kept(&found, &config), [false, true, true, true, false, true]);
        // The way back stays, whatever was written since.
        let timely = CheckpointConfig { every: 5, top: 0, keep_every: 0 };
        assert_eq!(kept(&found, &timely), [false, false, false, false, true, true]);
        assert!(is_among_best(&found, &config, 1, 30.5) && !is_among_best(&found, &config, 1, 29.5));
        assert!(
            !is_among_best(&[], &config, 1, f64::NEG_INFINITY) && !is_among_best(&[], &config, 1, f64::NAN)
        );
    }

    #[test]
    fn checkpoints_round_trip_and_incomplete_ones_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let states: Weights = [("w".to_string(), Tensor::f32([2], vec![1.5, f32::MIN_POSITIVE]))].into();
        let config = RunConfig { name: "x".into(), ..RunConfig::default() };
        let model = |p: &Path| std::fs::create_dir(p).map_err(io(p));
        let before = Progress { seconds: 0.1 + 0.2, best: Some(1.0 / 3.0), ..progress(7, 0, Some(2.0)) };
        let path = write(dir.path(), &config, &before, &states, model).unwrap();
        let back = read(&path).unwrap();
        assert_eq!(
            (back.config, back.progress, back.states),
            (config.clone(), before.clone(), states.clone())
        );
        let half = dir.path().join(FOLDER).join(".iteration-000000009.1.part");
        std::fs::create_dir(&half).unwrap();
        let failing = |p: &Path| Err(TrainError::Checkpoint { path: p.into(), reason: "no".into() });
        assert!(write(dir.path(), &config, &progress(8, 0, None), &states, failing).is_err());
        assert_eq!(list(dir.path()).unwrap().len(), 1);
        tidy(dir.path()).unwrap();
        let count = || std::fs::read_dir(dir.path().join(FOLDER)).unwrap().count();
        assert_eq!(count(), 1);
        // Killed after the old one gave up its name and before the new one had it.
        set_aside(&path, OLD).unwrap();
        assert!(list(dir.path()).unwrap().is_empty());
        tidy(dir.path()).unwrap();
        assert_eq!(read(&path).unwrap().progress, before);
        // Written again: the new one is there, and nothing of the old one.
        let again = Progress { seconds: 9.0, ..before };
        write(dir.path(), &config, &again, &states, model).unwrap();
        assert_eq!((read(&path).unwrap().progress, count()), (again, 1));
        // Killed before the old one was removed.
        let old = dir.path().join(FOLDER).join(".iteration-000000007.1.old");
        std::fs::create_dir(&old).unwrap();
        tidy(dir.path()).unwrap();
        assert!(path.exists() && !old.exists());
    }
}
