//! A run over several files that is shared by several jobs: each restores the files of its [`JobPart`], and a last run
//! without a part restores missing files, checks that everything is complete and removes the notes of the jobs. A
//! single image that becomes OME-Zarr is divided: each job makes its own chunks of the one output
//! ([`clearshot_image::Share`]), and the last run makes the lower resolutions and the metadata.
//!
//! The notes are in a hidden folder in the output folder, or beside an output that is one file. `run.json` is written
//! first and records the operation and the files, so that jobs with another run, another list of files or another
//! version of the program are refused. Each file has a note: first that it was begun, then that it is done. An existing
//! output with a note belongs to this run, and is made again if it was only begun; an output without a note is not from
//! this run and is kept. The note of a part is written when all of its files, or chunks, are done. Decisions about a
//! divided image, such as its camera, are made by every job from the same pixels; the first job saves them, and a job
//! with a different result is refused.

use crate::error::{Error, Result};
use crate::job_part::{JobPart, shares, size_of};
use clearshot_image::address::{exists, is_address};
use clearshot_image::format::{can_be_shared, has_known_extension};
use clearshot_image::{Description, Marks, Share, WriteOptions, Writer};
use clearshot_tensor::Fnv1a;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// The folder of notes.
const FOLDER: &str = ".clearshot-parts";
/// The operation and the files.
const RUN: &str = "run.json";
/// The decisions about a divided image.
const DECIDED: &str = "decided.json";

/// See the module.
pub struct SharedRun {
    /// `None` in the last run.
    part: Option<JobPart>,
    count: usize,
    marks: Marks,
    files: Vec<File>,
    /// Equal for all jobs of this run, and different for any other run.
    id: String,
    /// Whether the only file is cut between the jobs.
    cuts: bool,
}

struct File {
    output: PathBuf,
    /// Its note.
    note: String,
    bytes: Option<u64>,
    part: usize,
}

/// The state of a file's output.
#[derive(Clone, Debug, PartialEq)]
pub enum FileStanding {
    /// Nothing from this run.
    New,
    /// A job of this run began it, but did not finish: an existing file may be replaced.
    Begun,
    /// It is done, with its note.
    Done(Value),
}

/// The numbers of files and bytes of one part, and of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// Files of the part.
    pub files: usize,
    /// Bytes of those, as far as they are known.
    pub bytes: u64,
    /// All files.
    pub all_files: usize,
    /// Bytes of those.
    pub all_bytes: u64,
}

impl SharedRun {
    /// Begins or joins a run that makes the second file of each pair from the first. Without a part, completes a run if
    /// its notes are at the output. `work` describes the operation, with the same text in all jobs.
    ///
    /// # Errors
    /// If the notes are from another run, or cannot be read or written.
    pub fn open(
        part: Option<JobPart>,
        pairs: &[(PathBuf, PathBuf)],
        output: &Path,
        work: &str,
    ) -> Result<Option<SharedRun>> {
        let marks = Marks::at(&folder_for(output))?;
        let found = match part {
            Some(_) => None,
            // A server that does not answer is found out, and said, where the output is written.
            None => match marks.get(RUN) {
                Ok(Some(found)) => Some(found),
                Ok(None) | Err(_) => return Ok(None),
            },
        };
        let sizes: Vec<Option<u64>> = pairs.iter().map(|(input, _)| size_of(input)).collect();
        let mut run = described(pairs, &sizes, work);
        let count = match (part, found) {
            (Some(part), _) => {
                run["parts"] = part.count().into();
                if !marks.put_new(RUN, run.to_string().as_bytes())? {
                    let found = marks.get(RUN)?.unwrap_or_default();
                    compared(&run, &found, &marks)?;
                }
                part.count()
            }
            (None, found) => compared(&run, &found.unwrap_or_default(), &marks)?,
        };
        run["parts"] = count.into();
        let id = format!("{:016x}", Fnv1a::of(run.to_string().as_bytes()));
        let cuts = matches!(pairs, [(_, output)] if can_be_shared(output));
        let shares = shares(&sizes, count);
        let file = |(n, (_, output)): (usize, &(PathBuf, PathBuf))| {
            let (output, note) = (output.clone(), format!("file-{n}.json"));
            File { output, note, bytes: sizes[n], part: shares[n] }
        };
        let files = pairs.iter().enumerate().map(file).collect();
        Ok(Some(SharedRun { part, count, marks, files, id, cuts }))
    }

    /// The part of this job; `None` in the last run.
    pub fn part(&self) -> Option<JobPart> {
        self.part
    }

    /// The number of parts.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Whether a single image is divided among the jobs.
    pub fn cuts_image(&self) -> bool {
        self.cuts
    }

    /// The share of this job in the divided output; chunks along the axes `together` are not separated.
    pub fn share(&self, together: Vec<usize>) -> Share {
        let part = self.part.map(|part| (part.index(), part.count()));
        Share { id: self.id.clone(), part, together }
    }

    /// Begins or joins the divided output; `decided` has the decisions about the image. Chunks along the axes
    /// `together`, of which the restorer needs the full length, are not separated.
    ///
    /// # Errors
    /// If there is nothing to divide, another job has different decisions, or the output cannot be created.
    pub(crate) fn join(
        &self,
        path: &Path,
        d: &Description,
        options: &WriteOptions,
        together: Vec<usize>,
        decided: &Value,
    ) -> Result<Writer> {
        let share = self.share(together);
        let writer = Writer::join(path, d, options, &share)?;
        if self.count > 1 && share.units(writer.grid(0)) < 2 {
            let why = match share.together.is_empty() {
                true => "its output is a single chunk",
                false => {
                    "it is one plane or volume, of which this method needs all at once (a model that draws samples, deconvolves or sees whole tiles, or a classical method that is not local)"
                }
            };
            return Err(Error::Refused(format!(
                "the image cannot be cut between {} jobs: {why}; leave --part out",
                self.count
            )));
        }
        self.agree(decided)?;
        Ok(writer)
    }

    /// Saves the decisions about the divided image, or checks that they equal those of the first job.
    ///
    /// # Errors
    /// If another job has different decisions, or notes cannot be written.
    fn agree(&self, decided: &Value) -> Result<()> {
        if self.marks.put_new(DECIDED, decided.to_string().as_bytes())? {
            return Ok(());
        }
        let found = self.marks.get(DECIDED)?.unwrap_or_default();
        let theirs: Value = serde_json::from_slice(&found).unwrap_or_default();
        // As a note has it, so that numbers are compared as they are written.
        let ours: Value = serde_json::from_str(&decided.to_string()).unwrap_or_default();
        let Some(key) = difference(&ours, &theirs) else { return Ok(()) };
        Err(Error::Refused(format!(
            "{}: another job found something else in this image ({key}); the jobs must run on the same kind of processor or device, or be given the camera's numbers and one method, so that nothing is estimated",
            self.marks.path().display()
        )))
    }

    /// The state of the divided image, before this job begins.
    fn begin_cut(&self, replace: bool) -> Result<FileStanding> {
        let output = &self.files[0].output;
        let there = exists(output)?;
        if let Some(part) = self.part {
            if self.marks.get(&part_note(part.index(), part.count()))?.is_some() {
                return Ok(FileStanding::Done(Value::Null));
            }
        } else {
            // A last run that was killed may have completed the image and not taken the notes away.
            if there && self.marks.get(&self.files[0].note)?.is_some() {
                return Ok(FileStanding::Done(Value::Null));
            }
            self.note(0, "completing", &Value::Null)?;
        }
        match there && (!replace || is_address(output)) {
            true => Err(clearshot_image::Error::Exists { path: output.clone() }.into()),
            false => Ok(FileStanding::New),
        }
    }

    /// Whether this job restores a file.
    pub fn owns(&self, number: usize) -> bool {
        self.cuts || self.part.is_none_or(|part| self.files[number].part == part.index())
    }

    /// The amount of work of this job.
    pub fn extent(&self) -> Extent {
        let mut extent = Extent::default();
        for (n, file) in self.files.iter().enumerate() {
            let bytes = file.bytes.unwrap_or(0);
            extent.all_files += 1;
            extent.all_bytes += bytes;
            if self.owns(n) {
                extent.files += 1;
                extent.bytes += bytes;
            }
        }
        extent
    }

    /// The state of a file before this job restores it. A file without a note is noted as begun.
    ///
    /// # Errors
    /// If the notes cannot be read or written.
    pub fn begin(&self, number: usize, replace: bool) -> Result<FileStanding> {
        if self.cuts {
            return self.begin_cut(replace);
        }
        let file = &self.files[number];
        let is_there = exists(&file.output)?;
        let note = self.marks.get(&file.note)?.and_then(|note| serde_json::from_slice::<Value>(&note).ok());
        match note {
            Some(note) if note["state"] == "done" && is_there => Ok(FileStanding::Done(note["of"].clone())),
            Some(_) => Ok(FileStanding::Begun),
            None => {
                if !is_there || replace {
                    self.note(number, "begun", &Value::Null)?;
                }
                Ok(FileStanding::New)
            }
        }
    }

    /// Notes that a file is done.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn done(&self, number: usize, of: &Value) -> Result<()> {
        // Of an image that is cut the part's own note says it.
        if self.cuts { Ok(()) } else { self.note(number, "done", of) }
    }

    fn note(&self, number: usize, state: &str, of: &Value) -> Result<()> {
        let part = self.part.map(|part| part.to_string());
        let note = json!({"state": state, "part": part, "of": of});
        Ok(self.marks.put(&self.files[number].note, note.to_string().as_bytes())?)
    }

    /// The unfinished parts, as `3/8`.
    ///
    /// # Errors
    /// If the notes cannot be read.
    pub fn unfinished(&self) -> Result<Vec<String>> {
        let mut list = Vec::new();
        for index in 0..self.count {
            if self.marks.get(&part_note(index, self.count))?.is_none() {
                list.push(format!("{}/{}", index + 1, self.count));
            }
        }
        Ok(list)
    }

    /// Ends the part of this job, or the whole run, after all files are done: checks that every output exists, and
    /// writes the note of the part or removes all notes.
    ///
    /// # Errors
    /// If an output is missing, or the notes cannot be written.
    pub fn finish(self) -> Result<()> {
        for (n, file) in self.files.iter().enumerate() {
            let is_made_here = self.owns(n) && !(self.cuts && self.part.is_some());
            if is_made_here && !exists(&file.output)? {
                let output = file.output.display();
                return Err(Error::Refused(format!("{output} was written and is missing now; run it again")));
            }
        }
        match self.part {
            None => Ok(self.marks.clear(RUN)?),
            Some(part) => {
                let extent = self.extent();
                let note = json!({"files": extent.files, "bytes": extent.bytes});
                let name = part_note(part.index(), part.count());
                // The same part may have come to its end before.
                self.marks.put_new(&name, note.to_string().as_bytes())?;
                Ok(())
            }
        }
    }
}

/// The first key under which two values differ, with both.
fn difference(ours: &Value, theirs: &Value) -> Option<String> {
    if ours == theirs {
        return None;
    }
    match (ours, theirs) {
        (Value::Object(a), Value::Object(b)) => {
            a.keys().chain(b.keys()).find(|key| a.get(*key) != b.get(*key)).map(|key| {
                let (a, b) = (&ours[key], &theirs[key]);
                format!("{key}: {b} there, {a} here")
            })
        }
        _ => Some(format!("{theirs} there, {ours} here")),
    }
}

fn part_note(index: usize, count: usize) -> String {
    format!("part-{}-of-{count}.json", index + 1)
}

fn folder_for(output: &Path) -> PathBuf {
    match has_known_extension(output) {
        true => {
            let name = output.file_name().unwrap_or_default().to_string_lossy();
            output.with_file_name(format!(".{name}{FOLDER}"))
        }
        false => output.join(FOLDER),
    }
}

/// What all jobs of a run have in common, but for the number of parts.
fn described(pairs: &[(PathBuf, PathBuf)], sizes: &[Option<u64>], work: &str) -> Value {
    let list: String = pairs
        .iter()
        .zip(sizes)
        .map(|((input, output), size)| format!("{}\t{}\t{size:?}\n", input.display(), output.display()))
        .collect();
    let hash = |text: &str| format!("{:016x}", Fnv1a::of(text.as_bytes()));
    json!({"version": env!("CARGO_PKG_VERSION"), "work": hash(work), "files": pairs.len(), "list": hash(&list)})
}

/// The number of parts of the run that is there, if it is the same.
fn compared(run: &Value, found: &[u8], marks: &Marks) -> Result<usize> {
    let place = marks.path().display();
    let refused = |what: String| {
        Err(Error::Refused(format!(
            "{place}: {what}; end that run first (the same command without --part), or remove this folder to begin again"
        )))
    };
    let Ok(found) = serde_json::from_slice::<Value>(found) else {
        return refused("holds no notes of a run".into());
    };
    let text = |of: &Value, key: &str| of[key].as_str().unwrap_or("?").to_string();
    if found["version"] != run["version"] {
        let (theirs, ours) = (text(&found, "version"), text(run, "version"));
        return refused(format!("another job is of version {theirs} of the program, and this one of {ours}"));
    }
    if found["work"] != run["work"] {
        return refused("another job has other options, and all must have the same".into());
    }
    if found["list"] != run["list"] {
        let (theirs, ours) = (&found["files"], &run["files"]);
        return refused(format!(
            "another job has {theirs} input files where this one has {ours}, or they have changed since"
        ));
    }
    match (found["parts"].as_u64(), run["parts"].as_u64()) {
        (Some(theirs), Some(ours)) if theirs != ours => {
            refused(format!("another job is one of {theirs} parts, and this one of {ours}"))
        }
        (Some(theirs), _) if theirs > 0 => Ok(theirs as usize),
        _ => refused("holds no notes of a run".into()),
    }
}
