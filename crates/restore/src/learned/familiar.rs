//! Whether a measured image resembles the training images: tested on crops of the training size all over the image,
//! with the median as the result.

use super::measured::{Camera, Measured};
use clearshot_model::familiar::{Distance, LEAST, statistics};
use clearshot_model::{Familiar, Photons};

/// Crops along each axis, at most.
const ALONG: usize = 4;

/// The distance of an image's middle plane from the training images; `None` if it is too small or empty.
pub fn distance(
    familiar: &Familiar,
    image: &Measured,
    camera: &Camera,
    photons: &Photons,
) -> Option<Distance> {
    let [.., height, width] = image.size[..] else { return None };
    let planes = image.size[..image.size.len() - 2].iter().product::<usize>();
    let start = planes / 2 * height * width;
    let side = [height.min(familiar.crop), width.min(familiar.crop)];
    // Fewer pixels than the training images had say less, and differ from those for that alone.
    let least = side[0].min(side[1]);
    if least < LEAST || 4 * least < 3 * familiar.crop {
        return None;
    }
    let places = |whole: usize, side: usize| {
        let count = (whole / side).clamp(1, ALONG);
        (0..count).map(move |i| (2 * i + 1) * (whole - side) / (2 * count))
    };
    let mut found = Vec::new();
    for y in places(height, side[0]) {
        for x in places(width, side[1]) {
            let rows = (y..y + side[0]).map(|row| start + row * width + x);
            let values = rows.flat_map(|at| at..at + side[1]).map(|p| image.values[p * image.channels]);
            let electrons: Vec<f32> = values.map(|v| camera.electrons(v)).collect();
            found.extend(statistics(&electrons, side, photons).map(|s| familiar.distance(&s)));
        }
    }
    found.sort_by(|a, b| a.square.total_cmp(&b.square));
    let middle = found.len() / 2;
    (!found.is_empty()).then(|| found.swap_remove(middle))
}
