//! Encoders on images of any axes: one embedding for each plane or volume (the mean over its patches), for tables that
//! other programs sort, cluster or plot.
//!
//! Images are scaled as in training, between their own dark and bright end, and covered by windows of the encoder's
//! training size (the last window along each axis is moved back to end at the image border).

use crate::error::{Error, Result};
use crate::items;
use crate::learned::Parts;
use crate::settings::Settings;
use crate::validity::Validity;
use clearshot_graph::{Builder, Type};
use clearshot_image::Image;
use clearshot_model::{Model, OwnRange};
use clearshot_restore::learned::Measured;
use clearshot_restore::learned::field::Scratch;
use clearshot_runtime::{Device, Options, Session, available_bytes, compile};
use clearshot_tensor::{Shape, Tensor};
use std::path::Path;

/// See the module.
pub struct Embedder {
    model: Model,
    device: Device,
    /// The encoder for windows of one size.
    ready: Option<(Vec<usize>, Session)>,
}

/// The embedding of one plane or volume.
#[derive(Clone, Debug, PartialEq)]
pub struct Embedded {
    /// The name of the image in a multi-image file, otherwise empty.
    pub item: String,
    /// The number of the plane or volume.
    pub part: usize,
    /// The mean over all patches.
    pub numbers: Vec<f32>,
}

impl Embedder {
    /// A model with an encoder: NAME.clearshot, a folder or a checkpoint.
    ///
    /// # Errors
    /// If it cannot be read, or has no encoder.
    pub fn load_on(path: impl AsRef<Path>, device: Device) -> Result<Embedder> {
        let model = Model::load(path.as_ref())?;
        if model.network.encoder().is_none() || !model.about.task.knows_no_camera() {
            return Err(Error::Unsuited(format!(
                "{}: {} has no encoder that gives embeddings; train one by experiment=mae, im2im/ijepa or im2im/iwm",
                path.as_ref().display(),
                model.about.task.name()
            )));
        }
        Ok(Embedder { model, device, ready: None })
    }

    /// The number of components of an embedding.
    pub fn width(&self) -> usize {
        self.model.network.encoder().map_or(0, |encoder| encoder.width())
    }

    /// The embeddings of all planes or volumes of a file, or of the image selected by the settings.
    ///
    /// # Errors
    /// If the file cannot be read, or is too small for the encoder.
    pub fn file(&mut self, path: impl AsRef<Path>, settings: &Settings) -> Result<Vec<Embedded>> {
        let path = path.as_ref();
        let first = Image::open_named(path, settings.item.as_deref())?;
        let names = first.description.items.clone();
        if names.len() == 1 || settings.item.is_some() {
            return self.image(first, "", settings).map_err(|e| e.at(path.display()));
        }
        let mut all = vec![];
        for number in items::light(&first.description).0 {
            let image = Image::open_number(path, number)?;
            all.extend(self.image(image, &names[number], settings).map_err(|e| e.at(path.display()))?);
        }
        Ok(all)
    }

    fn image(&mut self, mut image: Image, item: &str, settings: &Settings) -> Result<Vec<Embedded>> {
        settings.name_axes(&mut image)?;
        image.check_single()?;
        let about = &self.model.about;
        let parts = Parts::of(&image.description, about.dims, about.input_channels())?;
        let validity = Validity { saturation: None, is_given: false, mask: None };
        let scratch = Scratch::new(available_bytes().unwrap_or(usize::MAX) / 2, None);
        let mut all = vec![];
        for (number, part) in parts.all.iter().enumerate() {
            let measured = Measured::read(&parts.source(&image, part, &validity), &scratch)?;
            let mut values = measured.values.to_vec();
            OwnRange::of(&values, &measured.size, measured.channels).apply(&mut values);
            let numbers = self.embedded(&values, &measured.size, measured.channels)?;
            all.push(Embedded { item: item.into(), part: number, numbers });
        }
        Ok(all)
    }

    /// The mean of an image's windows.
    fn embedded(&mut self, values: &[f32], size: &[usize], channels: usize) -> Result<Vec<f32>> {
        let least = self.model.network.example_size();
        // An image smaller than the crops of training is one window, of as many whole patches as it has.
        let window: Vec<usize> = size
            .iter()
            .zip(&self.model.about.crop)
            .zip(&least)
            .map(|((len, crop), least)| (*crop).min(len / least * least))
            .collect();
        if let Err(why) = self.model.network.check_size(&window) {
            return Err(Error::Unsuited(format!("the image is too small for the encoder: {why}")));
        }
        let starts = |a: usize| -> Vec<usize> {
            let count = size[a].div_ceil(window[a]);
            (0..count).map(|i| (i * window[a]).min(size[a] - window[a])).collect()
        };
        let along: Vec<Vec<usize>> = (0..size.len()).map(starts).collect();
        let count: usize = along.iter().map(Vec::len).product();
        let mut sum = vec![0f64; self.width()];
        for number in 0..count {
            let mut rest = number;
            let mut first = vec![0; size.len()];
            for a in (0..size.len()).rev() {
                first[a] = along[a][rest % along[a].len()];
                rest /= along[a].len();
            }
            let cut = cut(values, size, channels, &first, &window);
            let made = self.window(&window, channels, cut)?;
            sum.iter_mut().zip(made).for_each(|(sum, v)| *sum += f64::from(v) / count as f64);
        }
        Ok(sum.into_iter().map(|v| v as f32).collect())
    }

    /// The mean over the patches of one window.
    fn window(&mut self, window: &[usize], channels: usize, values: Vec<f32>) -> Result<Vec<f32>> {
        let sizes: Vec<usize> = [1].into_iter().chain(window.iter().copied()).chain([channels]).collect();
        let shape = Shape::new(&sizes);
        if self.ready.as_ref().is_none_or(|(size, _)| size != window) {
            let mut b = Builder::new();
            let x = b.input("x", Type::f32(shape));
            if let Some(encoder) = self.model.network.encoder() {
                let all = encoder.embeddings_on(&mut b, x);
                let space: Vec<usize> = (0..b.shape(all).rank() - 1).collect();
                let mean = b.mean(all, &space);
                b.output("mean", mean);
            }
            let graph = b.finish().map_err(|e| Error::Unsuited(e.to_string()))?;
            let names: Vec<String> = graph.states().map(|(name, ..)| name.to_string()).collect();
            let mut session = compile(graph, &self.device, &Options::default()).map_err(unsuited)?;
            for name in names {
                session.set(&name, &self.model.weights[&name]).map_err(unsuited)?;
            }
            self.ready = Some((window.to_vec(), session));
        }
        let Some((_, session)) = &mut self.ready else { unreachable!("it was made above") };
        session.set("x", &Tensor::f32(shape, values)).map_err(unsuited)?;
        session.run().map_err(unsuited)?;
        let mean = session.get("mean").map_err(unsuited)?;
        Ok(mean.to_f64().into_iter().map(|v| v as f32).collect())
    }
}

fn unsuited(e: impl std::fmt::Display) -> Error {
    Error::Unsuited(e.to_string())
}

/// A box of an image, channels last.
fn cut(values: &[f32], size: &[usize], channels: usize, first: &[usize], window: &[usize]) -> Vec<f32> {
    let (last, mut out) = (size.len() - 1, vec![]);
    let rows: usize = window[..last].iter().product();
    for row in 0..rows {
        let (mut rest, mut at, mut step) = (row, 0, size[last]);
        for a in (0..last).rev() {
            at += (first[a] + rest % window[a]) * step;
            rest /= window[a];
            step *= size[a];
        }
        let from = (at + first[last]) * channels;
        out.extend_from_slice(&values[from..from + window[last] * channels]);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_are_cut_from_planes_and_volumes() {
        let values: Vec<f32> = (0..2 * 3 * 4).map(|v| v as f32).collect();
        assert_eq!(cut(&values, &[2, 3, 4], 1, &[1, 1, 2], &[1, 2, 2]), [18.0, 19.0, 22.0, 23.0]);
        assert_eq!(cut(&values, &[3, 4], 2, &[0, 3], &[2, 1]), [6.0, 7.0, 14.0, 15.0]);
    }
}
