//! The queue: a record on disk for every job, rewritten atomically at every change, so that a killed server continues with
//! the waiting jobs. One job runs at a time, on the one device; arrays whose client waits for the response run before
//! files.

use crate::http::Answer;
use crate::refusal::Refusal;
use crate::store::{Store, new_id};
use crate::worker::Engine;
use clearshot_tensor::store::write_whole;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// A job's record in its folder.
pub const RECORD: &str = "job.json";
/// Records that are kept, done or not, and arrays that wait, at most.
const MOST_JOBS: usize = 10_000;
const MOST_ARRAYS: usize = 8;
/// A job that was running when the server was killed so many times is not tried again.
const ATTEMPTS: u32 = 3;

/// The request. Keys are those of `clearshot restore`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Wanted {
    pub method: Option<String>,
    pub samples: Option<u32>,
    pub std: bool,
    pub chi2: bool,
    pub gain: Option<f64>,
    pub offset: Option<f64>,
    pub read_noise: Option<f64>,
    pub background: Option<f64>,
    pub item: Option<String>,
    pub planes: bool,
    pub frames_alone: bool,
    pub colours_alone: bool,
    pub steps: Option<u32>,
    pub seed: u64,
    pub float: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Queued,
    Running,
    Done,
    Failed,
    Cancelled,
}

impl State {
    pub const ALL: [State; 5] = [State::Queued, State::Running, State::Done, State::Failed, State::Cancelled];

    pub fn is_over(self) -> bool {
        !matches!(self, State::Queued | State::Running)
    }

    pub fn name(self) -> &'static str {
        match self {
            State::Queued => "queued",
            State::Running => "running",
            State::Done => "done",
            State::Failed => "failed",
            State::Cancelled => "cancelled",
        }
    }
}

/// A file that a job has made.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Made {
    /// `image`, `std` or `chi2`.
    pub what: String,
    /// As other requests name it.
    pub file: String,
    /// The number, in the input, of the image that it is of; the first of those that are in the file.
    #[serde(default)]
    pub item: usize,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    pub id: String,
    pub file: String,
    pub wanted: Wanted,
    pub state: State,
    /// Seconds since 1970.
    pub created: f64,
    pub started: Option<f64>,
    pub finished: Option<f64>,
    pub attempts: u32,
    pub error: Option<String>,
    pub report: Option<Value>,
    pub made: Vec<Made>,
}

/// How far the job at hand is.
#[derive(Clone, Default)]
pub struct Progress {
    pub done: usize,
    pub total: usize,
    pub seconds_left: Option<f64>,
    pub said: Vec<String>,
}

type Outcome = Result<Answer, Refusal>;

/// An array that waits for an answer.
pub struct ArrayTask {
    pub run: Box<dyn FnOnce(&mut Engine) -> Outcome + Send>,
    pub reply: Sender<Outcome>,
}

/// The next work for the worker.
pub enum Task {
    File(Box<Job>, Arc<AtomicBool>),
    Array(ArrayTask),
}

#[derive(Default)]
struct Inner {
    jobs: BTreeMap<String, Job>,
    waiting: VecDeque<String>,
    arrays: VecDeque<ArrayTask>,
    running: Option<(String, Arc<AtomicBool>, Progress)>,
    is_ending: bool,
}

pub struct Queue {
    inner: Mutex<Inner>,
    changed: Condvar,
    folder: PathBuf,
    most_waiting: usize,
}

pub fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}

impl Queue {
    /// With the jobs that are on disk: those that waited wait on, those that ran wait again.
    ///
    /// # Errors
    /// If a record cannot be written.
    pub fn open(store: &Store, most_waiting: usize) -> crate::Result<Queue> {
        let folder = store.jobs();
        let queue =
            Queue { inner: Mutex::default(), changed: Condvar::new(), folder: folder.clone(), most_waiting };
        let mut inner = queue.lock();
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let text = fs::read_to_string(entry.path().join(RECORD));
            let Ok(mut job) = text.map_err(drop).and_then(|t| serde_json::from_str::<Job>(&t).map_err(drop))
            else {
                continue;
            };
            if job.id != entry.file_name().to_string_lossy() {
                continue;
            }
            if job.state == State::Running {
                job.state = if job.attempts < ATTEMPTS { State::Queued } else { State::Failed };
                if job.state == State::Failed {
                    job.error = Some(format!("the server ended {ATTEMPTS} times while this job ran"));
                }
                queue.write(&job).map_err(|source| crate::Error::Io { path: entry.path(), source })?;
            }
            if job.state == State::Queued {
                inner.waiting.push_back(job.id.clone());
            }
            inner.jobs.insert(job.id.clone(), job);
        }
        // Names sort by time.
        inner.waiting.make_contiguous().sort();
        drop(inner);
        Ok(queue)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn write(&self, job: &Job) -> std::io::Result<()> {
        write_whole(&self.folder.join(&job.id).join(RECORD), serde_json::to_string_pretty(job)?.as_bytes())
    }

    /// Adds a job.
    ///
    /// # Errors
    /// If too many wait, or it cannot be written down.
    pub fn add(&self, file: String, wanted: Wanted) -> Result<Value, Refusal> {
        let mut inner = self.lock();
        if inner.waiting.len() >= self.most_waiting {
            let why = format!("{} jobs wait already (--max-queue); try again later", inner.waiting.len());
            return Err(Refusal::new(503, why));
        }
        if inner.jobs.len() >= MOST_JOBS {
            return Err(Refusal::new(507, format!("there are {MOST_JOBS} jobs; remove old ones first")));
        }
        let id = new_id()?;
        let job = Job {
            id: id.clone(),
            file,
            wanted,
            state: State::Queued,
            created: now(),
            started: None,
            finished: None,
            attempts: 0,
            error: None,
            report: None,
            made: Vec::new(),
        };
        fs::create_dir(self.folder.join(&id)).and_then(|()| self.write(&job)).map_err(|_| Refusal::ours())?;
        inner.jobs.insert(id.clone(), job);
        inner.waiting.push_back(id.clone());
        self.changed.notify_all();
        Ok(shown(&inner, &id))
    }

    /// Has an array computed, and waits for it.
    ///
    /// # Errors
    /// If too many wait, or it fails.
    pub fn compute(&self, task: ArrayTask) -> Result<(), Refusal> {
        let mut inner = self.lock();
        if inner.arrays.len() >= MOST_ARRAYS || inner.is_ending {
            return Err(Refusal::new(503, "too many arrays wait; try again later"));
        }
        inner.arrays.push_back(task);
        self.changed.notify_all();
        Ok(())
    }

    /// # Errors
    /// If there is none.
    pub fn one(&self, id: &str) -> Result<Value, Refusal> {
        let inner = self.lock();
        if inner.jobs.contains_key(id) { Ok(shown(&inner, id)) } else { Err(Refusal::missing(id)) }
    }

    /// The newest first.
    pub fn all(&self, most: usize) -> Value {
        let inner = self.lock();
        inner.jobs.keys().rev().take(most).map(|id| shown(&inner, id)).collect()
    }

    pub fn count(&self, state: State) -> usize {
        self.lock().jobs.values().filter(|j| j.state == state).count()
    }

    /// Ends a job that waits or runs.
    ///
    /// # Errors
    /// If there is none, or it is over.
    pub fn cancel(&self, id: &str) -> Result<Value, Refusal> {
        let mut inner = self.lock();
        if let Some((running, flag, _)) = &inner.running
            && running == id
        {
            flag.store(true, Ordering::SeqCst);
            return Ok(shown(&inner, id));
        }
        let Some(at) = inner.waiting.iter().position(|w| w == id) else {
            return Err(match inner.jobs.contains_key(id) {
                true => Refusal::new(409, "the job is over"),
                false => Refusal::missing(id),
            });
        };
        inner.waiting.remove(at);
        self.change(&mut inner, id, |job| {
            (job.state, job.finished) = (State::Cancelled, Some(now()));
        });
        Ok(shown(&inner, id))
    }

    /// Takes a job that is over away, with its results.
    ///
    /// # Errors
    /// If there is none, or it is not over.
    pub fn remove(&self, id: &str) -> Result<(), Refusal> {
        let mut inner = self.lock();
        match inner.jobs.get(id).map(|j| j.state.is_over()) {
            None => Err(Refusal::missing(id)),
            Some(false) => Err(Refusal::new(409, "the job is not over: cancel it first")),
            Some(true) => {
                fs::remove_dir_all(self.folder.join(id)).map_err(|_| Refusal::ours())?;
                inner.jobs.remove(id);
                Ok(())
            }
        }
    }

    fn change(&self, inner: &mut Inner, id: &str, how: impl FnOnce(&mut Job)) {
        if let Some(job) = inner.jobs.get_mut(id) {
            how(job);
            if let Err(e) = self.write(job) {
                eprintln!("clearshot: the record of job {id} could not be written: {e}");
            }
        }
    }

    /// The next work for the worker; `None` when the server ends.
    pub fn next(&self) -> Option<Task> {
        let mut inner = self.lock();
        loop {
            if inner.is_ending {
                return None;
            }
            if let Some(task) = inner.arrays.pop_front() {
                return Some(Task::Array(task));
            }
            if let Some(id) = inner.waiting.pop_front() {
                self.change(&mut inner, &id, |job| {
                    (job.state, job.started, job.attempts) = (State::Running, Some(now()), job.attempts + 1);
                });
                let flag = Arc::new(AtomicBool::new(false));
                inner.running = Some((id.clone(), Arc::clone(&flag), Progress::default()));
                return Some(Task::File(Box::new(inner.jobs[&id].clone()), flag));
            }
            inner = self.changed.wait(inner).unwrap_or_else(|e| e.into_inner());
        }
    }

    pub fn progress(&self, how: impl FnOnce(&mut Progress)) {
        if let Some((_, _, progress)) = &mut self.lock().running {
            how(progress);
        }
    }

    /// The job at hand is over; one that was stopped because the server ends is left to the next server.
    pub fn over(&self, how: impl FnOnce(&mut Job)) {
        let mut inner = self.lock();
        let Some((id, ..)) = inner.running.take() else { return };
        if !inner.is_ending {
            self.change(&mut inner, &id, |job| {
                how(job);
                job.finished = Some(now());
            });
        }
    }

    /// Lets the worker end.
    pub fn end(&self) {
        let mut inner = self.lock();
        inner.is_ending = true;
        inner.arrays.clear();
        if let Some((_, flag, _)) = &inner.running {
            flag.store(true, Ordering::SeqCst);
        }
        self.changed.notify_all();
    }

    pub fn folder(&self, id: &str) -> PathBuf {
        self.folder.join(id)
    }
}

/// A job in the form that clients get.
fn shown(inner: &Inner, id: &str) -> Value {
    let job = &inner.jobs[id];
    let mut value = json!(job);
    if let Some(at) = inner.waiting.iter().position(|w| w == id) {
        value["before"] = json!(at + usize::from(inner.running.is_some()));
    }
    if let Some((running, flag, progress)) = &inner.running
        && running == id
    {
        let Progress { done, total, seconds_left, said } = progress;
        value["progress"] = json!({
            "done": done, "total": total, "seconds_left": seconds_left, "said": said,
            "cancelling": flag.load(Ordering::SeqCst),
        });
    }
    value
}

/// The time that is left, from what is done of what.
pub fn seconds_left(since: Instant, done: usize, total: usize) -> Option<f64> {
    (done > 0 && total >= done).then(|| since.elapsed().as_secs_f64() * (total as f64 / done as f64 - 1.0))
}
