//! The outputs of a segmentation, computed from the network's output for each pixel.

use crate::error::Result;
use clearshot_metrics::segment::{Connectivity, Labels};
use clearshot_model::instances;

/// The output of a segmentation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Segments {
    /// Objects, numbered from 1: connected pixels of one class (along an edge; in volumes, along a face), or separate
    /// objects if the model is for instance segmentation.
    #[default]
    Labels,
    /// The class of each pixel: 1 for the foreground, or the most probable of several classes.
    Classes,
    /// The probability of the foreground, or of each class as a channel, as 32-bit floats.
    Probabilities,
}

impl Segments {
    /// Every choice with its name.
    pub const ALL: [(&'static str, Segments); 3] = [
        ("labels", Segments::Labels),
        ("classes", Segments::Classes),
        ("probabilities", Segments::Probabilities),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Segments::ALL.iter().find(|(_, s)| *s == self).map_or("", |(name, _)| name)
    }

    /// The values to write, and the number of objects, from the network's output for a plane or volume of this size:
    /// maps of [`instances`] for instance segmentation, otherwise class probabilities.
    ///
    /// # Errors
    /// If there are more objects than the pixel type can number.
    pub(crate) fn of(
        self,
        numbers: &[f32],
        channels: usize,
        one_by_one: bool,
        size: &[usize],
    ) -> Result<(Vec<f32>, usize)> {
        Ok(match (self, one_by_one) {
            (Segments::Probabilities, true) => {
                (foreground(numbers, channels, |x| 1.0 / (1.0 + (-x).exp())), 0)
            }
            (Segments::Probabilities, false) => (numbers.to_vec(), 0),
            (Segments::Classes, true) => (foreground(numbers, channels, |x| f32::from(u8::from(x > 0.0))), 0),
            (Segments::Classes, false) => (classes(numbers, channels), 0),
            (Segments::Labels, true) => {
                let found = instances::objects(numbers, channels, size)?;
                (found.data.iter().map(|l| *l as f32).collect(), found.count)
            }
            (Segments::Labels, false) => labels(&classes(numbers, channels), size)?,
        })
    }
}

/// The foreground of maps of instances.
fn foreground(maps: &[f32], channels: usize, of: impl Fn(f32) -> f32) -> Vec<f32> {
    maps.iter().skip(instances::FOREGROUND).step_by(channels).map(|&x| of(x)).collect()
}

/// The class of each pixel: foreground if its probability is above one half, or the most probable of several classes.
fn classes(probabilities: &[f32], count: usize) -> Vec<f32> {
    let of = |p: &[f32]| match p {
        [foreground] => f32::from(u8::from(*foreground > 0.5)),
        _ => (0..p.len()).fold(0, |best, i| if p[i] > p[best] { i } else { best }) as f32,
    };
    probabilities.chunks_exact(count.max(1)).map(of).collect()
}

/// The objects of classes, numbered from 1, and how many there are.
fn labels(classes: &[f32], size: &[usize]) -> Result<(Vec<f32>, usize)> {
    let most = classes.iter().fold(0.0, |most: f32, c| most.max(*c)) as usize;
    let (mut out, mut count) = (vec![0.0; classes.len()], 0);
    for class in 1..=most {
        let mask: Vec<bool> = classes.iter().map(|c| *c == class as f32).collect();
        let found = Labels::connected(&mask, size, Connectivity::Faces)?;
        for (to, label) in out.iter_mut().zip(found.data).filter(|(_, label)| *label > 0) {
            *to = (label as usize + count) as f32;
        }
        count += found.count;
    }
    Ok((out, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_of_different_classes_are_separate_and_numbered_consecutively() {
        let p = [0.9, 0.1, 0.0, 0.2, 0.7, 0.1, 0.2, 0.7, 0.1, 0.1, 0.2, 0.7, 1.0, 0.0, 0.0, 0.1, 0.2, 0.7];
        let found = classes(&p, 3);
        assert_eq!(found, [0.0, 1.0, 1.0, 2.0, 0.0, 2.0]);
        assert_eq!(labels(&found, &[2, 3]).unwrap(), (vec![0.0, 1.0, 1.0, 2.0, 0.0, 3.0], 3));
        assert_eq!(classes(&[0.4, 0.6], 1), [0.0, 1.0]);
        assert_eq!(labels(&[0.0; 4], &[2, 2]).unwrap(), (vec![0.0; 4], 0));
    }
}
