//! `--part`: the files of one job among many. The common parts of all commands with this option: the option, its
//! messages, and the calls of the library's [`SharedRun`].

use anyhow::{Result, bail};
use clap::Args;
use clearshot::{Extent, FileStanding, JobPart, SharedRun};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

#[derive(Args)]
pub struct PartArgs {
    /// Process one part of the files, so that several jobs share them: 3/8 is the third of eight parts of about equal bytes. A single image that is
    /// written as OME-Zarr (NAME.ome.zarr) is shared by chunks. `auto` takes part and count from a Slurm or AWS Batch job array; auto/8 takes only
    /// the part, also from an indexed Kubernetes Job. Run the same command without --part at the end: it does what is missing and checks that
    /// everything is there. Default: all files.
    #[arg(long, value_name = "I/N")]
    part: Option<String>,
}

/// A walk over files, shared with other jobs or not.
pub struct Jobs {
    run: Option<SharedRun>,
    /// The variable that the part was taken from.
    from: Option<&'static str>,
}

/// Parses a part; `auto` reads the variables of the scheduler, and the variable used is printed.
///
/// # Errors
/// If it is not one.
pub fn read(text: &str) -> Result<JobPart> {
    let (part, from) = JobPart::read(text, |name| std::env::var(name).ok())?;
    if let Some(from) = from {
        eprintln!("clearshot: part {part} (by {from})");
    }
    Ok(part)
}

impl PartArgs {
    /// Whether one is asked for.
    pub fn is_given(&self) -> bool {
        self.part.is_some()
    }

    /// Refuses an option that is about all files together, where it is given.
    ///
    /// # Errors
    /// Names the option.
    pub fn refuse(&self, option: &str, given: bool) -> Result<()> {
        if self.is_given() && given {
            bail!(
                "--part cannot be used with {option}, which is about all files together; leave one of them out"
            );
        }
        Ok(())
    }

    /// Begins a walk over files, or joins one; `work` says what is done to them, as all jobs do.
    ///
    /// # Errors
    /// If the part is not one, or other jobs do something else.
    pub fn open(&self, pairs: &[(PathBuf, PathBuf)], output: &Path, work: &str) -> Result<Jobs> {
        let variable = |name: &str| std::env::var(name).ok();
        let (part, from) = match &self.part {
            Some(text) => {
                let (part, from) = JobPart::read(text, variable)?;
                (Some(part), from)
            }
            None => {
                if let Some(scheduler) = JobPart::scheduler(variable).filter(|_| pairs.len() > 1) {
                    eprintln!(
                        "clearshot: a job array of {scheduler}, and this job does all {} files; --part auto shares them between the jobs",
                        pairs.len()
                    );
                }
                (None, None)
            }
        };
        Ok(Jobs { run: SharedRun::open(part, pairs, output, work)?, from })
    }
}

impl Jobs {
    /// What to say before the first file: a line for people, and the same as JSON.
    ///
    /// # Errors
    /// If the other jobs' notes cannot be read.
    pub fn heading(&self) -> Result<Option<(String, Value)>> {
        let Some(run) = &self.run else { return Ok(None) };
        let Extent { files, bytes, all_files, all_bytes } = run.extent();
        Ok(Some(match run.part() {
            Some(part) if run.cuts_image() => {
                let from = self.from.map_or(String::new(), |from| format!(" (by {from})"));
                let record = json!({
                    "event": "part", "part": part.index() + 1, "parts": part.count(), "from": self.from, "of": "image",
                });
                (format!("part {part}{from} of one image"), record)
            }
            Some(part) => {
                let from = self.from.map_or(String::new(), |from| format!(" (by {from})"));
                let mega = |bytes: u64| bytes as f64 / 1e6;
                let text = format!(
                    "part {part}{from}: {files} of {all_files} files, {:.1} of {:.1} MB",
                    mega(bytes),
                    mega(all_bytes)
                );
                let record = json!({
                    "event": "part", "part": part.index() + 1, "parts": part.count(), "from": self.from,
                    "files": files, "bytes": bytes, "all_files": all_files, "all_bytes": all_bytes,
                });
                (text, record)
            }
            None => {
                let (count, unfinished) = (run.count(), run.unfinished()?);
                let record = json!({"event": "parts", "parts": count, "unfinished": unfinished, "all_files": all_files});
                let what = match run.cuts_image() {
                    true => "one image".to_string(),
                    false => format!("{all_files} files"),
                };
                let text = match unfinished.is_empty() {
                    true => {
                        format!("all {count} parts of {what} are finished; checking them")
                    }
                    false => format!(
                        "{} of {count} parts are not finished ({}); what is missing of {what} is done here",
                        unfinished.len(),
                        some_of(&unfinished)
                    ),
                };
                (text, record)
            }
        }))
    }

    /// The run, where the only file is an image that is cut between the jobs.
    pub fn cut(&self) -> Option<&SharedRun> {
        self.run.as_ref().filter(|run| run.cuts_image())
    }

    /// Refuses an option that needs all of an image that is cut, where it is given.
    ///
    /// # Errors
    /// Names the option.
    pub fn refuse_cut(&self, option: &str, given: bool) -> Result<()> {
        if self.cut().is_some() && given {
            bail!(
                "{option} is about the whole image, which --part cuts between jobs; leave one of them out, or name a folder as the output so that each job has whole files"
            );
        }
        Ok(())
    }

    /// The numbers of the files that are done here.
    pub fn own(&self, files: usize) -> Vec<usize> {
        (0..files).filter(|&n| self.run.as_ref().is_none_or(|run| run.owns(n))).collect()
    }

    /// Whether the last run over parts looks at what they did.
    pub fn ends_parts(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.part().is_none())
    }

    /// What there is of a file, before it is done.
    ///
    /// # Errors
    /// If the notes cannot be read or written.
    pub fn begin(&self, number: usize, replace: bool) -> Result<FileStanding> {
        Ok(self.run.as_ref().map_or(Ok(FileStanding::New), |run| run.begin(number, replace))?)
    }

    /// Notes that a file is done, with what the last run is to know of it.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn done(&self, number: usize, of: &Value) -> Result<()> {
        Ok(self.run.as_ref().map_or(Ok(()), |run| run.done(number, of))?)
    }

    /// Ends the part, or the whole, after all files are done.
    ///
    /// # Errors
    /// If an output is missing.
    pub fn finish(self) -> Result<()> {
        Ok(self.run.map_or(Ok(()), SharedRun::finish)?)
    }
}

/// The first few of a list.
fn some_of(list: &[String]) -> String {
    const SHOWN: usize = 8;
    match list.len() > SHOWN {
        true => format!("{} and {} more", list[..SHOWN].join(", "), list.len() - SHOWN),
        false => list.join(", "),
    }
}
