//! What a description says, from formats 0.4 and 0.5.

use super::architecture::Architecture;
use super::step::Step;
use serde_json::Value as Json;

/// What an axis of a tensor is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AxisKind {
    Batch,
    Channel,
    Z,
    Y,
    X,
    /// Time, or an index; only of one element.
    Other(String),
}

impl AxisKind {
    /// The axes of space, in the order of images.
    pub const SPACE: [AxisKind; 3] = [AxisKind::Z, AxisKind::Y, AxisKind::X];

    pub fn is_space(&self) -> bool {
        AxisKind::SPACE.contains(self)
    }

    fn of(name: &str) -> AxisKind {
        match name {
            "b" | "batch" => AxisKind::Batch,
            "c" | "channel" => AxisKind::Channel,
            "z" => AxisKind::Z,
            "y" => AxisKind::Y,
            "x" => AxisKind::X,
            other => AxisKind::Other(other.into()),
        }
    }
}

/// The sizes that an axis may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AxisSize {
    Fixed(usize),
    /// `least` and every `step` from there.
    Open {
        least: usize,
        step: usize,
    },
    /// As the network has it.
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescribedAxis {
    pub kind: AxisKind,
    pub size: AxisSize,
    /// Pixels at each end that depend on what lies beyond, where the description says so.
    pub halo: Option<usize>,
}

/// An input or output.
#[derive(Clone, Debug, PartialEq)]
pub struct DescribedTensor {
    pub name: String,
    /// As the file has them.
    pub axes: Vec<DescribedAxis>,
    /// Preprocessing of an input or postprocessing of an output.
    pub steps: Vec<Step>,
}

pub(super) struct TestFile {
    pub source: String,
}

/// The file that has the weights.
pub(super) struct DescribedWeights {
    pub source: String,
    /// Its fingerprint, where that is given.
    pub hash: Option<String>,
    /// What the weights belong to; none where the file is ONNX, and so the network itself.
    pub architecture: Option<Architecture>,
}

pub(super) struct Description {
    pub name: String,
    pub weights: DescribedWeights,
    pub input: DescribedTensor,
    pub output: DescribedTensor,
    pub test: Option<[TestFile; 2]>,
}

impl Description {
    pub fn of(rdf: &Json) -> Result<Description, String> {
        let version = match &rdf["format_version"] {
            Json::String(text) => text.clone(),
            Json::Number(n) => n.to_string(),
            _ => return Err("format_version is missing".into()),
        };
        if rdf["type"].as_str().is_some_and(|kind| kind != "model") {
            return Err(format!("describes a {}, and a model is needed", rdf["type"]));
        }
        let is_new = match version.split('.').take(2).collect::<Vec<_>>()[..] {
            ["0", "5"] => true,
            ["0", "4"] => false,
            _ => return Err(format!("format_version {version}; 0.4 and 0.5 are read")),
        };
        let weights = weights(&rdf["weights"])?;
        let tensor = |key: &str, steps: &str| {
            let all = rdf[key].as_array().map(Vec::as_slice).unwrap_or_default();
            let [one] = all else {
                return Err(format!("{} {key}; networks of one image in and one out are run", all.len()));
            };
            let read = if is_new { tensor_5 } else { tensor_4 };
            read(one, steps).map_err(|why| format!("{key}: {why}"))
        };
        let (input, output) = (tensor("inputs", "preprocessing")?, tensor("outputs", "postprocessing")?);
        let file = |key: &str, list: &str| {
            let source = match is_new {
                true => &rdf[key][0]["test_tensor"]["source"],
                false => &rdf[list][0],
            };
            let source = source.as_str().or_else(|| rdf[key][0]["test_tensor"].as_str());
            source.map(|s| TestFile { source: s.to_string() })
        };
        let test = file("inputs", "test_inputs").zip(file("outputs", "test_outputs"));
        let name = rdf["name"].as_str().unwrap_or("a model").to_string();
        Ok(Description { name, weights, input, output, test: test.map(|(a, b)| [a, b]) })
    }
}

/// The weights that are read: ONNX where there are several.
fn weights(weights: &Json) -> Result<DescribedWeights, String> {
    let Some(entries) = weights.as_object() else { return Err("weights are missing".into()) };
    let of = |kind: &str, architecture: Option<Architecture>| {
        let entry = &entries[kind];
        let source = entry["source"].as_str().ok_or(format!("weights: {kind}: source is missing"))?;
        let hash = entry["sha256"].as_str().map(str::to_lowercase);
        Ok(DescribedWeights { source: source.into(), hash, architecture })
    };
    match (entries.contains_key("onnx"), entries.get("pytorch_state_dict")) {
        (true, _) => of("onnx", None),
        (false, Some(entry)) => of("pytorch_state_dict", Some(Architecture::of(entry)?)),
        (false, None) => {
            let kinds: Vec<&str> = entries.keys().map(String::as_str).collect();
            Err(format!(
                "weights in {}; ONNX and states of PyTorch are read: ask its authors for ONNX, or add it with `bioimageio add-weights`",
                kinds.join(", ")
            ))
        }
    }
}

fn whole(value: &Json) -> Option<usize> {
    value.as_u64().and_then(|n| usize::try_from(n).ok())
}

/// A size of both formats: a number, or the least one and the step.
fn size(value: &Json) -> AxisSize {
    match (whole(value), whole(&value["min"]), whole(&value["step"])) {
        (Some(n), ..) => AxisSize::Fixed(n),
        (_, Some(least), Some(step)) => match step {
            0 => AxisSize::Fixed(least),
            step => AxisSize::Open { least: least.max(1), step },
        },
        _ => AxisSize::Unknown,
    }
}

fn tensor_5(tensor: &Json, steps: &str) -> Result<DescribedTensor, String> {
    let axes = tensor["axes"].as_array().ok_or("axes are missing")?;
    let axis = |axis: &Json| {
        let kind = axis["type"].as_str().ok_or("an axis without a type")?;
        let id = axis["id"].as_str();
        let kind = AxisKind::of(if kind == "space" { id.unwrap_or("") } else { kind });
        let size = match (&kind, axis["channel_names"].as_array()) {
            (AxisKind::Batch, _) => AxisSize::Open { least: 1, step: 1 },
            (AxisKind::Channel, Some(names)) => AxisSize::Fixed(names.len()),
            _ => size(&axis["size"]),
        };
        Ok::<_, String>(DescribedAxis { kind, size, halo: whole(&axis["halo"]) })
    };
    let axes = axes.iter().map(axis).collect::<Result<Vec<_>, _>>()?;
    let name = tensor["id"].as_str().unwrap_or("tensor").to_string();
    finished(name, axes, &tensor[steps], "id")
}

fn tensor_4(tensor: &Json, steps: &str) -> Result<DescribedTensor, String> {
    let letters = tensor["axes"].as_str().ok_or("axes are missing")?;
    let shape = &tensor["shape"];
    let axis = |(i, letter): (usize, char)| {
        let kind = AxisKind::of(&letter.to_string());
        let size = match (shape[i].is_null(), &kind) {
            (_, AxisKind::Batch) => AxisSize::Open { least: 1, step: 1 },
            (false, _) => size(&shape[i]),
            // The least and the step of all axes, each as a list; other tensors' sizes with a scale are the network's business.
            (true, _) => match (whole(&shape["min"][i]), whole(&shape["step"][i])) {
                (Some(least), Some(0)) => AxisSize::Fixed(least),
                (Some(least), Some(step)) => AxisSize::Open { least: least.max(1), step },
                _ => AxisSize::Unknown,
            },
        };
        DescribedAxis { kind, size, halo: whole(&tensor["halo"][i]) }
    };
    let axes = letters.chars().enumerate().map(axis).collect();
    let name = tensor["name"].as_str().unwrap_or("tensor").to_string();
    finished(name, axes, &tensor[steps], "name")
}

fn finished(
    name: String,
    axes: Vec<DescribedAxis>,
    steps: &Json,
    key: &str,
) -> Result<DescribedTensor, String> {
    for axis in &axes {
        let others = axes.iter().filter(|a| a.kind == axis.kind).count();
        let is_one = !matches!(axis.size, AxisSize::Fixed(n) if n != 1);
        match &axis.kind {
            AxisKind::Other(name) if !is_one => return Err(format!("the axis `{name}` is not an image's")),
            _ if others > 1 => return Err("two axes are the same".into()),
            _ => {}
        }
    }
    if ![AxisKind::Y, AxisKind::X].iter().all(|kind| axes.iter().any(|a| a.kind == *kind)) {
        return Err("it has no axes y and x".into());
    }
    let steps = steps.as_array().map(Vec::as_slice).unwrap_or_default();
    let steps = steps.iter().map(|step| Step::of(step, key, &axes)).collect::<Result<Vec<_>, _>>()?;
    Ok(DescribedTensor { name, axes, steps: steps.into_iter().flatten().collect() })
}
