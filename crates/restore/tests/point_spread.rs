//! Point-spread functions that do not suit an image are refused by name.

use clearshot_physics::{Electrons, PhysicsError, Psf};
use clearshot_restore::RestoreError;
use clearshot_restore::classical::richardson_lucy::RichardsonLucy;

#[test]
fn a_psf_of_other_axes_or_far_beyond_the_image_is_refused() {
    let (shape, image) = ([12, 10], vec![1.0f32; 120]);
    let run = |psf: &Psf| RichardsonLucy::USUAL.run(Electrons(&image[..]), &shape, psf).map(|_| ());
    let volume = Psf::gaussian(&[0.5, 0.5, 0.5]).unwrap();
    assert!(matches!(run(&volume), Err(RestoreError::PsfAxes { psf: 3, image: 2 })));
    // Larger than the image is well for what continues at its edges; eight times as large is a slip.
    assert!(run(&Psf::gaussian_within(&[1.0, 1.0], &[5, 79]).unwrap()).is_ok());
    let wide = Psf::gaussian_within(&[1.0, 1.0], &[5, 81]).unwrap();
    let refused = run(&wide);
    assert!(matches!(refused, Err(RestoreError::Physics(PhysicsError::PsfTooLarge { .. }))), "{refused:?}");
}
