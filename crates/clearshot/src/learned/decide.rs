//! Decisions about an image before it is restored, which are also reported: tiles and memory, precision, the choice of
//! the method, and whether the image resembles the training images.

use super::image::Work;
use crate::error::Result;
use crate::notice::Notice;
use crate::observer::{Ear, Event, Plan};
use clearshot_restore::learned::precision::Settled;
use clearshot_restore::learned::{
    Candidate, Choice, Error as EngineError, Forecast, Measured, Restorer, choice,
};
use clearshot_runtime::{Device, Precision};

/// Reports that a network has nothing that a GPU computes in the 8 bits that were asked for. On the CPU, a quantised network has.
pub(crate) fn computed_in(
    asked: Precision,
    forecast: &Forecast,
    device: &Device,
    ear: &mut Ear<'_>,
) -> Result<()> {
    let ran = forecast.computes_in.precision();
    match asked {
        Precision::Fp8 | Precision::Int8 if ran != asked && matches!(device, Device::Cuda { .. }) => {
            ear.notice(Notice::Precision { asked, ran })
        }
        _ => Ok(()),
    }
}

/// The number of runs of the network so far, and in total.
#[derive(Default)]
pub(super) struct Progress {
    pub runs: usize,
    pub total: usize,
}

impl Progress {
    pub fn ran(&mut self, ear: &mut Ear<'_>) -> Result<(), EngineError> {
        self.runs += 1;
        match ear.observer.progress(self.runs, self.total).is_break() {
            true => Err(EngineError::Stopped),
            false => Ok(()),
        }
    }
}

impl Work<'_> {
    /// Reports time and memory of the network before it runs, for groups of `together` images of `joint` kinds each;
    /// does nothing if another method is requested.
    pub(super) fn plan(
        &self,
        restorer: &mut Restorer,
        together: usize,
        [groups, joint]: [usize; 2],
        progress: &mut Progress,
        ear: &mut Ear<'_>,
    ) -> Result<Option<Forecast>> {
        let device = *restorer.device();
        if let Some(other) = self.settings.only.filter(|m| *m != Candidate::Model) {
            let instead = Some(other);
            ear.event(&Event::Plan(Plan { forecast: None, instead, runs: 0, choosing: 0, device: &device }))?;
            return Ok(None);
        }
        let choosing = match (self.settings.only, self.camera) {
            (None, Some(_)) => joint * choice::runs(restorer, &self.parts.size)?,
            _ => 0,
        };
        let forecast = restorer.prepare(&self.parts.size, together)?;
        let runs = forecast.runs * groups * joint + choosing;
        let plan = Plan { forecast: Some(&forecast), instead: None, runs, choosing, device: &device };
        ear.event(&Event::Plan(plan))?;
        computed_in(self.settings.precision, &forecast, &device, ear)?;
        if forecast.blends {
            ear.notice(Notice::DependsOnTile)?;
        }
        progress.total = runs;
        Ok(Some(forecast))
    }

    /// Chooses the precision on a GPU, if it is automatic, from the middle part.
    pub(super) fn precision(&self, restorer: &mut Restorer, ear: &mut Ear<'_>) -> Result<Option<Settled>> {
        if !self.uses_model() || matches!(restorer.device(), Device::Cpu { .. }) {
            return Ok(None);
        }
        let measured = self.measured(&self.parts.all[self.parts.all.len() / 2], restorer)?;
        let settled = restorer.settle_precision(&measured, self.camera.as_ref())?;
        if let Some(settled) = &settled {
            ear.event(&Event::Precision(settled))?;
        }
        Ok(settled)
    }

    /// The method or mixture: as requested, or chosen from the middle part.
    pub(super) fn choice(
        &self,
        restorer: &mut Restorer,
        progress: &mut Progress,
        ear: &mut Ear<'_>,
    ) -> Result<Option<Choice>> {
        if let Some(only) = self.settings.only {
            return Ok(Some(Choice::only(only)));
        }
        let Some(camera) = &self.camera else { return Ok(None) };
        let measured = self.measured(&self.parts.all[self.parts.all.len() / 2], restorer)?;
        let _choosing = clearshot_timeline::span(clearshot_timeline::Phase::Choosing);
        let choice = choice::choose(restorer, &measured, camera, None, &mut || progress.ran(ear))?;
        if choice.risk.is_some() {
            ear.event(&Event::Choice { exposures: None, choice: &choice })?;
        }
        Ok(Some(choice))
    }

    /// Reports once per file that it is unlike the training images, and returns why.
    pub(super) fn unfamiliar(
        &self,
        restorer: &Restorer,
        images: &[Measured],
        ear: &mut Ear<'_>,
    ) -> Result<Option<String>> {
        for image in images {
            let distance = restorer.distance(image, self.camera.as_ref())?;
            let Some(distance) = distance.filter(|d| d.is_strange()) else { continue };
            let than = if distance.high { "higher" } else { "lower" };
            let why = format!(
                "{} is {than} than in its images of {}, the nearest",
                distance.statistic, distance.kind
            );
            ear.notice(Notice::Unfamiliar(why.clone()))?;
            return Ok(Some(why));
        }
        Ok(None)
    }

    /// Whether the network runs: always, unless another method is requested. It also runs if it has no weight in the
    /// mixture, because chi2 of its result tests the camera parameters.
    pub(super) fn uses_model(&self) -> bool {
        self.settings.only.is_none_or(|m| m == Candidate::Model)
    }
}
