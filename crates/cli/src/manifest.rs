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
    /// Folders or glob patterns of images, or of the inputs of pairs. Of several, each is a domain of its own, called as its
    /// folder is.
    #[arg(required_unless_present = "check")]
    inputs: Vec<String>,
    /// The targets of pairs: as many folders or patterns as there are inputs. A target has the name of its input.
    #[arg(long, num_args = 1..)]
    targets: Vec<String>,
    /// Masks: as many folders or patterns as there are inputs. A mask has the name of its input, and marks pixels that hold no
    /// measurement; not every input needs one.
    #[arg(long, num_args = 1..)]
    masks: Vec<String>,
    /// What the domains are called, where that is not what their folders are called.
    #[arg(long, num_args = 1..)]
    domains: Vec<String>,
    /// The manifest to write. Files below its folder are named from there, so that both can be moved together.
    #[arg(long, short, alias = "output", required_unless_present = "check")]
    out: Option<PathBuf>,
    /// A manifest whose files are compared with what it says; the exit status is 1 if one is missing or has changed.
    #[arg(long, conflicts_with_all = ["inputs", "targets", "masks", "domains", "out", "force"])]
    check: Option<PathBuf>,
    /// Replace a manifest that is there already.
    #[arg(long)]
    force: bool,
    /// One JSON object in place of words.
    #[arg(long)]
    json: bool,
}

impl Manifest {
    pub fn run(self) -> Result<()> {
        match (&self.check, &self.out) {
            (Some(path), _) => self.check(path),
            (None, Some(out)) => self.write(out),
            (None, None) => bail!("--out: where the manifest should be written to"),
        }
    }

    fn write(&self, out: &Path) -> Result<()> {
        for (flag, given) in
            [("--targets", &self.targets), ("--masks", &self.masks), ("--domains", &self.domains)]
        {
            if !given.is_empty() && given.len() != self.inputs.len() {
                bail!("{flag}: {} for {} inputs; there is one for each", given.len(), self.inputs.len());
            }
        }
        if clearshot_image::address::is_address(out) {
            bail!(
                "{}: a manifest is a file of this machine; the images that it names may lie at addresses",
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
            writeln!(stdout, "{}: {same} of {count} files are what it says", path.display())?;
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
