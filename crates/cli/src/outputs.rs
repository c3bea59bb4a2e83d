//! The output of each input, and the loop over all files, which continues if one fails. If several jobs share the
//! files, each job processes some.

use crate::failure::worded;
use crate::part::Jobs;
use anyhow::{Context, Result, bail};
use clap::Args;
use clearshot::{FileStanding, SharedRun};
use clearshot_image::address::is_address;
use clearshot_image::dataset::list::{files, stem};
use clearshot_image::format::{WRITTEN, has_known_extension, refuse_output};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf, is_separator};

/// Extensions of image files that are not written; a folder with such a name would be a mistake.
const NOT_WRITTEN: [&str; 12] =
    ["jpg", "jpeg", "bmp", "gif", "webp", "heic", "czi", "nd2", "lif", "mrc", "h5", "pdf"];

/// What a verb reads and what it writes: `IN... OUT`, or `IN... --output OUT`.
#[derive(Args)]
pub struct Paths {
    /// Read these files, folders, glob patterns or Zarr addresses (s3://, https://); the last is the output, unless --output names it.
    #[arg(required = true, value_name = "IN")]
    files: Vec<String>,
    /// Write to this file, whose extension sets the format, or to s3://BUCKET/NAME.zarr; for several inputs, to this folder. Default: the last of the
    /// names without an option.
    #[arg(short, long, alias = "out", value_name = "OUT")]
    output: Option<PathBuf>,
}

impl Paths {
    /// The inputs, and the output.
    ///
    /// # Errors
    /// If no output is named.
    pub fn split(&self) -> Result<(&[String], &Path)> {
        match (&self.output, self.files.split_last()) {
            (Some(output), _) => Ok((&self.files, output)),
            (None, Some((output, inputs))) if !inputs.is_empty() => Ok((inputs, Path::new(output))),
            _ => bail!("no output is given; write IN... OUT, or IN... --output OUT"),
        }
    }
}

/// Whether the output of so many inputs is one file, by its extension. Nothing is made.
///
/// # Errors
/// If several inputs would be written to one file, or the name has an extension of a format that is not written. A single
/// input goes into a folder with such a name only if the folder exists or the name ends in a slash.
pub fn is_one_file(output: &Path, inputs: usize) -> Result<bool> {
    let named = has_known_extension(output);
    if named && inputs > 1 {
        bail!("{}: a single file, for {inputs} images; name a folder", output.display());
    }
    if output.is_dir() || is_address(output) {
        return Ok(named);
    }
    let ending = output.extension().unwrap_or_default().to_string_lossy();
    if let Some(ending) = not_written(output) {
        bail!("{}: .{ending} files are not written here; write {WRITTEN}", output.display());
    }
    let is_folder =
        named || ending.is_empty() || inputs != 1 || output.to_string_lossy().ends_with(is_separator);
    if !is_folder {
        bail!(
            "{0}: .{ending} is not the extension of a format that is written; write {WRITTEN}, or {0}/ for a folder",
            output.display()
        );
    }
    Ok(named)
}

/// Makes the folder that an output goes into, or that several go into; at an address there is nothing to make.
pub fn prepare(output: &Path) -> Result<()> {
    if is_address(output) {
        return Ok(refuse_output(output)?);
    }
    let folder = if has_known_extension(output) { output.parent() } else { Some(output) };
    if let Some(folder) = folder.filter(|f| !f.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    Ok(())
}

/// The ending of a file of that name, where such files are not written.
fn not_written(path: &Path) -> Option<&'static str> {
    let ending = path.extension()?.to_string_lossy().to_lowercase();
    NOT_WRITTEN.into_iter().find(|e| *e == ending)
}

/// What a file becomes in a folder: its own name, or where such files are not written, that of a TIFF; at an address
/// that of a Zarr folder. A folder of Zarr without an ending gets one.
pub fn result_in(folder: &Path, input: &Path) -> PathBuf {
    let name = input.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let is_folder = name.to_lowercase().ends_with(".zarr");
    folder.join(match not_written(input) {
        _ if is_address(folder) && !is_folder => format!("{}.ome.zarr", stem(input)),
        _ if is_address(input) && !is_folder => format!("{}.ome.zarr", stem(input)),
        Some(_) => format!("{}.tif", stem(input)),
        None => name,
    })
}

/// The files that an input names.
pub fn listed(source: &str) -> Result<Vec<PathBuf>> {
    if source == "-" && !Path::new(source).exists() {
        bail!("-: standard input is not read; name a file, a folder or a pattern such as 'raw/*.tif'");
    }
    Ok(files(source)?)
}

/// Inputs (files, folders, glob patterns, addresses) with their outputs: one named file, or files in a folder under their own names,
/// with another ending if `to` says one; what cannot be written as it was read becomes a TIFF. Two inputs must not become one.
pub fn pairs(sources: &[String], output: &Path, to: Option<&str>) -> Result<Vec<(PathBuf, PathBuf)>> {
    let mut inputs = Vec::new();
    for source in sources {
        inputs.extend(listed(source)?);
    }
    let named = is_one_file(output, inputs.len())?;
    prepare(output)?;
    if named && to.is_none() {
        return Ok(inputs.into_iter().map(|input| (input, output.to_path_buf())).collect());
    }
    if !is_address(output) {
        std::fs::create_dir_all(output).with_context(|| output.display().to_string())?;
    }
    let mut taken: HashMap<PathBuf, PathBuf> = HashMap::new();
    let mut pairs = Vec::new();
    for input in inputs {
        let path = match to {
            Some(ending) => output.join(format!("{}.{}", stem(&input), ending.trim_start_matches('.'))),
            None => result_in(output, &input),
        };
        if let Some(other) = taken.insert(path.clone(), input.clone()) {
            bail!("{} and {} would both become {}", other.display(), input.display(), path.display());
        }
        pairs.push((input, path));
    }
    Ok(pairs)
}

/// One file of a walk.
pub struct Turn<'a> {
    pub input: &'a Path,
    pub output: &'a Path,
    /// For the progress.
    pub name: String,
    /// What is there of the output may be replaced.
    pub replace: bool,
    /// Where the only image is cut between jobs.
    pub run: Option<&'a SharedRun>,
}

/// How a walk over files goes.
pub struct Walk<'a> {
    pub jobs: Jobs,
    pub pairs: &'a [(PathBuf, PathBuf)],
    /// Outputs that are there already may be replaced.
    pub replace: bool,
    /// Print JSON lines.
    pub json: bool,
    /// The verb for the summary of failed files.
    pub done: &'a str,
}

impl Walk<'_> {
    /// Calls with each file that is done here.
    ///
    /// # Errors
    /// The only file's error, or how many of several failed, each having been reported.
    pub fn each(self, mut one: impl FnMut(Turn<'_>) -> Result<()>) -> Result<()> {
        let Walk { jobs, pairs, replace, json, done } = self;
        let say = |text: &str, record: &Value| -> Result<()> {
            let mut out = std::io::stdout().lock();
            let line = if json { record.to_string() } else { text.to_string() };
            Ok(writeln!(out, "{line}")?)
        };
        if let Some((text, record)) = jobs.heading()? {
            say(&text, &record)?;
        }
        let own = jobs.own(pairs.len());
        let total = own.len();
        let (mut failed, mut found) = (0, 0);
        for (at, &number) in own.iter().enumerate() {
            let (input, output) = (&*pairs[number].0, &*pairs[number].1);
            let name = format!("{}/{total} {}", at + 1, output.display());
            let mut turn = || -> Result<()> {
                let standing = jobs.begin(number, replace)?;
                if matches!(standing, FileStanding::Done(_)) {
                    found += 1;
                    return Ok(());
                }
                let replace = replace || standing == FileStanding::Begun;
                one(Turn { input, output, name: name.clone(), replace, run: jobs.cut() })?;
                jobs.done(number, &Value::Null)
            };
            if let Err(e) = turn() {
                if total == 1 {
                    return Err(e);
                }
                failed += 1;
                eprintln!("clearshot: {}", worded(&e));
            }
        }
        if failed > 0 {
            bail!("{failed} of {total} files could not be {done}");
        }
        if found > 0 || jobs.ends_parts() {
            let record = json!({"event": "summary", done: total - found, "already_done": found});
            say(&format!("{} {done}, {found} already done", total - found), &record)?;
        }
        jobs.finish()
    }
}
