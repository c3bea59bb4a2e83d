//! Restoring from coarse to fine: the 2 x 2 binned image is restored first. The samples of the full image start from
//! this result, with noise added, and keep it as their block means.
//!
//! Large structures are determined at the coarse stage, and the fine stage only adds detail that the coarse one does
//! not resolve. Every estimate of the clean image is projected to the nearest one whose block means equal the coarse
//! result ([`Blocks::project`]), so the result has these means too (Choi et al. 2021; Wang et al. 2023 call this a
//! range-null space decomposition).

use super::Restorer;
use crate::learned::Error;
use crate::learned::blocks::Blocks;
use crate::learned::field::Field;
use crate::learned::measured::{Camera, Measured};
use crate::learned::question::ImageScale;

/// The side of blocks from one stage to the next.
pub(super) const SIDE: usize = 2;

/// What a coarse stage says of an image: each of its samples, in the unit of the file.
pub(super) type Coarse = Vec<Field>;

impl Restorer {
    /// The stages before the last one, of images of one size.
    pub(super) fn coarse(
        &mut self,
        images: &[Measured],
        numbers: &[u64],
        camera: Option<&Camera>,
        ran: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<Vec<Coarse>, Error> {
        let small: Vec<Measured> =
            images.iter().map(|image| image.binned(SIDE, &self.scratch)).collect::<Result<_, _>>()?;
        let camera = camera.map(|camera| camera.binned(SIDE));
        let made = self.before(|it| it.restore(&small, numbers, camera.as_ref(), ran))?;
        Ok(made.into_iter().map(|restored| restored.samples).collect())
    }

    /// Runs of the graph that the stages before the last one take.
    pub(super) fn coarse_runs(&mut self, size: &[usize], images: usize) -> Result<usize, Error> {
        let small = Blocks::new(size, 1, SIDE).coarse();
        Ok(self.before(|it| it.prepare(&small, images))?.runs)
    }

    /// Does something as one stage earlier: the first of all begins at noise alone.
    fn before<T>(&mut self, f: impl FnOnce(&mut Restorer) -> T) -> T {
        let (settings, program) = (self.settings.clone(), self.program.clone());
        (self.settings.keep_samples, self.settings.chi2) = (true, false);
        self.settings.cascade -= 1;
        if self.settings.cascade == 1 {
            self.settings.begin = None;
            self.program = self.first_program.clone();
        }
        let made = f(self);
        (self.settings, self.program) = (settings, program);
        made
    }
}

/// A coarse sample on the network's scale of the image, and the blocks that it is the means of.
pub(super) fn on_scale(coarse: &Field, image: &Measured, scale: &ImageScale) -> (Blocks, Vec<f32>) {
    let [zero, unit] = scale.file;
    let means = coarse.iter().map(|&v| ((f64::from(v) - zero) / unit) as f32).collect();
    (Blocks::new(&image.size, image.channels, SIDE), means)
}
