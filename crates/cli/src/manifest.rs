//! `clearshot manifest`: writes a data set as a CSV file with a fingerprint of every file, and checks whether the files
//! are unchanged.

use crate::progress::Line;
use anyhow::{Context, Result, bail};
use clap::Args;
use clearshot_image::dataset::{Altered, Listing};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Files that are named where some are left out.
const NAMED: usize = 5;

#[derive(Args)]
pub struct Manifest {
    /// List these folders or glob patterns of images, or of the inputs of pairs. If there are several, each is a domain with the name of
    /// its folder.
    #[arg(required_unless_present = "check")]
    inputs: Vec<String>,
    /// Add these targets of pairs: one folder or pattern for each input. A target has the same file name as its input. Default: no targets.
    #[arg(long, num_args = 1..)]
    targets: Vec<String>,
    /// Add these masks: one folder or pattern for each input. A mask has the same file name as its input, and marks invalid pixels; not
    /// every input needs one. Default: no masks.
    #[arg(long, num_args = 1..)]
    masks: Vec<String>,
    /// Set the names of the domains, one for each input. Default: the names of the folders.
    #[arg(long, num_args = 1..)]
    domains: Vec<String>,
    /// Write the manifest to this file. Files below its folder are listed with relative paths, so that both can be moved together.
    #[arg(long, short, alias = "output", required_unless_present = "check")]
    out: Option<PathBuf>,
    /// Check the files of this manifest; the exit status is 1 if one is missing or has changed.
    #[arg(long, conflicts_with_all = ["inputs", "targets", "masks", "domains", "out", "force"])]
    check: Option<PathBuf>,
    /// Replace an existing manifest. Default: an existing file is an error.
    #[arg(long)]
    force: bool,
    /// Print one JSON object. Default: text.
    #[arg(long)]
    json: bool,
}

impl Manifest {
    pub fn run(self) -> Result<()> {
        match (&self.check, &self.out) {
            (Some(path), _) => self.check(path),
            (None, Some(out)) => self.write(out),
            (None, None) => bail!("--out: missing; name the manifest to write, or check one with --check"),
        }
    }

    fn write(&self, out: &Path) -> Result<()> {
        for (flag, given) in
            [("--targets", &self.targets), ("--masks", &self.masks), ("--domains", &self.domains)]
        {
            if !given.is_empty() && given.len() != self.inputs.len() {
                bail!("{flag}: {} given for {} inputs; give one for each", given.len(), self.inputs.len());
            }
        }
        if clearshot_image::address::is_address(out) {
            bail!(
                "{}: a manifest must be a local file; the images that it lists may be at addresses",
                out.display()
            );
        }
        if out.symlink_metadata().is_ok() && !self.force {
            return Err(clearshot_image::Error::Exists { path: out.into() }.into());
        }
        let mut all = Listing::default();
        for (i, input) in self.inputs.iter().enumerate() {
            let mut part = match self.targets.get(i) {
                Some(targets) => Listing::pairs(input, targets)?,
                None => Listing::single(input)?,
            };
            if let Some(masks) = self.masks.get(i) {
                part = part.with_masks(masks)?;
            }
            let domain = match self.domains.get(i) {
                Some(name) => name.clone(),
                None if self.inputs.len() > 1 => folder_name(&part),
                None => String::new(),
            };
            for entry in part.entries.iter_mut().filter(|_| !domain.is_empty()) {
                entry.scene = format!("{domain}/{}", entry.scene);
                entry.domain.clone_from(&domain);
            }
            all.entries.append(&mut part.entries);
            all.unpaired.append(&mut part.unpaired);
        }
        for lost in all.unpaired.iter().take(NAMED) {
            eprintln!("clearshot: left out: {lost}");
        }
        if all.unpaired.len() > NAMED {
            eprintln!("clearshot: left out: {} more", all.unpaired.len() - NAMED);
        }
        let count = all.files().len();
        let mut line = Line::new(out.display().to_string());
        all.take_sums(|done| line.show(done, count))?;
        line.end();
        if let Some(folder) = out.parent().filter(|f| !f.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        }
        all.write_manifest(out, self.force)?;
        let (rows, identity) = (all.entries.len(), all.identity());
        let mut stdout = std::io::stdout().lock();
        if self.json {
            let report = serde_json::json!({
                "manifest": out, "rows": rows, "files": count, "left_out": all.unpaired, "identity": identity,
            });
            writeln!(stdout, "{report}")?;
        } else {
            writeln!(stdout, "{}: {rows} rows, {count} files, identity {identity}", out.display())?;
        }
        Ok(())
    }

    fn check(&self, path: &Path) -> Result<()> {
        let listing = Listing::manifest(path)?;
        let count = listing.files().len();
        let mut line = Line::new(path.display().to_string());
        let altered = listing.altered(|done| line.show(done, count))?;
        line.end();
        let bad = altered.iter().filter(|(_, what)| *what != Altered::Unknown).count();
        let mut stdout = std::io::stdout().lock();
        if self.json {
            let files: Vec<_> = altered
                .iter()
                .map(|(file, what)| serde_json::json!({"file": file, "is": what.word()}))
                .collect();
            let identity = listing.identity();
            let report =
                serde_json::json!({"manifest": path, "files": count, "altered": files, "identity": identity});
            writeln!(stdout, "{report}")?;
        } else {
            for (file, what) in &altered {
                writeln!(stdout, "{}: {}", file.display(), what.word())?;
            }
            let same = count - altered.len();
            writeln!(stdout, "{}: {same} of {count} files match", path.display())?;
        }
        match bad {
            0 => Ok(()),
            _ => bail!("{}: {bad} of {count} files are missing or have changed", path.display()),
        }
    }
}

/// The name of the folder that files lie in.
fn folder_name(listing: &Listing) -> String {
    let first = listing.entries.first().map(|e| e.input.canonicalize().unwrap_or_else(|_| e.input.clone()));
    let folder = first.as_deref().and_then(Path::parent).and_then(Path::file_name);
    folder.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}
