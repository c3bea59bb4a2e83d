//! Makes records from methods and cases, each only once.
//!
//! A [`Store`] is a file of JSON lines, to which records are appended; existing records are not computed again. If two
//! lines have the same key, the last one counts. A line that was cut off by a crash is dropped when the store is opened.

use crate::case::Case;
use crate::method::{Method, Restored};
use crate::score::Scores;
use crate::{Assumed, EvaluateError};
use clearshot_image::picture::{Panel, Stretch, side_by_side};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// One method's result on one case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// Everything that the result follows from.
    pub key: String,
    pub method: String,
    pub learned: bool,
    /// Whether the method looks at the truth.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub oracle: bool,
    pub scene: String,
    pub peak: f64,
    pub index: u32,
    pub outcome: Outcome,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Scores(Scores),
    /// Why there are none.
    Failed(String),
}

impl Record {
    pub fn scores(&self) -> Option<&Scores> {
        match &self.outcome {
            Outcome::Scores(s) => Some(s),
            Outcome::Failed(_) => None,
        }
    }
}

/// Records on disk, or in memory only.
#[derive(Default)]
pub struct Store {
    place: Option<(PathBuf, File)>,
    done: HashMap<String, Record>,
}

impl Store {
    /// The store in a file, which is made if it is not there.
    ///
    /// # Errors
    /// If the file cannot be read or written, or holds something else.
    pub fn open(path: &Path) -> Result<Store, EvaluateError> {
        let io = |e: std::io::Error| EvaluateError::File { path: path.into(), why: e.to_string() };
        let mut store = Store::default();
        let whole = store.read(path)?;
        let file = File::options().create(true).append(true).open(path).map_err(io)?;
        file.set_len(whole as u64).map_err(io)?;
        store.place = Some((path.into(), file));
        Ok(store)
    }

    /// Also reads the records of another store's file, which is not changed. Records of this store take precedence.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn take(&mut self, path: &Path) -> Result<(), EvaluateError> {
        let own = std::mem::take(&mut self.done);
        self.read(path)?;
        // What failed elsewhere may have been done here, and the other way round.
        for (key, record) in own {
            if record.scores().is_some() || self.get(&key).and_then(Record::scores).is_none() {
                self.done.insert(key, record);
            }
        }
        Ok(())
    }

    /// Reads the records of a file, as far as its lines are whole, and returns how many bytes are.
    fn read(&mut self, path: &Path) -> Result<usize, EvaluateError> {
        let failed = |why: String| EvaluateError::File { path: path.into(), why };
        let bytes = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(e) => return Err(failed(e.to_string())),
        };
        // A line may be cut off within a letter.
        let whole = bytes.iter().rposition(|b| *b == b'\n').map_or(0, |i| i + 1);
        let text =
            std::str::from_utf8(&bytes[..whole]).map_err(|_| failed("not a file of records".into()))?;
        for (number, line) in text.lines().enumerate() {
            let record: Record = serde_json::from_str(line)
                .map_err(|e| failed(format!("line {} is not a record: {e}", number + 1)))?;
            self.done.insert(record.key.clone(), record);
        }
        Ok(whole)
    }

    pub fn len(&self) -> usize {
        self.done.len()
    }

    pub fn is_empty(&self) -> bool {
        self.done.is_empty()
    }

    pub fn get(&self, key: &str) -> Option<&Record> {
        self.done.get(key)
    }

    fn add(&mut self, record: Record) -> Result<(), EvaluateError> {
        // What fails again in the same way is there already.
        if self.get(&record.key) == Some(&record) {
            return Ok(());
        }
        if let Some((path, file)) = &mut self.place {
            let failed = |why: String| EvaluateError::File { path: path.clone(), why };
            let mut line = serde_json::to_string(&record).map_err(|e| failed(e.to_string()))?;
            line.push('\n');
            // One write, so that a crash leaves a whole line or one without an end.
            file.write_all(line.as_bytes()).map_err(|e| failed(e.to_string()))?;
        }
        self.done.insert(record.key.clone(), record);
        Ok(())
    }
}

/// A record that was just made.
pub struct Progress<'a> {
    /// Records that are there, of all.
    pub done: usize,
    pub total: usize,
    pub record: &'a Record,
    /// The time of restoring and scoring; cases may run in parallel.
    pub seconds: f64,
}

/// The key of a method's record on a case: what both follow from.
pub(crate) fn key(method: &dyn Method, case: &str, assumed: &Assumed) -> String {
    let assumed = match *assumed == Assumed::default() {
        true => String::new(),
        false => format!(
            "|told gain {} background {} read-noise {} psf {} shift {}",
            assumed.gain, assumed.background, assumed.read_noise, assumed.psf, assumed.shift
        ),
    };
    format!("{}|{case}{assumed}", method.identity())
}

/// Makes the records of every method on cases `0..count` that the store has no scores of, and returns them all, case by
/// case: what failed is tried again.
///
/// `name` names a case without making it, by everything that it follows from; `progress` hears of every record that was
/// made. A method that fails on a case gives a record that says so. `at_once` lets methods that threads can share work on a
/// case at the same time: sooner done, but no time is a method's own.
///
/// # Errors
/// If a case cannot be made or the store cannot be written.
pub fn run(
    methods: &[Box<dyn Method>],
    count: usize,
    name: &dyn Fn(usize) -> Result<String, EvaluateError>,
    case: &dyn Fn(usize) -> Result<Case, EvaluateError>,
    assumed: &Assumed,
    at_once: bool,
    store: &mut Store,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Vec<Record>, EvaluateError> {
    let total = methods.len() * count;
    let mut out = Vec::with_capacity(total);
    for number in 0..count {
        let case_name = name(number)?;
        let keys: Vec<String> = methods.iter().map(|m| key(m.as_ref(), &case_name, assumed)).collect();
        let missing = |k: &usize| store.get(&keys[*k]).and_then(Record::scores).is_none();
        let missing: Vec<usize> = (0..methods.len()).filter(missing).collect();
        if !missing.is_empty() {
            let case = case(number)?;
            let mut done = out.len() + methods.len() - missing.len();
            let mut keep = |(record, seconds): (Record, f64)| {
                store.add(record.clone())?;
                done += 1;
                progress(Progress { done, total, record: &record, seconds });
                Ok::<(), EvaluateError>(())
            };
            let is_shared = |k: &&usize| at_once && methods[**k].shared().is_some();
            let (shared, alone): (Vec<&usize>, Vec<&usize>) = missing.iter().partition(is_shared);
            let jobs: Vec<(&(dyn Method + Sync), String)> =
                shared.iter().filter_map(|k| Some((methods[**k].shared()?, keys[**k].clone()))).collect();
            let made: Vec<(Record, f64)> =
                jobs.into_par_iter().map(|(method, key)| timed(method, &case, assumed, key)).collect();
            made.into_iter().try_for_each(&mut keep)?;
            for k in alone {
                keep(timed(methods[*k].as_ref(), &case, assumed, keys[*k].clone()))?;
            }
        }
        for (method, key) in methods.iter().zip(&keys) {
            let record = store.get(key).expect("what was missing was made");
            // The same model may have been called otherwise when the record was made.
            let (method, learned) = (method.name().to_string(), method.is_learned());
            out.push(Record { method, learned, ..record.clone() });
        }
    }
    Ok(out)
}

fn timed(method: &dyn Method, case: &Case, assumed: &Assumed, key: String) -> (Record, f64) {
    let start = Instant::now();
    let record = record(method, case, assumed, key);
    (record, start.elapsed().as_secs_f64())
}

fn record(method: &dyn Method, case: &Case, assumed: &Assumed, key: String) -> Record {
    let scored = |restored: Restored| -> Result<Scores, String> {
        let scores = Scores::of(case, &restored, assumed).map_err(|e| e.to_string())?;
        if scores.is_finite() { Ok(scores) } else { Err("the result has pixels that are not finite".into()) }
    };
    let outcome = match method.restore_case(case).and_then(scored) {
        Ok(scores) => Outcome::Scores(scores),
        Err(why) => Outcome::Failed(why),
    };
    Record {
        key,
        method: method.name().into(),
        learned: method.is_learned(),
        oracle: method.is_oracle(),
        scene: case.scene.clone(),
        peak: case.peak,
        index: case.index,
        outcome,
    }
}

/// Truth, measurement and what each method makes of it, side by side, as PNG.
///
/// # Errors
/// If the case is not a plane, or the PNG cannot be made.
pub fn picture(methods: &[Box<dyn Method>], case: &Case) -> Result<Vec<u8>, EvaluateError> {
    let [y, x] = case.view.shape[..] else {
        return Err(EvaluateError::Setting {
            name: "the shape of a picture",
            got: format!("{:?}", case.view.shape),
            needed: "a plane",
        });
    };
    let stretch =
        Stretch { low: case.background as f32, high: (case.background + case.peak) as f32, gamma: 0.7 };
    let mut panels: Vec<Panel> = Vec::new();
    let mut add = |label: &str, values: Vec<f32>| -> Result<(), EvaluateError> {
        panels.push(Panel { stretch, ..Panel::new(label, values, [y, x])? });
        Ok(())
    };
    add("truth", case.truth.clone())?;
    for method in methods {
        if let Ok(restored) = method.restore_case(case) {
            add(method.name(), restored.mean)?;
        }
    }
    Ok(side_by_side(&panels, panels.len().min(5), 192).png()?)
}
