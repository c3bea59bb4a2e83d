//! The records of a run: a JSON line for each, TensorBoard event files, pictures; and their observers.

pub mod console;
pub mod event_file;
pub mod picture;

use crate::error::{Result, io};
use crate::watch::Watch;
use event_file::EventFile;
use serde_json::{Value as Json, json};
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// The file of JSON lines in a run's folder.
pub const RECORDS: &str = "records.jsonl";
/// The folder of event files.
pub const EVENTS: &str = "tensorboard";

pub struct Records<'w> {
    folder: PathBuf,
    path: PathBuf,
    file: Option<File>,
    position: u64,
    events: Option<EventFile>,
    /// Whether nothing is written: another rank does.
    silent: bool,
    /// The observer.
    pub watch: Box<dyn Watch + 'w>,
}

impl<'w> Records<'w> {
    /// Of a run in a folder, where nothing is written before [`Records::open`].
    pub fn new(folder: &Path, watch: Box<dyn Watch + 'w>) -> Records<'w> {
        let (path, folder) = (folder.join(RECORDS), folder.to_owned());
        Records { folder, path, file: None, position: 0, events: None, silent: false, watch }
    }

    /// Of a rank whose records another one writes.
    pub fn silent() -> Records<'w> {
        Records { silent: true, ..Records::new(Path::new(""), Box::new(())) }
    }

    /// Goes on behind the first `position` bytes; what follows them is cut off.
    ///
    /// # Errors
    /// If the folder cannot be written to.
    pub fn open(&mut self, position: u64, iteration: u64, events: bool) -> Result<()> {
        if self.silent {
            return Ok(());
        }
        let path = &self.path;
        let options = File::options().create(true).truncate(false).write(true).open(path);
        let mut file = options.map_err(io(path))?;
        let length = file.metadata().map_err(io(path))?.len();
        let position = position.min(length);
        file.set_len(position).map_err(io(path))?;
        file.seek(SeekFrom::End(0)).map_err(io(path))?;
        if events {
            self.events = Some(EventFile::create(&self.folder.join(EVENTS), iteration)?);
        }
        (self.file, self.position) = (Some(file), position);
        Ok(())
    }

    /// Bytes written so far.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// One record: `kind`, the iteration, and numbers by name.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn put(&mut self, kind: &str, iteration: u64, values: &[(String, f64)]) -> Result<()> {
        if self.silent {
            return Ok(());
        }
        let mut record = json!({ "kind": kind, "iteration": iteration });
        for (name, value) in values {
            // JSON has no number for what is not finite.
            record[name] = if value.is_finite() { json!(value) } else { Json::Null };
        }
        let text = format!("{record}\n");
        let file = self.file.as_mut().expect("records are opened before a run trains");
        file.write_all(text.as_bytes()).map_err(io(&self.path))?;
        self.position += text.len() as u64;
        self.watch.record(&record);
        if let Some(events) = &mut self.events {
            let tagged: Vec<(String, f64)> =
                values.iter().map(|(n, v)| (format!("{kind}/{n}"), *v)).collect();
            events.scalars(iteration, &tagged)?;
        }
        Ok(())
    }

    /// A picture that is also in a file of its own.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn picture(&mut self, iteration: u64, png: &event_file::Png<'_>) -> Result<()> {
        match &mut self.events {
            Some(events) => events.picture(iteration, "validation/pictures", png),
            None => Ok(()),
        }
    }
}
