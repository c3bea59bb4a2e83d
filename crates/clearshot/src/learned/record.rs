//! Counts and findings about an image while its parts are restored, and their record in the output.

use super::image::Work;
use crate::notice::{EXPLAINED, Notice};
use crate::report::{ColourPart, ImageReport, PooledChoice};
use clearshot_image::{Axis, Provenance};
use clearshot_physics::units::Regime;
use clearshot_restore::learned::precision::Settled;
use clearshot_restore::learned::residual::LeftOver;
use clearshot_restore::learned::{Choice, Forecast};
use serde_json::{Value, json};

/// Mean number of frames per pixel below which the notice says that frames were restored separately.
const ALONE: f64 = 1.05;
/// chi2 of fewer pixels says nothing.
const FEW: usize = 256;

/// See the module.
#[derive(Default)]
pub struct Record {
    pub pixels: usize,
    /// Values clipped to the type of the file.
    pub clipped: usize,
    pub filled: usize,
    pub saturated: usize,
    pub chi2: Vec<f64>,
    /// The correlation of the residuals of neighbouring pixels, in the middle part.
    pub left_over: Option<LeftOver>,
    /// Why the image is unlike the training images.
    pub unfamiliar: Option<String>,
    /// The signal level, if the camera is known.
    pub light: Option<Light>,
    /// The chosen mixture of methods.
    pub choice: Option<Choice>,
    /// The cameras and choices of the combinations of colour samples.
    pub colours: Vec<ColourPart>,
    /// The chosen mixture for frames that were averaged with others.
    pub pooled: Vec<PooledChoice>,
    /// The precision chosen on a GPU, if it was automatic.
    pub precision: Option<Settled>,
    /// The axis along which frames are averaged: T or Z.
    pub along: Option<Axis>,
    /// For each such frame, the mean number of exposures per pixel.
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

    fn regime(&self) -> Regime {
        let [below_1, below_3, below_10] = self.below.map(|n| n as f64 / self.pixels.max(1) as f64);
        Regime { below_1, below_3, below_10 }
    }
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

impl Record {
    /// The notices when all parts are restored. If measured pixels were kept (`inpaint`), their residuals are not
    /// meaningful.
    pub fn notices(&self, dtype: &'static str, inpaint: bool) -> Vec<Notice> {
        let telling = self.pixels >= FEW && !inpaint;
        let filled = (self.filled > 0).then_some(Notice::Filled(self.filled));
        let clipped = (self.clipped > 0).then_some(Notice::Clipped { count: self.clipped, dtype });
        let series = self.along.zip(mean(&self.exposures)).map(|(along, mean)| match mean < ALONE {
            true => Notice::FramesAlone { along, mean },
            false => Notice::FramesAveraged { along, mean },
        });
        let chi2 = mean(&self.chi2).filter(|c| telling && !EXPLAINED.contains(c)).map(Notice::Chi2);
        let left = self.left_over.filter(|l| telling && l.in_words().is_some()).map(Notice::LeftOver);
        [filled, clipped, series, chi2, left].into_iter().flatten().collect()
    }

    /// Copies the findings into the report of the image.
    pub fn report(self, to: &mut ImageReport) {
        to.clipped = self.clipped;
        to.filled = self.filled;
        to.saturated = self.saturated;
        to.chi2 = mean(&self.chi2);
        to.left_over = self.left_over;
        to.regime = self.light.as_ref().map(Light::regime);
        to.choice = self.choice;
        to.colours = self.colours;
        to.pooled = self.pooled;
        to.along = self.along.filter(|_| !self.exposures.is_empty());
        to.exposures = mean(&self.exposures);
        to.precision = self.precision;
        to.unfamiliar = self.unfamiliar;
    }
}

impl Work<'_> {
    /// The record in the metadata of the output, with counts only if all parts are restored before it is written.
    pub fn provenance(&self, forecast: Option<&Forecast>, known: &Record, is_counted: bool) -> Value {
        let record = is_counted.then_some(known);
        let pooled = |p: &PooledChoice| json!({"exposures": p.exposures, "choice": p.choice});
        let mut parameters = json!({
            "settings": self.asked,
            "input": self.hash,
            "camera": self.camera,
            "plan": forecast.map(|f| json!({"tile": f.tile, "halo": f.halo, "tiles": f.tiles, "batch": f.batch, "precision": f.computes_in.name()})),
            "saturation": self.validity.saturation,
            "clipped": record.map(|r| r.clipped),
            "filled": record.map(|r| r.filled),
            "saturated": record.map(|r| r.saturated),
            "chi2": record.and_then(|r| mean(&r.chi2)),
            "left_over": record.and_then(|r| r.left_over.as_ref()),
            "choice": known.choice,
            "pooled_choices": record.map(|r| r.pooled.iter().map(pooled).collect::<Vec<_>>()),
            "precision": known.precision,
            "exposures": record.and_then(|r| mean(&r.exposures)),
        });
        if !known.colours.is_empty() {
            parameters["colours"] = json!(known.colours);
        }
        if self.side > 1 {
            parameters["binning"] = self.side.into();
        }
        Provenance::new("restore", &self.image.description, parameters).value()
    }
}

#[cfg(test)]
mod tests {
    use super::{Light, Record};
    use clearshot_image::Axis;
    use clearshot_physics::Electrons;
    use clearshot_physics::units::Regime;

    #[test]
    fn series_are_recognised_by_what_their_frames_share() {
        let told = |along: Axis, exposures: &[f64]| {
            let record = Record { along: Some(along), exposures: exposures.to_vec(), ..Record::default() };
            record.notices("uint16", false).first().map(ToString::to_string)
        };
        assert_eq!(told(Axis::T, &[]), None);
        assert!(
            told(Axis::T, &[1.0, 1.01]).is_some_and(|t| t.contains("each frame was restored separately"))
        );
        assert!(told(Axis::T, &[4.0, 5.0]).is_some_and(|t| t.contains("4.5 frames per pixel on average")));
        assert!(told(Axis::Z, &[1.0]).is_some_and(|t| t.contains("each plane was restored separately")));
        assert!(told(Axis::Z, &[3.0]).is_some_and(|t| t.contains("a stack: planes were averaged")));
    }

    /// Part by part the shares are those of all pixels together.
    #[test]
    fn the_light_of_parts_is_that_of_the_whole() {
        let all: Vec<f32> = (0..400).map(|i| (i * 7 % 83) as f32 * 0.3 - 1.0).collect();
        let mut light = Light::default();
        all.chunks(130).for_each(|part| light.see(part.iter().copied().chain([f32::NAN])));
        let whole = Regime::of(Electrons(&all.iter().map(|&v| v.into()).collect::<Vec<f64>>()));
        assert_eq!(light.regime(), whole);
    }
}
