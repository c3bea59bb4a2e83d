//! The background that is found in an image of its own, on generated scenes.

use clearshot_physics::Correlation;
use clearshot_restore::learned::field::Scratch;
use clearshot_restore::learned::measured::background;
use clearshot_restore::learned::{Camera, Measured, Values};
use clearshot_scenes::{Camera as Scenery, Scene};

const SHAPE: [usize; 2] = [192, 192];

#[test]
fn the_darkest_places_tell_the_background() {
    let camera =
        Camera { gain: 1.0, offset: 0.0, read_noise: 1.5, background: None, correlation: Correlation::WHITE };
    for scene in [Scene::Nuclei, Scene::Stars] {
        for (peak, level) in [(20.0, 2.0), (50.0, 5.0), (200.0, 20.0), (200.0, 0.0)] {
            for seed in [3, 4] {
                let truth = scene.generate(seed, 0, &SHAPE).unwrap();
                let scenery = Scenery { background: level, read_noise: 1.5, ..Scenery::for_peak(peak) };
                let y = scenery.take(&truth, &SHAPE, seed, 0).unwrap().values;
                let values = Values { values: &y, size: &SHAPE, channels: 1 };
                let image = Measured::read(&values, &Scratch::new(usize::MAX, None)).unwrap();
                let found = background(&image, &camera);
                assert!(
                    (found - level).abs() < 0.03 * level + 0.02 * peak,
                    "{scene:?} {peak}: {found} for {level}"
                );
            }
        }
    }
}
