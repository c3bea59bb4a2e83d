//! Runs of `clearshot train` in the folder: their records while they are written, and their pictures.

use crate::http::{Answer, Head};
use crate::refusal::Refusal;
use crate::server::Shared;
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

const RECORDS: &str = "records.jsonl";
const PICTURES: &str = "pictures";
/// How deep runs are looked for, how many are listed, and how many bytes of records one answer has.
const DEEPEST: usize = 4;
const MOST_RUNS: usize = 500;
const MOST_BYTES: u64 = 4 << 20;
const MOST_PICTURES: usize = 200;

type Outcome = Result<Answer, Refusal>;

/// # Errors
/// None.
pub fn list(shared: &Shared) -> Outcome {
    let mut found = Vec::new();
    if let Some(folder) = shared.store.folder() {
        look(folder, "folder", 0, &mut found);
    }
    Ok(Answer::json(&json!({"runs": found})))
}

fn look(folder: &Path, name: &str, depth: usize, found: &mut Vec<Value>) {
    let records = folder.join(RECORDS);
    if let Ok(about) = fs::symlink_metadata(&records)
        && about.is_file()
        && depth > 0
    {
        let age = about.modified().ok().and_then(|t| SystemTime::now().duration_since(t).ok());
        let age = age.map(|a| a.as_secs_f64());
        found.push(json!({"run": name, "bytes": about.len(), "age": age, "pictures": pictures(folder)}));
        return;
    }
    let mut inside: Vec<_> = fs::read_dir(folder).into_iter().flatten().flatten().collect();
    inside.sort_by_key(fs::DirEntry::file_name);
    for entry in inside {
        let Some(file) = entry.file_name().to_str().map(str::to_string) else { continue };
        let is_folder = entry.file_type().is_ok_and(|k| k.is_dir());
        if is_folder && !file.starts_with('.') && depth < DEEPEST && found.len() < MOST_RUNS {
            look(&entry.path(), &format!("{name}/{file}"), depth + 1, found);
        }
    }
}

fn pictures(run: &Path) -> Vec<String> {
    let names = fs::read_dir(run.join(PICTURES)).into_iter().flatten().flatten();
    let mut names: Vec<String> = names
        .filter_map(|e| e.file_name().to_str().map(str::to_string))
        .filter(|n| n.ends_with(".png"))
        .collect();
    names.sort();
    names.split_off(names.len().saturating_sub(MOST_PICTURES))
}

/// The run's folder: one that has records.
fn run(shared: &Shared, head: &Head) -> Result<(String, PathBuf), Refusal> {
    let name = head.needed("run")?.to_string();
    if !name.starts_with("folder/") {
        return Err(Refusal::missing(&name));
    }
    let records = shared.store.path(&format!("{name}/{RECORDS}"))?;
    if !records.is_file() {
        return Err(Refusal::missing(&name));
    }
    Ok((name, records))
}

/// Whole lines from a byte on, and the byte where the next ones begin; from the beginning where a resumed run has cut its records.
///
/// # Errors
/// If there is no such run.
pub fn records(shared: &Shared, head: &Head) -> Outcome {
    let (_, path) = run(shared, head)?;
    let mut file = File::open(&path).map_err(|_| Refusal::ours())?;
    let length = file.metadata().map_err(|_| Refusal::ours())?.len();
    let asked: u64 = head.parsed("from")?.unwrap_or(0);
    let from = if asked > length { 0 } else { asked };
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(from)).map_err(|_| Refusal::ours())?;
    file.take(MOST_BYTES).read_to_end(&mut bytes).map_err(|_| Refusal::ours())?;
    let end = bytes.iter().rposition(|&b| b == b'\n').map_or(0, |at| at + 1);
    let lines = bytes[..end].split(|&b| b == b'\n').filter(|l| !l.is_empty());
    let records: Vec<Value> = lines.filter_map(|line| serde_json::from_slice(line).ok()).collect();
    Ok(Answer::json(&json!({
        "records": records, "from": from, "next": from + end as u64, "pictures": path.parent().map(pictures),
    })))
}

/// # Errors
/// If there is no such picture.
pub fn picture(shared: &Shared, head: &Head) -> Outcome {
    let (name, _) = run(shared, head)?;
    let picture = head.needed("name")?;
    if picture.contains('/') || !picture.ends_with(".png") {
        return Err(Refusal::missing(picture));
    }
    let path = shared.store.path(&format!("{name}/{PICTURES}/{picture}"))?;
    Ok(Answer::bytes("image/png", fs::read(path).map_err(|_| Refusal::missing(picture))?))
}
