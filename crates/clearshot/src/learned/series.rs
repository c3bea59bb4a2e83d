//! Frames of a movie and planes of a stack, averaged with their neighbours in time or along Z.

use super::image::Work;
use crate::error::{Error, Result};
use crate::observer::{Ear, Event};
use crate::report::PooledChoice;
use crate::settings::Stacks;
use clearshot_image::Axis;
use clearshot_restore::learned::{Camera, Choice, Measured, Restored, Restorer, choice};
use clearshot_restore::series::{self, Pooled};
use std::collections::BTreeMap;

/// A frame tells what restores a level where at least one pixel of so many is near it.
const ENOUGH: usize = 8;

/// An axis of a file along which frames are averaged.
pub struct Series {
    /// T or Z.
    pub along: Axis,
    position: usize,
    frames: usize,
    camera: Camera,
    /// What restores pooled frames at each level, once it is known.
    choices: [Option<Choice>; 2],
}

/// The averages of a group of frames with their neighbours.
pub struct Helped {
    /// At each level that is needed, each frame of the group.
    restored: Vec<Vec<Restored>>,
    pooled: Vec<Pooled>,
    levels: [f64; 2],
}

impl Series {
    /// `Some` if the file is a movie, or a stack that is restored plane by plane, and the result is one evaluation of
    /// the model. Samples, standard deviations, and images with a PSF or with joint channels use single frames.
    pub fn of(work: &Work<'_>, restorer: &Restorer) -> Option<Series> {
        let (d, parts) = (&work.image.description, work.parts);
        let (along, position) = [Axis::T, Axis::Z].into_iter().find_map(|axis| {
            let wanted = match axis {
                Axis::T => !work.settings.frames_alone,
                _ => work.settings.stacks == Stacks::Auto && parts.size.len() == 2,
            };
            d.position(axis).filter(|&at| wanted && d.dims[at].len > 1).map(|at| (axis, at))
        })?;
        let settings = restorer.settings();
        let about = &restorer.model().about;
        let single = parts.channels == 1 && about.channels == 1 && about.input_channels() == 1;
        let at_once = settings.samples == 0
            && !restorer.says_error()
            && settings.psf.is_none()
            && restorer.guidance().is_none();
        let frames = d.dims[position].len;
        let (camera, choices) = (work.camera?, Default::default());
        (single && at_once).then_some(Series { along, position, frames, camera, choices })
    }

    /// The error for an image with averaged frames that is divided among jobs.
    pub fn refuse_cut(&self) -> Error {
        let (frames, option) = match self.along {
            Axis::T => ("frames of a movie", "--frames-alone"),
            _ => ("planes of a stack", "--planes"),
        };
        Error::Refused(format!(
            "{frames} are averaged here, and the method is chosen from the first of them, so jobs with a part of the image could choose another one; restore each separately ({option}), use one method (--method model), or leave --part out"
        ))
    }

    /// Neighbours of a frame at the most.
    fn most(&self) -> usize {
        if self.along == Axis::T { series::IN_TIME } else { series::ALONG_Z }
    }

    /// Averages a group of frames with their neighbours and restores the averages; `alone` restores single frames.
    ///
    /// # Errors
    /// If the file cannot be read, the device fails, or the observer stops it.
    pub fn help(
        &mut self,
        work: &Work<'_>,
        restorer: &mut Restorer,
        group: &[Vec<usize>],
        measured: &[Measured],
        numbers: &[u64],
        alone: Option<&Choice>,
        ear: &mut Ear<'_>,
    ) -> Result<Helped> {
        let mut read: BTreeMap<Vec<usize>, Measured> = BTreeMap::new();
        let mut pooled = Vec::new();
        for (part, own) in group.iter().zip(measured) {
            let mut others = Vec::new();
            for frame in series::neighbours(part[self.position], self.frames, self.most()) {
                let mut other = part.clone();
                other[self.position] = frame;
                if !group.contains(&other) && !read.contains_key(&other) {
                    read.insert(other.clone(), work.measured(&other, restorer)?);
                }
                others.push(other);
            }
            let values = |other: &Vec<usize>| match group.iter().position(|p| p == other) {
                Some(i) => &measured[i].values[..],
                None => &read[other].values[..],
            };
            let others: Vec<&[f32]> = others.iter().map(values).collect();
            let size = [work.parts.height(), work.parts.width()];
            pooled.push(series::pool(&own.values, &others, size, &self.camera, own.valid.as_deref()));
        }
        drop(read);
        let (levels, mut restored) = (series::levels(self.most()), Vec::new());
        for level in series::needed(levels, &pooled) {
            let camera = series::camera_of(&self.camera, levels[level]);
            let mut means = Vec::new();
            for (own, pooled) in measured.iter().zip(&pooled) {
                let mut values = restorer.scratch().field(pooled.values.len())?;
                values.copy_from_slice(&pooled.values);
                means.push(own.with_values(values));
            }
            if work.settings.only.is_none() && self.choices[level].is_none() {
                self.choices[level] = self.choice(restorer, level, &means, &pooled, ear)?;
            }
            let choice = self.choices[level].as_ref().or(alone);
            let mut made = restorer.restore(&means, numbers, Some(&camera), &mut || Ok(()))?;
            if let Some(choice) = choice {
                for (mean, made) in means.iter().zip(&mut made) {
                    choice.apply_at(mean, &camera, made, restorer.wanted())?;
                }
            }
            restored.push(made);
        }
        Ok(Helped { restored, pooled, levels })
    }

    /// The choice of the method for frames at a level, from the first one with enough pixels; it is reported.
    fn choice(
        &self,
        restorer: &mut Restorer,
        level: usize,
        means: &[Measured],
        pooled: &[Pooled],
        ear: &mut Ear<'_>,
    ) -> Result<Option<Choice>> {
        let levels = series::levels(self.most());
        let exposures = levels[level];
        let camera = series::camera_of(&self.camera, exposures);
        for (mean, pooled) in means.iter().zip(pooled) {
            let near = series::near(levels, level, &pooled.count);
            if near.iter().filter(|n| **n).count() < near.len() / ENOUGH {
                continue;
            }
            let choice = choice::choose(restorer, mean, &camera, Some(&near), &mut || Ok(()))?;
            if choice.risk.is_some() {
                ear.event(&Event::Choice { exposures: Some(exposures), choice: &choice })?;
                return Ok(Some(choice));
            }
        }
        Ok(None)
    }

    /// The mixture chosen for averaged frames, if there was a choice.
    pub fn chosen(self) -> Vec<PooledChoice> {
        let levels = series::levels(self.most()).into_iter().zip(self.choices);
        levels.filter_map(|(exposures, choice)| Some(PooledChoice { exposures, choice: choice? })).collect()
    }
}

impl Helped {
    /// Combines a frame of the group that was restored alone with the restored average; returns the mean number of
    /// exposures.
    pub fn finish(&self, frame: usize, restored: &mut Restored) -> f64 {
        let levels: Vec<&[f32]> = self.restored.iter().map(|l| &l[frame].image[..]).collect();
        let count = &self.pooled[frame].count;
        series::blend(self.levels, &mut restored.image, &levels, count);
        count.iter().map(|&c| f64::from(c)).sum::<f64>() / count.len().max(1) as f64
    }
}
