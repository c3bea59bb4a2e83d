//! The library's settings from a dictionary with the names of its fields; what is not there keeps its default.

use crate::errors::{named, of};
use clearshot::{Candidate, Context, KnownCamera, Output, PointSpread, Settings, Stacks, TakenByGiven};
use clearshot_physics::Psf;
use clearshot_restore::classical::gaussian::Gaussian;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;

fn refuse<T>(key: &str, why: &str) -> PyResult<T> {
    Err(named("SettingError", format!("{key}: {why}")))
}

/// # Errors
/// If a name is unknown, or its value is not of the right kind.
pub fn settings(given: &Bound<'_, PyDict>) -> PyResult<Settings> {
    let mut s = Settings::default();
    for (key, value) in given.iter() {
        let key: String = key.extract()?;
        set(&mut s, &key, &value).map_err(|e| {
            let wrong_type = e.is_instance_of::<pyo3::exceptions::PyTypeError>(given.py())
                || e.is_instance_of::<pyo3::exceptions::PyOverflowError>(given.py());
            if wrong_type { named("SettingError", format!("{key}: {e}")) } else { e }
        })?;
    }
    Ok(s)
}

fn set(s: &mut Settings, key: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
    match key {
        "camera" => s.camera = camera(&value.extract::<String>()?)?,
        "noise" => s.noise = value.extract()?,
        "saturation" => s.saturation = value.extract()?,
        "mask" => s.mask = value.extract()?,
        "background" => s.background = value.extract()?,
        "item" => s.item = value.extract()?,
        "stacks" => {
            s.stacks = match value.extract::<&str>()? {
                "auto" => Stacks::Auto,
                "planes" => Stacks::Planes,
                "volumes" => Stacks::Volumes,
                other => return refuse(key, &format!("{other:?} is not one of auto, planes and volumes")),
            }
        }
        "psf" => s.psf = Some(psf(value)?),
        "tile" => s.tile = value.extract()?,
        "method" => {
            s.only = match value.extract::<&str>()? {
                "auto" => None,
                "model" => Some(Candidate::Model),
                "bm3d" => Some(Candidate::Bm3d),
                "gaussian" => Some(Candidate::Gaussian(Gaussian::USUAL.sigma)),
                "raw" => Some(Candidate::Raw),
                other => {
                    return refuse(
                        key,
                        &format!("{other:?} is not one of auto, model, bm3d, gaussian and raw"),
                    );
                }
            }
        }
        "frames_alone" => s.frames_alone = value.extract()?,
        "colours_alone" => s.colours_alone = value.extract()?,
        "samples" => s.samples = value.extract()?,
        "estimate" => {
            s.estimate = match value.extract::<&str>()? {
                "direct" => Some(Output::Direct),
                "samples" => Some(Output::Samples),
                other => return refuse(key, &format!("{other:?} is neither direct nor samples")),
            }
        }
        "std" => s.std = value.extract()?,
        "chi2" => s.chi2 = value.extract()?,
        "save_samples" => s.save_samples = value.extract()?,
        "sampler" => s.sampler = value.extract()?,
        "steps" => s.steps = value.extract()?,
        "seed" => s.seed = value.extract()?,
        "levels" => s.levels = value.extract()?,
        "begin" => s.begin = value.extract()?,
        "cascade" => s.cascade = value.extract()?,
        "inpaint" => s.inpaint = value.extract()?,
        "classifier_free" => s.classifier_free = value.extract()?,
        "class_name" => s.class = Some(value.str()?.extract()?),
        "context" => s.context = Some(context(value)?),
        "condition" => s.taken_by = taken_by(value)?,
        "gate" => s.gate = value.extract()?,
        "guidance" => s.guidance = value.extract()?,
        "law" => s.law = value.extract()?,
        "clip" => s.clip = value.extract()?,
        "batch" => s.batch = value.extract()?,
        "memory" => s.memory = value.extract()?,
        "max_memory" => s.max_memory = value.extract()?,
        "max_seconds" => s.max_seconds = value.extract()?,
        "allow_binning" => s.allow_binning = value.extract()?,
        "precision" => {
            let parsed = value.extract::<&str>()?.parse::<clearshot::Precision>();
            s.precision = parsed.or_else(|e| refuse(key, &e.to_string()))?;
        }
        "scratch" => s.scratch = value.extract()?,
        "float" => s.float = value.extract()?,
        "replace" => s.replace = value.extract()?,
        "save_mask" => s.save_mask = value.extract()?,
        "picture" => s.picture = value.extract()?,
        other => return refuse(other, "there is no such setting"),
    }
    Ok(())
}

/// A camera from JSON, of which each number may be missing; see `clearshot_restore::camera::file`.
///
/// # Errors
/// If it is not a camera.
pub fn camera(text: &str) -> PyResult<KnownCamera> {
    let value: Value = serde_json::from_str(text).or_else(|e| refuse("camera", &e.to_string()))?;
    let number = |key: &str| match &value[key] {
        Value::Null => Ok(None),
        Value::Number(n) => Ok(n.as_f64()),
        other => refuse("camera", &format!("{key} is {other}, and a number is needed")),
    };
    let correlation = match &value["correlation"] {
        Value::Null => None,
        found => Some(
            serde_json::from_value(found.clone())
                .or_else(|e| refuse("camera", &format!("correlation: {e}")))?,
        ),
    };
    let (gain, offset, read_noise) = (number("gain")?, number("offset")?, number("read_noise")?);
    Ok(KnownCamera {
        gain,
        offset,
        read_noise,
        background: number("background")?,
        correlation,
        dark: number("dark")?,
        saturation: number("saturation")?,
    })
}

/// A context: the path of a file, or an array as its shape and values.
fn context(value: &Bound<'_, PyAny>) -> PyResult<Context> {
    if let Ok((shape, values)) = value.extract::<([usize; 2], Vec<f32>)>() {
        return Context::new(shape, values).or_else(|why| refuse("context", &why));
    }
    Context::read(&value.extract::<PathBuf>()?).map_err(of)
}

/// Numbers of the camera that a model is conditioned on, from a dictionary.
fn taken_by(value: &Bound<'_, PyAny>) -> PyResult<TakenByGiven> {
    let mut given = TakenByGiven::default();
    for (key, number) in value.extract::<BTreeMap<String, f64>>()? {
        let slot = match key.as_str() {
            "scale" => &mut given.scale,
            "read_noise" => &mut given.read_noise,
            "background" => &mut given.background,
            other => {
                let why = format!("unknown key {other:?}; use scale, read_noise or background");
                return refuse("condition", &why);
            }
        };
        *slot = Some(number);
    }
    Ok(given)
}

/// A point-spread function: a text, standard deviations in pixels, or an array as its shape and values.
fn psf(value: &Bound<'_, PyAny>) -> PyResult<PointSpread> {
    if let Ok(text) = value.extract::<&str>() {
        return text.parse().map_err(of);
    }
    if let Ok((shape, values)) = value.extract::<(Vec<usize>, Vec<f64>)>() {
        return Ok(Psf::new(&shape[..], values).map_err(of)?.into());
    }
    Ok(PointSpread::gaussian(&value.extract::<Vec<f64>>()?))
}
