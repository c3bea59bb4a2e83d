//! Point-spread functions that do not suit an image are refused by name.

use clearshot_physics::{Correlation, Electrons, PhysicsError, Psf};
use clearshot_restore::RestoreError;
use clearshot_restore::classical::richardson_lucy::{RichardsonLucy, Stop};
use clearshot_restore::classical::wiener;

#[test]
fn a_psf_of_other_axes_or_larger_than_the_image_is_refused() {
    let (shape, image) = ([12, 10], vec![1.0f32; 120]);
    let run = |psf: &Psf| {
        let settings = RichardsonLucy { stop: Stop::Steps(1), ..RichardsonLucy::USUAL };
        let steps = settings.run(Electrons(&image[..]), &shape, psf).map(|d| d.values);
        let at_once = wiener::deconvolve(&image, &shape, psf, 0.01, &Correlation::WHITE);
        assert_eq!(steps.as_ref().err(), at_once.as_ref().err());
        steps
    };
    let volume = Psf::gaussian(&[0.5, 0.5, 0.5]).unwrap();
    assert!(matches!(run(&volume), Err(RestoreError::PsfAxes { psf: 3, image: 2 })));
    assert!(run(&Psf::gaussian_within(&[1.0, 1.0], &[12, 10]).unwrap()).is_ok());
    for size in [[13, 3], [3, 11], [99, 99]] {
        let refused = run(&Psf::gaussian_within(&[1.0, 1.0], &size).unwrap()).unwrap_err();
        assert!(matches!(refused, RestoreError::Physics(PhysicsError::PsfTooLarge { .. })), "{refused:?}");
        let said = refused.to_string();
        assert!(said.contains(&format!("[{},{}]", size[0], size[1])) && said.contains("[12,10]"), "{said}");
    }
}

/// A thin stack takes the Gaussian that it has room for, and the whole of one that is small.
#[test]
fn thin_stacks_have_gaussians_that_fit() {
    let shape = [3, 9, 8];
    let image: Vec<f32> = (0..216).map(|i| 5.0 + (i % 11) as f32).collect();
    let psf = Psf::gaussian_fitting(&[2.0, 0.6, 0.6], &shape).unwrap().psf;
    assert_eq!(psf.shape()[..], [3, 7, 7]);
    let settings = RichardsonLucy { stop: Stop::Steps(4), ..RichardsonLucy::USUAL };
    let sharp = settings.run(Electrons(&image), &shape, &psf).unwrap();
    assert!(sharp.values.iter().all(|v| v.is_finite()) && sharp.chi2[4] < sharp.chi2[0]);
}
