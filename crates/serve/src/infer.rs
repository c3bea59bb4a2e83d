//! Arrays by the Open Inference Protocol (KServe v2): one model, one input `image`, outputs `image`, `std` and `chi2`.
//! Numbers are JSON, or bytes after it (the binary tensor data extension), and are returned in the same form.

use crate::http::{Answer, Body, Head};
use crate::jobs::{ArrayTask, Wanted};
use crate::refusal::Refusal;
use crate::server::Shared;
use clearshot::{Array, DType};
use serde_json::{Value, json};
use std::sync::mpsc;

/// Bytes of a request, at most: arrays are held in memory.
const MOST_BYTES: u64 = 256 << 20;
/// Where the JSON ends and bytes of tensors begin.
const JSON_LENGTH: &str = "Inference-Header-Content-Length";

/// Types of the protocol.
const TYPES: &[(&str, DType)] = &[
    ("UINT8", DType::U8),
    ("UINT16", DType::U16),
    ("UINT32", DType::U32),
    ("INT8", DType::I8),
    ("INT16", DType::I16),
    ("INT32", DType::I32),
    ("FP16", DType::F16),
    ("FP32", DType::F32),
    ("FP64", DType::F64),
];

type Outcome = Result<Answer, Refusal>;

/// # Errors
/// If there is no such model, or the array cannot be restored.
pub fn answer(shared: &Shared, method: &str, path: &[&str], head: &Head, body: &mut Body<'_>) -> Outcome {
    let known = |name: &str| if name == shared.model { Ok(()) } else { Err(Refusal::missing(name)) };
    match (method, path) {
        ("GET", []) => Ok(Answer::json(&json!({
            "name": "clearshot", "version": env!("CARGO_PKG_VERSION"), "extensions": ["binary_tensor_data"],
        }))),
        ("GET", ["models"]) => Ok(Answer::json(&json!({"models": [shared.model]}))),
        ("GET", ["models", name]) => known(name).map(|()| Answer::json(&metadata(name))),
        ("GET", ["models", name, "ready"]) => {
            known(name).map(|()| Answer::json(&json!({"name": name, "ready": true})))
        }
        ("POST", ["models", name, "infer"]) => {
            known(name)?;
            infer(shared, name, head, body)
        }
        _ => Err(Refusal::missing(&head.path)),
    }
}

fn metadata(name: &str) -> Value {
    let output = |name: &str| json!({"name": name, "datatype": "FP32", "shape": [-1, -1]});
    json!({
        "name": name, "versions": [env!("CARGO_PKG_VERSION")], "platform": "clearshot",
        "inputs": [{"name": "image", "datatype": "FP32", "shape": [-1, -1]}],
        "outputs": [output("image"), output("std"), output("chi2")],
    })
}

fn infer(shared: &Shared, model: &str, head: &Head, body: &mut Body<'_>) -> Outcome {
    let bytes = body.whole(MOST_BYTES)?;
    let end = match head.header(JSON_LENGTH)? {
        Some(text) => text.parse().ok().filter(|n| *n <= bytes.len()),
        None => Some(bytes.len()),
    };
    let end = end.ok_or_else(|| Refusal::bad(format!("{JSON_LENGTH} is not a length of the body")))?;
    let request: Value =
        serde_json::from_slice(&bytes[..end]).map_err(|e| Refusal::bad(format!("not a request: {e}")))?;
    let [input] = request["inputs"].as_array().map_or(&[][..], Vec::as_slice) else {
        return Err(Refusal::bad("inputs: one tensor, `image`, is needed"));
    };
    let array = tensor(input, &bytes[end..])?;
    let mut parameters = request["parameters"].as_object().cloned().unwrap_or_default();
    let binary = parameters.remove("binary_data_output").is_some_and(|b| b == true);
    parameters.remove("axes");
    let wanted: Wanted = serde_json::from_value(Value::Object(parameters))
        .map_err(|e| Refusal::bad(format!("parameters: {e}")))?;
    let settings = wanted.settings()?;
    let (id, model) = (request["id"].clone(), model.to_string());
    let (reply, answer) = mpsc::channel();
    let run = Box::new(move |engine: &mut crate::worker::Engine| {
        let refuse = |e: clearshot::Error| Refusal::new(422, e.to_string());
        let restored =
            engine.restorer().and_then(|r| r.restore(&array, &settings, &mut ())).map_err(refuse)?;
        let mut outputs = vec![("image", restored.image)];
        outputs.extend(restored.std.map(|v| ("std", v)));
        outputs.extend(restored.chi2.map(|v| ("chi2", v)));
        let mut head = json!({
            "model_name": model, "model_version": env!("CARGO_PKG_VERSION"),
            "parameters": {"chi2": restored.report.chi2, "camera": restored.report.camera, "choice": restored.report.choice},
        });
        if !id.is_null() {
            head["id"] = id;
        }
        Ok(packed(head, &outputs, &restored.shape, binary))
    });
    shared.queue.compute(ArrayTask { run, reply })?;
    answer.recv().map_err(|_| Refusal::new(503, "the server ends"))?
}

/// The input as an array; its axes are `parameters.axes`, or the last of TCZYX.
fn tensor(input: &Value, behind: &[u8]) -> Result<Array, Refusal> {
    let wrong = |why: &str| Refusal::bad(format!("inputs[0]: {why}"));
    let dtype = TYPES
        .iter()
        .find(|(name, _)| input["datatype"] == *name)
        .ok_or_else(|| wrong("datatype: UINT8 to UINT32, INT8 to INT32, or FP16 to FP64 is needed"))?
        .1;
    let shape: Option<Vec<usize>> = input["shape"]
        .as_array()
        .map(|s| s.iter().map(|n| n.as_u64().map(|n| n as usize)).collect())
        .unwrap_or(None);
    let shape = shape.ok_or_else(|| wrong("shape: a list of lengths is needed"))?;
    let axes = match (input["parameters"]["axes"].as_str(), shape.len()) {
        (Some(axes), _) => axes.to_string(),
        (None, 2) => "YX".into(),
        (None, 3) => "ZYX".into(),
        (None, n) => return Err(wrong(&format!("{n} axes: name them in parameters.axes, as in CZYX"))),
    };
    let count = shape.iter().try_fold(1usize, |n, &m| n.checked_mul(m));
    let count = count.filter(|n| *n > 0).ok_or_else(|| wrong("shape: it holds no values"))?;
    let bytes = match input["parameters"]["binary_data_size"].as_u64() {
        Some(size) if size as usize == behind.len() => behind.to_vec(),
        Some(_) => return Err(wrong("binary_data_size is not what follows the JSON")),
        None => {
            let mut values = Vec::new();
            flatten(&input["data"], &mut values).ok_or_else(|| wrong("data: a list of numbers is needed"))?;
            if values.len() != count {
                return Err(wrong(&format!("{} values for {count} places", values.len())));
            }
            let mut bytes = Vec::new();
            if dtype.encode(&values, &mut bytes) > 0 {
                return Err(wrong("data: values that the datatype cannot hold"));
            }
            bytes
        }
    };
    Array::from_bytes(bytes, dtype, &shape, &axes).map_err(|e| wrong(&e.to_string()))
}

/// Nested lists, flattened.
fn flatten(data: &Value, out: &mut Vec<f64>) -> Option<()> {
    for value in data.as_array()? {
        match value {
            Value::Array(_) => flatten(value, out)?,
            number => out.push(number.as_f64()?),
        }
    }
    Some(())
}

fn packed(mut head: Value, outputs: &[(&str, Vec<f32>)], shape: &[usize], binary: bool) -> Answer {
    let mut tensors = Vec::new();
    for (name, values) in outputs {
        let mut tensor = json!({"name": name, "datatype": "FP32", "shape": shape});
        match binary {
            true => tensor["parameters"] = json!({"binary_data_size": values.len() * 4}),
            // JSON has no number for what is not finite.
            false => tensor["data"] = json!(values),
        }
        tensors.push(tensor);
    }
    head["outputs"] = tensors.into();
    if !binary {
        return Answer::json(&head);
    }
    let mut bytes = head.to_string().into_bytes();
    let length = bytes.len().to_string();
    bytes.extend(outputs.iter().flat_map(|(_, values)| values.iter().flat_map(|v| v.to_le_bytes())));
    Answer::bytes("application/octet-stream", bytes).with(JSON_LENGTH, length)
}
