//! What is known of an image when all of its parts are restored, and what is said of it: in words, in the file's record and as
//! JSON.

use super::image::Work;
use super::movie::PooledChoice;
use super::parts::Form;
use anyhow::Result;
use clearshot_image::Provenance;
use clearshot_physics::units::Regime;
use clearshot_restore::learned::precision::Settled;
use clearshot_restore::learned::residual::LeftOver;
use clearshot_restore::learned::{Choice, Forecast};
use clearshot_train::records::console::duration;
use serde_json::{Value, json};
use std::path::PathBuf;

/// chi2 outside of these says that the camera's numbers do not fit the image; of so few pixels it says nothing.
const EXPLAINED: std::ops::Range<f64> = 0.4..2.0;
const FEW: usize = 256;
/// Frames to a pixel of a movie, in the mean, that are said to be one.
const ALONE: f64 = 1.05;

/// See the module.
pub struct Record {
    pub pixels: usize,
    /// Values that did not fit the file's type.
    pub clipped: usize,
    pub filled: usize,
    pub saturated: usize,
    pub chi2: Vec<f64>,
    /// What neighbours share of what is left over, in the middle part.
    pub left_over: Option<LeftOver>,
    /// Why the model is not made for it.
    pub strange: Option<String>,
    /// How much light there is, where the camera is known.
    pub light: Option<Light>,
    /// What was trusted.
    pub choice: Option<Choice>,
    /// What was trusted of frames that were pooled with others.
    pub pooled: Vec<PooledChoice>,
    /// What a GPU computed in, where that was left open.
    pub precision: Option<Settled>,
    /// Of each frame of a movie, how many exposures a pixel was restored from, in the mean.
    pub exposures: Vec<f64>,
}

/// Pixels of restored parts, and those of them with fewer than 1, 3 and 10 electrons.
#[derive(Default)]
pub struct Light {
    pixels: usize,
    below: [usize; 3],
}

impl Light {
    pub fn see(&mut self, electrons: impl Iterator<Item = f32>) {
        for e in electrons.filter(|e| e.is_finite()) {
            self.pixels += 1;
            self.below.iter_mut().zip([1.0, 3.0, 10.0]).for_each(|(n, limit)| *n += usize::from(e < limit));
        }
    }

    /// The shares, and whether shot noise is as good as Gaussian.
    fn value(&self) -> Value {
        let [below_1, below_3, below_10] = self.below.map(|n| n as f64 / self.pixels.max(1) as f64);
        let regime = Regime { below_1, below_3, below_10 };
        json!({ "below_1": below_1, "below_3": below_3, "below_10": below_10, "gaussian": regime.is_gaussian() })
    }
}

impl Record {
    /// Of an image of so many pixels, before anything is restored.
    pub fn new(pixels: usize, has_camera: bool, choice: Option<Choice>) -> Record {
        Record {
            pixels,
            clipped: 0,
            filled: 0,
            saturated: 0,
            chi2: Vec::new(),
            left_over: None,
            strange: None,
            light: has_camera.then(Light::default),
            choice,
            pooled: Vec::new(),
            precision: None,
            exposures: Vec::new(),
        }
    }

    pub fn mean_chi2(&self) -> Option<f64> {
        (!self.chi2.is_empty()).then(|| self.chi2.iter().sum::<f64>() / self.chi2.len() as f64)
    }

    fn mean_exposures(&self) -> Option<f64> {
        let n = self.exposures.len() as f64;
        (n > 0.0).then(|| self.exposures.iter().sum::<f64>() / n)
    }

    /// For people: what restored it, and how much neighbouring frames helped.
    pub fn trusted(&self) -> Option<String> {
        let pooled = |p: &PooledChoice| format!("means of {} frames: {}", p.exposures, p.choice.in_words());
        let words = self.choice.as_ref().map(Choice::in_words).into_iter();
        let words = words.chain(self.pooled.iter().map(pooled)).chain(self.movie());
        Some(words.collect::<Vec<_>>().join("; ")).filter(|w| !w.is_empty())
    }

    fn movie(&self) -> Option<String> {
        Some(match self.mean_exposures()? {
            mean if mean < ALONE => {
                "a movie in which nearly everything moves or changes: frames were restored each alone".into()
            }
            mean => format!(
                "a movie: frames were averaged where nothing moves, {mean:.1} to a pixel in the mean; --frames-alone restores each by itself"
            ),
        })
    }

    /// What does not fit: chi2 far from 1, and residuals that neighbours share.
    fn doubts(&self) -> Vec<String> {
        let mut doubts = Vec::new();
        let telling = self.pixels >= FEW;
        if let Some(chi2) = self.mean_chi2().filter(|c| telling && !EXPLAINED.contains(c)) {
            let why = match chi2 >= EXPLAINED.end {
                true => {
                    "the restored image does not explain what was measured: offset, gain or read noise are not this image's, its noise is not a camera's, or the model does not know what is in it"
                }
                false => {
                    "there is less noise than the camera's numbers say: they are not this image's, or it was smoothed or averaged before"
                }
            };
            doubts.push(format!(
                "chi2 is {chi2:.2}, where about 1 is right: {why}; do not trust the result before that is mended"
            ));
        }
        doubts.extend(self.left_over.as_ref().filter(|_| telling).and_then(LeftOver::in_words));
        doubts
    }
}

impl Work<'_> {
    /// The record in the output's own metadata; counts only where all parts are restored before it is written.
    pub fn provenance(&self, forecast: Option<&Forecast>, record: Option<&Record>) -> Value {
        let parameters = json!({
            "settings": self.job.asked,
            "input": self.hash,
            "camera": self.camera,
            "plan": forecast.map(|f| json!({"tile": f.tile, "halo": f.halo, "tiles": f.tiles, "batch": f.batch})),
            "saturation": self.apart.saturation,
            "clipped": record.map(|r| r.clipped),
            "filled": record.map(|r| r.filled),
            "saturated": record.map(|r| r.saturated),
            "chi2": record.and_then(Record::mean_chi2),
            "left_over": record.and_then(|r| r.left_over.as_ref()),
            "choice": record.and_then(|r| r.choice.as_ref()),
            "pooled_choices": record.map(|r| r.pooled.iter().map(PooledChoice::value).collect::<Vec<_>>()),
            "precision": record.and_then(|r| r.precision.as_ref()),
            "exposures": record.and_then(Record::mean_exposures),
        });
        Provenance::new("restore", &self.image.description, parameters).value()
    }

    pub fn tell(
        &self,
        record: &Record,
        form: &Form,
        paths: &[PathBuf],
        seconds: f64,
        reach: Option<f64>,
    ) -> Result<()> {
        let (spot, voice) = (self.spot, self.job.voice);
        let note = |text: &str| voice.note(&spot.shown, text);
        if record.filled > 0 {
            let n = record.filled;
            note(&format!(
                "{n} pixels hold no measurement (not finite or masked): filled from their neighbours and left out of the measurement"
            ));
        }
        if record.clipped > 0 {
            let (n, name) = (record.clipped, form.dtype.name());
            note(&format!("{n} restored values did not fit {name} and were clipped; --float keeps them"));
        }
        if let Some(said) = record.movie() {
            let exposures = record.mean_exposures();
            voice.say(&said, json!({"event": "movie", "input": spot.shown, "exposures": exposures}))?;
        }
        record.doubts().iter().for_each(|doubt| note(doubt));
        let chi2 = record.mean_chi2();
        let mut text =
            format!("{} -> {} ({}", spot.shown.display(), spot.output.display(), duration(seconds));
        if let Some(chi2) = chi2 {
            text += &format!(", chi2 {chi2:.2}");
        }
        if let Some(reach) = reach {
            text += &format!(", 90 % intervals are {reach:.2} times OUT_std to either side");
        }
        text += ")";
        voice.say(
            &text,
            json!({
                "event": "file", "input": self.job.input, "item": self.image.description.item, "output": spot.output,
                "status": "restored", "written": paths, "seconds": seconds, "clipped": record.clipped,
                "filled": record.filled, "saturated": record.saturated, "chi2": chi2, "left_over": record.left_over,
                "precision": record.precision, "camera": self.camera, "strange": record.strange, "interval_90": reach,
                "regime": record.light.as_ref().map(Light::value),
            }),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::{Light, Record};
    use clearshot_physics::Electrons;
    use clearshot_physics::units::Regime;

    #[test]
    fn movies_are_told_by_what_their_frames_share() {
        let told = |exposures: &[f64]| {
            let mut record = Record::new(100, true, None);
            record.exposures = exposures.to_vec();
            record.trusted()
        };
        assert_eq!(told(&[]), None);
        assert!(told(&[1.0, 1.01]).is_some_and(|t| t.contains("frames were restored each alone")));
        assert!(told(&[4.0, 5.0]).is_some_and(|t| t.contains("4.5 to a pixel in the mean")));
    }

    /// Part by part the shares are those of all pixels together.
    #[test]
    fn the_light_of_parts_is_that_of_the_whole() {
        let all: Vec<f32> = (0..400).map(|i| (i * 7 % 83) as f32 * 0.3 - 1.0).collect();
        let mut light = Light::default();
        all.chunks(130).for_each(|part| light.see(part.iter().copied().chain([f32::NAN])));
        let whole = Regime::of(Electrons(&all.iter().map(|&v| v.into()).collect::<Vec<f64>>()));
        let said = light.value();
        assert_eq!(said["below_1"], whole.below_1);
        assert_eq!(said["below_3"], whole.below_3);
        assert_eq!(said["below_10"], whole.below_10);
        assert_eq!(said["gaussian"], whole.is_gaussian());
    }
}
