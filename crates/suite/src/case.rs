//! Cases on disk: one safetensors file each, told apart by its metadata.

use crate::Result;
use clearshot_tensor::Tensor;
use clearshot_tensor::store::Store;
use serde_json::{Map, Value as Json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What a peer computed. Tensors are in PyTorch's layout.
pub struct Case {
    pub kind: String,
    pub name: String,
    pub attrs: Attrs,
    pub tensors: BTreeMap<String, Tensor>,
    /// PyTorch's own errors in bfloat16, where they are known.
    bf16: serde_json::Value,
}

/// Everything below a folder of references.
pub struct Found {
    pub cases: Vec<Case>,
    /// Folders that diffusers saved a network into.
    pub folders: Vec<PathBuf>,
}

/// The folder that `CLEARSHOT_REFS` names, or the project's own copy.
pub fn folder() -> PathBuf {
    let own = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../refs");
    std::env::var_os("CLEARSHOT_REFS").map_or_else(own, PathBuf::from)
}

/// Reads every case below `root`, in the order of their paths.
///
/// # Errors
/// If a folder or file cannot be read, or a file outside a network's folder says no kind.
pub fn find(root: &Path) -> Result<Found> {
    let mut found = Found { cases: vec![], folders: vec![] };
    visit(root, &mut found)?;
    // The project's own figures serve other folders of cases of the same networks too.
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../refs");
    let text = [root, &own].iter().find_map(|f| std::fs::read_to_string(f.join("bf16.json")).ok());
    let bf16: serde_json::Value = text.and_then(|t| serde_json::from_str(&t).ok()).unwrap_or_default();
    found.cases.iter_mut().for_each(|c| c.bf16 = bf16.clone());
    Ok(found)
}

fn visit(folder: &Path, found: &mut Found) -> Result<()> {
    if folder.join("config.json").exists() {
        found.folders.push(folder.into());
        return Ok(());
    }
    let entries = std::fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut paths = entries.map(|e| e.map(|e| e.path())).collect::<std::io::Result<Vec<_>>>()?;
    paths.sort();
    for path in paths {
        if path.is_dir() {
            visit(&path, found)?;
        } else if path.extension().is_some_and(|e| e == "safetensors") {
            found.cases.push(Case::read(&path)?);
        }
    }
    Ok(())
}

impl Case {
    /// PyTorch's error in bfloat16 of one result of this case; the largest of all cases where it has none.
    pub fn bf16_error(&self, what: &str) -> Option<f64> {
        let own = self.bf16.get(&self.name).and_then(|c| c.get(what)?.as_f64());
        let all = || self.bf16.as_object()?.values().filter_map(|c| c.get(what)?.as_f64()).reduce(f64::max);
        own.or_else(all)
    }

    fn read(path: &Path) -> Result<Case> {
        let mut store = Store::read(path)?;
        let mut text = |key: &str| {
            let missing = || format!("{}: its metadata has no `{key}`", path.display());
            store.metadata.remove(key).ok_or_else(missing)
        };
        let (kind, name, attrs) = (text("kind")?, text("name")?, text("attrs")?);
        let attrs = serde_json::from_str(&quote_infinities(&attrs))
            .map_err(|e| format!("{}: attrs: {e}", path.display()))?;
        Ok(Case { kind, name, attrs: Attrs(attrs), tensors: store.tensors, bf16: serde_json::Value::Null })
    }

    /// # Errors
    /// If the case has no such tensor.
    pub fn tensor(&self, name: &str) -> Result<&Tensor> {
        self.tensors.get(name).ok_or_else(|| format!("the case has no tensor `{name}`").into())
    }

    /// The tensors whose names begin with `prefix`, by the rest of the name.
    pub fn tensors_of<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, &'a Tensor)> {
        self.tensors.iter().filter_map(move |(k, t)| k.strip_prefix(prefix).map(|rest| (rest, t)))
    }
}

/// Python writes numbers that JSON has not, bare; here they become strings.
fn quote_infinities(json: &str) -> String {
    let quote = |text: &str| {
        let text = text.replace("NaN", "\"NaN\"").replace("Infinity", "\"Infinity\"");
        text.replace("-\"Infinity\"", "\"-Infinity\"")
    };
    // Every second piece between quotes is inside a string; no attribute has an escaped quote.
    let pieces = json.split('"').enumerate();
    pieces.map(|(i, p)| if i % 2 == 0 { quote(p) } else { p.into() }).collect::<Vec<_>>().join("\"")
}

/// A case's attributes.
pub struct Attrs(pub Map<String, Json>);

impl Attrs {
    pub fn get(&self, key: &str) -> Option<&Json> {
        self.0.get(key).filter(|v| !v.is_null())
    }

    /// # Errors
    /// If there is no such attribute or it is no number.
    pub fn number(&self, key: &str) -> Result<f64> {
        let value = self.get(key).ok_or_else(|| format!("the case has no attribute `{key}`"))?;
        value.as_f64().ok_or_else(|| format!("attribute `{key}` is {value}, not a number").into())
    }

    /// # Errors
    /// If the attribute is there and is no number.
    pub fn number_or(&self, key: &str, default: f64) -> Result<f64> {
        if self.get(key).is_some() { self.number(key) } else { Ok(default) }
    }

    /// # Errors
    /// If the attribute is there and is not a whole number.
    pub fn count_or(&self, key: &str, default: usize) -> Result<usize> {
        match self.get(key) {
            None => Ok(default),
            Some(v) => whole(key, v),
        }
    }

    pub fn flag(&self, key: &str) -> bool {
        self.get(key).and_then(Json::as_bool).unwrap_or(false)
    }

    pub fn text(&self, key: &str) -> Option<&str> {
        self.get(key).and_then(Json::as_str)
    }

    /// One value for each of `dims` axes (given once for all, or as a list) as Z, Y, X; an axis that is
    /// not there has `neutral`.
    ///
    /// # Errors
    /// If the attribute is neither a whole number nor a list of `dims` of them.
    pub fn axes(&self, key: &str, dims: usize, default: usize, neutral: usize) -> Result<[usize; 3]> {
        let each = match self.get(key) {
            None => vec![default; dims],
            Some(Json::Array(list)) => list.iter().map(|v| whole(key, v)).collect::<Result<Vec<_>>>()?,
            Some(one) => vec![whole(key, one)?; dims],
        };
        if each.len() != dims || dims > 3 {
            return Err(format!("attribute `{key}` has {} values for {dims} axes", each.len()).into());
        }
        let mut out = [neutral; 3];
        out[3 - dims..].copy_from_slice(&each);
        Ok(out)
    }

    /// An axis counted from the front; negative ones count from the back.
    ///
    /// # Errors
    /// If the attribute is there and names no axis of a tensor of this rank.
    pub fn axis_or(&self, key: &str, rank: usize, default: i64) -> Result<usize> {
        let given = self.get(key).map_or(Some(default), Json::as_i64);
        let axis = given.map(|a| if a < 0 { a + rank as i64 } else { a });
        match axis {
            Some(a) if (0..rank as i64).contains(&a) => Ok(a as usize),
            _ => Err(format!("attribute `{key}` names no axis of {rank}: {given:?}").into()),
        }
    }
}

fn whole(key: &str, value: &Json) -> Result<usize> {
    let number = value.as_f64().filter(|v| v.fract() == 0.0 && *v >= 0.0);
    number.map(|v| v as usize).ok_or_else(|| format!("attribute `{key}` is {value}, not a count").into())
}
