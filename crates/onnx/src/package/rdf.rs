//! The description of a package, in the zoo's format 0.5, and its card.

use super::{Card, Cut};
use crate::OPSET;
use crate::export::Settings;
use clearshot_model::{Model, Signal};
use serde_json::{Value as Json, json};

pub(super) const DESCRIPTION: &str = "bioimageio.yaml";
pub(super) const WEIGHTS: &str = "weights.onnx";
pub(super) const TEST_INPUT: &str = "test_input.npy";
pub(super) const TEST_OUTPUT: &str = "test_output.npy";
pub(super) const COVER: &str = "cover.png";
pub(super) const CARD: &str = "README.md";
const VERSION: &str = "0.5.4";

pub(super) fn description(model: &Model, card: &Card, cut: &Cut, hash: &dyn Fn(&str) -> String) -> Json {
    let about = &model.about;
    let space = |axis: usize, size: Json| {
        let id = ["z", "y", "x"][3 - cut.step.len() + axis];
        json!({"type": "space", "id": id, "size": size})
    };
    let channels = |prefix: &str, count: usize| {
        let names: Vec<String> = (0..count).map(|i| format!("{prefix}_{i}")).collect();
        json!({"type": "channel", "channel_names": names})
    };
    let all = |channel: Json, spaces: Vec<Json>| {
        [json!({"type": "batch"}), channel].into_iter().chain(spaces).collect::<Vec<_>>()
    };
    let file = |name: &str| json!({"source": name, "sha256": hash(name)});
    let sizes = (0..cut.step.len()).map(|a| space(a, json!({"min": cut.least[a], "step": cut.step[a]})));
    let inputs = all(channels("measured", about.input_channels()), sizes.collect());
    let outputs = (0..cut.step.len()).map(|a| {
        let id = ["z", "y", "x"][3 - cut.step.len() + a];
        let mut axis = space(a, json!({"tensor_id": "image", "axis_id": id}));
        axis["halo"] = json!(cut.halo[a]);
        axis
    });
    let outputs = all(channels("restored", about.channels), outputs.collect());
    json!({
        "format_version": VERSION,
        "type": "model",
        "name": format!("Clearshot {}", plain(&about.name)),
        "description": format!("Restores {} images: {}.", axes_word(about.dims), about.task.name()),
        "authors": card.authors.iter().map(|name| json!({"name": name})).collect::<Vec<_>>(),
        "license": card.licence,
        "documentation": CARD,
        "covers": [COVER],
        "tags": ["denoising", "restoration", if about.dims == 2 { "2d" } else { "3d" }, "onnx"],
        "inputs": [{
            "id": "image", "description": "the measured image", "axes": inputs,
            "data": {"type": "float32"}, "test_tensor": file(TEST_INPUT),
        }],
        "outputs": [{
            "id": "restored", "description": "the restored image, in the unit of the measured one", "axes": outputs,
            "data": {"type": "float32"}, "test_tensor": file(TEST_OUTPUT),
        }],
        "weights": {"onnx": {"source": WEIGHTS, "sha256": hash(WEIGHTS), "opset_version": OPSET}},
        "config": {"clearshot": {"hash": model.hash()}},
    })
}

/// Letters, digits and what else names of the zoo may have.
fn plain(name: &str) -> String {
    name.chars().map(|c| if c.is_alphanumeric() || "-_+() ".contains(c) { c } else { ' ' }).collect()
}

fn axes_word(dims: usize) -> &'static str {
    if dims == 2 { "two-dimensional" } else { "three-dimensional" }
}

/// What a reader should know before using it.
pub(super) fn card(model: &Model, settings: &Settings) -> String {
    let about = &model.about;
    let mut text = format!(
        "# Clearshot {}\n\nOne evaluation of {}: a measured image in, a restored image out.\n\n",
        about.name,
        about.task.name()
    );
    if about.signal == Signal::Photons {
        text += "The numbers of the camera and the light level are inside of the network. Use it for images taken like this, and export it again for others:\n\n";
        for (name, values) in &settings.fixed {
            let values: Vec<String> = values.iter().map(f32::to_string).collect();
            text += &format!("- {name}: {}\n", values.join(", "));
        }
        text.push('\n');
    }
    if !about.limits.is_empty() {
        text += &format!("## Limits\n\n{}\n\n", about.limits);
    }
    text += "## Validation\n\nCompare the restored image with a long exposure of the same place, or look at the residual: the measurement less the restored image must be noise without structure. ";
    if !about.scores.is_null() {
        text += &format!("Scores that were reached:\n\n```json\n{}\n```\n", about.scores);
    }
    text + "\n"
}

/// Block YAML; texts are quoted as in JSON, which YAML reads.
pub(super) fn yaml(value: &Json) -> String {
    let mut out = String::new();
    write(value, 0, &mut out);
    out
}

fn write(value: &Json, indent: usize, out: &mut String) {
    let pad = " ".repeat(indent);
    match value {
        Json::Object(map) => {
            for (i, (key, value)) in map.iter().enumerate() {
                if i > 0 {
                    out.push_str(&pad);
                }
                out.push_str(key);
                out.push(':');
                nested(value, indent + 2, out);
            }
        }
        Json::Array(items) => {
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push_str(&pad);
                }
                out.push_str("- ");
                write(item, indent + 2, out);
            }
        }
        other => {
            out.push_str(&other.to_string());
            out.push('\n');
        }
    }
}

/// The text after a key.
fn nested(value: &Json, indent: usize, out: &mut String) {
    let inner = match value {
        Json::Object(map) => !map.is_empty(),
        Json::Array(items) => !items.is_empty(),
        _ => false,
    };
    if inner {
        out.push('\n');
        out.push_str(&" ".repeat(indent));
        write(value, indent, out);
    } else {
        out.push(' ');
        out.push_str(&value.to_string());
        out.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yaml_is_nested_by_indentation() {
        let value = json!({"a": [{"b": 1, "c": ["x", "y"]}, {"d": {"e": null}}], "f": "g: h"});
        let text = "a:\n  - b: 1\n    c:\n      - \"x\"\n      - \"y\"\n  - d:\n      e: null\nf: \"g: h\"\n";
        assert_eq!(yaml(&value), text);
    }
}
