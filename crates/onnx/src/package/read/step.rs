//! Preprocessing and postprocessing steps of a description, as the zoo defines them.
//!
//! Values are those of one image, channels last; statistics are those of the whole image, independent of tiles.

use super::description::{AxisKind, DescribedAxis};
use serde_json::Value as Json;

/// One step. Lists have one number for all channels, or one for each.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// `(x - mean) / (deviation + eps)` with the image's own numbers.
    Standardise {
        by_channel: bool,
        eps: f64,
    },
    /// The same with given numbers.
    Fixed {
        mean: Vec<f64>,
        deviation: Vec<f64>,
    },
    /// `(x - low) / (high - low + eps)` with two percentiles; those of the network's input where `of_input` says so.
    Range {
        by_channel: bool,
        percentiles: [f64; 2],
        eps: f64,
        of_input: bool,
    },
    /// Mean and deviation become those of the network's input.
    Match {
        by_channel: bool,
        eps: f64,
    },
    Linear {
        gain: Vec<f64>,
        offset: Vec<f64>,
    },
    Clip {
        low: f64,
        high: f64,
    },
    /// 1 above the threshold, 0 elsewhere.
    Binarize(Vec<f64>),
    Sigmoid,
    /// Over the channels.
    Softmax,
    /// Integers, truncated as in storage, between these limits.
    Whole {
        low: f64,
        high: f64,
    },
}

/// Numbers of an image, or of each of its channels.
struct Found {
    low: Vec<f64>,
    high: Vec<f64>,
}

fn list(value: &Json, default: f64) -> Result<Vec<f64>, String> {
    match value {
        Json::Null => Ok(vec![default]),
        Json::Number(n) => Ok(n.as_f64().into_iter().collect()),
        Json::Array(all) => {
            let numbers: Option<Vec<f64>> = all.iter().map(Json::as_f64).collect();
            numbers.filter(|n| !n.is_empty()).ok_or_else(|| format!("{value} is not a list of numbers"))
        }
        other => Err(format!("{other} is not a number")),
    }
}

/// Whether statistics over these axes are of each channel by itself. They must go over all of space.
fn by_channel(axes: &Json, of: &[DescribedAxis]) -> Result<bool, String> {
    let names: Vec<String> = match axes {
        Json::Null => return Ok(false),
        Json::String(letters) => letters.chars().map(String::from).collect(),
        Json::Array(names) => names.iter().filter_map(|n| n.as_str().map(String::from)).collect(),
        other => return Err(format!("axes {other}")),
    };
    let has = |kind: &AxisKind| {
        names.iter().any(|n| match kind {
            AxisKind::Channel => n == "c" || n == "channel",
            AxisKind::Z => n == "z",
            AxisKind::Y => n == "y",
            AxisKind::X => n == "x",
            AxisKind::Batch | AxisKind::Other(_) => true,
        })
    };
    if of.iter().any(|a| a.kind.is_space() && !has(&a.kind)) {
        return Err(format!("statistics over the axes {axes}; all of x, y (and z) are needed"));
    }
    Ok(!has(&AxisKind::Channel))
}

impl Step {
    /// The step that an entry describes, none if it changes nothing; `key` is what entries are named by.
    pub(super) fn of(entry: &Json, key: &str, axes: &[DescribedAxis]) -> Result<Option<Step>, String> {
        let name = entry[key].as_str().ok_or_else(|| format!("a step without a {key}"))?;
        let of = &entry["kwargs"];
        let number = |name: &str, default: f64| of[name].as_f64().unwrap_or(default);
        let refused = |why: String| format!("step {name}: {why}");
        let eps = number("eps", 1e-6);
        let channels = || by_channel(&of["axes"], axes).map_err(refused);
        let numbers = |name: &str, default: f64| list(&of[name], default).map_err(refused);
        if of["axis"].as_str().is_some_and(|a| !["channel", "c"].contains(&a)) {
            return Err(refused(format!("along the axis {}; channels are possible", of["axis"])));
        }
        Ok(Some(match name {
            "ensure_dtype" => return whole_numbers(&of["dtype"]).map_err(refused),
            "zero_mean_unit_variance" if of["mode"] == "fixed" => {
                let deviation = numbers("std", 1.0)?.into_iter().map(|d| d + eps).collect();
                Step::Fixed { mean: numbers("mean", 0.0)?, deviation }
            }
            "fixed_zero_mean_unit_variance" => {
                Step::Fixed { mean: numbers("mean", 0.0)?, deviation: numbers("std", 1.0)? }
            }
            "zero_mean_unit_variance" => Step::Standardise { by_channel: channels()?, eps },
            "scale_range" => {
                let percentiles = [number("min_percentile", 0.0), number("max_percentile", 100.0)];
                let of_input = !of["reference_tensor"].is_null();
                Step::Range { by_channel: channels()?, percentiles, eps, of_input }
            }
            "scale_mean_variance" => Step::Match { by_channel: channels()?, eps },
            "scale_linear" => Step::Linear { gain: numbers("gain", 1.0)?, offset: numbers("offset", 0.0)? },
            "clip" => {
                Step::Clip { low: number("min", f64::NEG_INFINITY), high: number("max", f64::INFINITY) }
            }
            "binarize" => Step::Binarize(numbers("threshold", 0.5)?),
            "sigmoid" => Step::Sigmoid,
            "softmax" => Step::Softmax,
            other => return Err(format!("the step {other} is not known")),
        }))
    }

    /// Does it to an image of so many channels; `input` is the network's input before its own steps, for steps behind it.
    ///
    /// # Errors
    /// If it has other numbers of channels than the image.
    pub fn apply(
        &self,
        x: &mut [f32],
        channels: usize,
        input: Option<(&[f32], usize)>,
    ) -> Result<(), String> {
        let each = |x: &mut [f32], f: &dyn Fn(f64, usize) -> f64| {
            for (i, v) in x.iter_mut().enumerate() {
                *v = f(f64::from(*v), i % channels) as f32;
            }
        };
        let of = |list: &Vec<f64>, c: usize| if list.len() == 1 { list[0] } else { list[c] };
        let fits = |lists: &[&Vec<f64>]| match lists.iter().find(|l| l.len() != 1 && l.len() != channels) {
            Some(list) => Err(format!("{} numbers for {channels} channels", list.len())),
            None => Ok(()),
        };
        match self {
            Step::Standardise { by_channel, eps } => {
                let s = moments(x, channels, *by_channel);
                each(x, &|v, c| (v - of(&s.low, c)) / (of(&s.high, c) + eps));
            }
            Step::Fixed { mean, deviation } => {
                fits(&[mean, deviation])?;
                each(x, &|v, c| (v - of(mean, c)) / of(deviation, c));
            }
            Step::Range { by_channel, percentiles, eps, of_input } => {
                let s = match input.filter(|_| *of_input) {
                    Some((input, count)) => {
                        percentile(input, count, *by_channel && count == channels, *percentiles)
                    }
                    None => percentile(x, channels, *by_channel, *percentiles),
                };
                each(x, &|v, c| (v - of(&s.low, c)) / (of(&s.high, c) - of(&s.low, c) + eps));
            }
            Step::Match { by_channel, eps } => {
                let (input, count) = input.ok_or("it refers to the network's input, and is before it")?;
                let by_channel = *by_channel && count == channels;
                let (own, to) = (moments(x, channels, by_channel), moments(input, count, by_channel));
                each(x, &|v, c| {
                    (v - of(&own.low, c)) / (of(&own.high, c) + eps) * (of(&to.high, c) + eps)
                        + of(&to.low, c)
                });
            }
            Step::Linear { gain, offset } => {
                fits(&[gain, offset])?;
                each(x, &|v, c| v * of(gain, c) + of(offset, c));
            }
            Step::Clip { low, high } => each(x, &|v, _| v.max(*low).min(*high)),
            Step::Binarize(thresholds) => {
                fits(&[thresholds])?;
                each(x, &|v, c| f64::from(u8::from(v > of(thresholds, c))));
            }
            Step::Sigmoid => each(x, &|v, _| 1.0 / (1.0 + (-v).exp())),
            Step::Softmax => x.chunks_exact_mut(channels).for_each(softmax),
            Step::Whole { low, high } => each(x, &|v, _| v.trunc().clamp(*low, *high)),
        }
        Ok(())
    }
}

/// The effect of a storage type on values; none for floats.
fn whole_numbers(dtype: &Json) -> Result<Option<Step>, String> {
    let range = |bits: u32, signed: bool| {
        let (low, high) = match signed {
            true => (-2f64.powi(bits as i32 - 1), 2f64.powi(bits as i32 - 1) - 1.0),
            false => (0.0, 2f64.powi(bits as i32) - 1.0),
        };
        Ok(Some(Step::Whole { low, high }))
    };
    match dtype.as_str().unwrap_or("") {
        "float32" | "float64" | "float16" => Ok(None),
        "bool" => range(1, false),
        "uint8" => range(8, false),
        "uint16" => range(16, false),
        "uint32" => range(32, false),
        "int8" => range(8, true),
        "int16" => range(16, true),
        "int32" | "int64" => range(32, true),
        other => Err(format!("the type {other} is not known")),
    }
}

fn softmax(pixel: &mut [f32]) {
    let most = pixel.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    pixel.iter_mut().for_each(|v| *v = (*v - most).exp());
    let sum: f32 = pixel.iter().sum();
    pixel.iter_mut().for_each(|v| *v /= sum);
}

/// Calls with the values of all channels together, or of each.
fn of_channels(
    x: &[f32],
    channels: usize,
    by_channel: bool,
    mut f: impl FnMut(&mut dyn Iterator<Item = f32>),
) {
    match by_channel {
        false => f(&mut x.iter().copied()),
        true => (0..channels).for_each(|c| f(&mut x.iter().copied().skip(c).step_by(channels))),
    }
}

/// Means and standard deviations.
fn moments(x: &[f32], channels: usize, by_channel: bool) -> Found {
    let (mut low, mut high) = (vec![], vec![]);
    of_channels(x, channels, by_channel, |values| {
        let all: Vec<f64> = values.map(f64::from).collect();
        let n = all.len().max(1) as f64;
        let mean = all.iter().sum::<f64>() / n;
        low.push(mean);
        high.push((all.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / n).sqrt());
    });
    Found { low, high }
}

/// Two percentiles, between neighbours in a straight line as NumPy has it.
fn percentile(x: &[f32], channels: usize, by_channel: bool, percentiles: [f64; 2]) -> Found {
    let (mut low, mut high) = (vec![], vec![]);
    of_channels(x, channels, by_channel, |values| {
        let mut all: Vec<f32> = values.collect();
        all.sort_unstable_by(f32::total_cmp);
        let at = |p: f64| {
            let place = p.clamp(0.0, 100.0) / 100.0 * (all.len().max(1) - 1) as f64;
            let (i, part) = (place.floor() as usize, place.fract());
            let value = |i: usize| all.get(i).map_or(0.0, |v| f64::from(*v));
            value(i) + part * if part > 0.0 { value(i + 1) - value(i) } else { 0.0 }
        };
        low.push(at(percentiles[0]));
        high.push(at(percentiles[1]));
    });
    Found { low, high }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn axes(names: &[AxisKind]) -> Vec<DescribedAxis> {
        let axis = |kind: &AxisKind| DescribedAxis {
            kind: kind.clone(),
            size: super::super::description::AxisSize::Unknown,
            halo: None,
        };
        names.iter().map(axis).collect()
    }

    fn applied(entry: Json, key: &str, x: &[f32], channels: usize) -> Vec<f32> {
        let axes = axes(&[AxisKind::Batch, AxisKind::Channel, AxisKind::Y, AxisKind::X]);
        let mut x = x.to_vec();
        if let Some(step) = Step::of(&entry, key, &axes).unwrap() {
            step.apply(&mut x, channels, Some((&[2.0, 4.0], 1))).unwrap();
        }
        x
    }

    /// Two pixels of two channels: numbers by hand, as the zoo's own definitions have them.
    #[test]
    fn steps_are_the_zoos() {
        let x = [1.0, 10.0, 3.0, 30.0];
        let of = |entry: Json| applied(entry, "id", &x, 2);
        let close = |got: Vec<f32>, want: [f32; 4]| {
            assert!(got.iter().zip(want).all(|(g, w)| (g - w).abs() < 1e-4), "{got:?} {want:?}");
        };
        let plane = json!({"axes": ["y", "x"]});
        close(of(json!({"id": "zero_mean_unit_variance", "kwargs": plane})), [-1.0, -1.0, 1.0, 1.0]);
        // Mean 11, variance (100 + 1 + 64 + 361) / 4.
        let d = (526f32 / 4.0).sqrt();
        close(of(json!({"id": "zero_mean_unit_variance", "kwargs": {}})), x.map(|v| (v - 11.0) / d));
        let range = json!({"axes": ["y", "x"], "min_percentile": 0, "max_percentile": 50});
        close(of(json!({"id": "scale_range", "kwargs": range})), [0.0, 0.0, 2.0, 2.0]);
        let linear = json!({"gain": [2, 0.5], "offset": 1, "axis": "channel"});
        close(of(json!({"id": "scale_linear", "kwargs": linear})), [3.0, 6.0, 7.0, 16.0]);
        let fixed = json!({"mean": [1, 10], "std": [2, 20], "axis": "channel"});
        close(of(json!({"id": "fixed_zero_mean_unit_variance", "kwargs": fixed})), [0.0, 0.0, 1.0, 1.0]);
        close(of(json!({"id": "clip", "kwargs": {"min": 2, "max": 9}})), [2.0, 9.0, 3.0, 9.0]);
        close(of(json!({"id": "binarize", "kwargs": {"threshold": 3}})), [0.0, 1.0, 0.0, 1.0]);
        close(of(json!({"id": "sigmoid"})), x.map(|v| 1.0 / (1.0 + (-v).exp())));
        close(of(json!({"id": "ensure_dtype", "kwargs": {"dtype": "float32"}})), x);
        close(
            applied(
                json!({"id": "ensure_dtype", "kwargs": {"dtype": "uint8"}}),
                "id",
                &[-1.0, 300.0, 2.9, 0.0],
                2,
            ),
            [0.0, 255.0, 2.0, 0.0],
        );
        // Mean 3 and deviation 1 of the input.
        let matched = of(json!({"id": "scale_mean_variance", "kwargs": {"reference_tensor": "in"}}));
        close(matched, x.map(|v| (v - 11.0) / d + 3.0));
        let soft = of(json!({"id": "softmax", "kwargs": {"axis": "channel"}}));
        assert!((soft[0] + soft[1] - 1.0).abs() < 1e-6 && soft[1] > 0.99);
        // Format 0.4 names them otherwise, and has fixed numbers as a mode.
        let old = json!({"mode": "fixed", "mean": 1.0, "std": 2.0, "axes": "xy", "eps": 0.0});
        close(
            applied(json!({"name": "zero_mean_unit_variance", "kwargs": old}), "name", &x, 2),
            [0.0, 4.5, 1.0, 14.5],
        );
    }

    #[test]
    fn unknown_values_are_refused() {
        let axes = axes(&[AxisKind::Channel, AxisKind::Z, AxisKind::Y, AxisKind::X]);
        let why = |entry: Json| Step::of(&entry, "id", &axes).unwrap_err();
        assert!(why(json!({"id": "custom"})).contains("custom is not known"));
        assert!(why(json!({"id": "zero_mean_unit_variance", "kwargs": {"axes": ["x", "y"]}})).contains("z"));
        assert!(
            why(json!({"id": "scale_linear", "kwargs": {"axis": "z"}})).contains("channels are possible")
        );
        let linear = Step::Linear { gain: vec![1.0, 2.0], offset: vec![0.0] };
        assert!(linear.apply(&mut [0.0; 3], 3, None).unwrap_err().contains("2 numbers for 3 channels"));
    }
}
