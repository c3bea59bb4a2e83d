//! Restored parts of a stack, kept beside its output until all are complete, so that an interrupted run can resume.
//!
//! They are in a hidden folder (in the cache folder, if the output is at an address) that records their settings, input
//! and camera. Files from another run are removed, and the folder is removed when the output is complete. The file of a
//! part is written under a temporary name and renamed, so it is complete or absent; an unreadable one is restored
//! again.

use crate::error::{Error, Result};
use clearshot_image::address::is_address;
use clearshot_restore::learned::Restored;
use clearshot_restore::learned::field::{Field, Scratch};
use clearshot_runtime::cache_folder;
use clearshot_tensor::Tensor;
use clearshot_tensor::store::{Store, write_whole};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What the folder's parts are of.
const RUN: &str = "run.json";
/// The key of what is not an image, in a part's metadata.
const NUMBERS: &str = "numbers";

pub struct Kept {
    folder: PathBuf,
}

impl Kept {
    /// Opens the parts from an earlier run with the same settings, or an empty set.
    ///
    /// # Errors
    /// If the folder exists but is not from a run, or cannot be written.
    pub fn open(output: &Path, run: &Value) -> Result<Kept> {
        let local = match is_address(output) {
            true => {
                let number = clearshot_tensor::Fnv1a::of(output.as_os_str().as_encoded_bytes());
                let cache = cache_folder().filter(|folder| std::fs::create_dir_all(folder).is_ok());
                cache.unwrap_or_else(std::env::temp_dir).join(format!("clearshot-{number:016x}"))
            }
            false => output.to_path_buf(),
        };
        let name = local.file_name().unwrap_or_default().to_string_lossy();
        let folder = local.with_file_name(format!(".{name}.parts"));
        let path = folder.join(RUN);
        let at = |path: &Path| {
            let path = path.to_path_buf();
            move |source: std::io::Error| Error::Io { path, source }
        };
        if folder.exists() {
            let earlier = std::fs::read(&path).ok().and_then(|b| serde_json::from_slice::<Value>(&b).ok());
            match earlier {
                Some(earlier) if earlier == *run => return Ok(Kept { folder }),
                Some(_) => std::fs::remove_dir_all(&folder).map_err(at(&folder))?,
                None => {
                    return Err(Error::Unsuited(format!(
                        "{} is not a folder of kept parts; move it away",
                        folder.display()
                    )));
                }
            }
        }
        // Under another name first, so that a folder of this name always says what it is of.
        let aside = local.with_file_name(format!(".{name}.parts.{}", std::process::id()));
        // Not the folder around it, which is the user's to make.
        std::fs::create_dir(&aside).map_err(at(output))?;
        write_whole(&aside.join(RUN), run.to_string().as_bytes()).map_err(at(&folder))?;
        std::fs::rename(&aside, &folder).map_err(at(&folder))?;
        Ok(Kept { folder })
    }

    fn path(&self, number: usize) -> PathBuf {
        self.folder.join(format!("{number}.safetensors"))
    }

    /// The parts with these numbers, if all exist.
    pub fn all(&self, numbers: &[u64], scratch: &Scratch) -> Option<Vec<Restored>> {
        numbers.iter().map(|&n| self.get(n as usize, scratch)).collect()
    }

    fn get(&self, number: usize, scratch: &Scratch) -> Option<Restored> {
        let store = Store::read(&self.path(number)).ok()?;
        let numbers: Value = serde_json::from_str(store.metadata.get(NUMBERS)?).ok()?;
        let field = |name: &str| -> Option<Field> {
            let values = store.tensors.get(name)?.as_f32().ok()?;
            let mut field = scratch.field(values.len()).ok()?;
            field.copy_from_slice(values);
            Some(field)
        };
        let count = numbers["samples"].as_u64()? as usize;
        Some(Restored {
            image: field("image")?,
            deviation: field("deviation"),
            chi2: field("chi2"),
            mean_chi2: numbers["mean_chi2"].as_f64(),
            samples: (0..count).map(|k| field(&format!("sample.{k}"))).collect::<Option<_>>()?,
            photons: serde_json::from_value(numbers["photons"].clone()).ok()?,
            guided: serde_json::from_value(numbers["guided"].clone()).ok()?,
        })
    }

    /// # Errors
    /// If it cannot be written.
    pub fn put(&self, number: usize, part: &Restored) -> Result<()> {
        let mut tensors = BTreeMap::new();
        let mut add = |name: String, field: &Field| {
            tensors.insert(name, Tensor::f32([field.len()], field.to_vec()));
        };
        add("image".into(), &part.image);
        part.deviation.iter().for_each(|f| add("deviation".into(), f));
        part.chi2.iter().for_each(|f| add("chi2".into(), f));
        part.samples.iter().enumerate().for_each(|(k, f)| add(format!("sample.{k}"), f));
        let numbers = json!({
            "mean_chi2": part.mean_chi2, "samples": part.samples.len(), "photons": part.photons, "guided": part.guided,
        });
        let metadata = BTreeMap::from([(NUMBERS.to_string(), numbers.to_string())]);
        let path = self.path(number);
        Store { tensors, metadata }.write(&path).map_err(|e| Error::Unsuited(e.to_string()))
    }

    /// Removes all parts.
    pub fn clear(self) {
        // What is left of them is taken away by the next run.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
