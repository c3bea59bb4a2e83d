//! Numbers that scikit-image 0.26 gives for images that a formula makes: the windows, borders and
//! normalisations that the reference cases leave out.

use clearshot_metrics::intensity::{Normalisation, nrmse};
use clearshot_metrics::ms_ssim::ms_ssim;
use clearshot_metrics::ssim::{Ssim, Window};
use clearshot_metrics::{Crop, ImageRef, Pair, Rounding};

fn waves(shape: &[usize]) -> (Vec<f64>, Vec<f64>) {
    let n = shape.iter().product::<usize>();
    let truth = |i: f64| 0.5 + 0.3 * (0.37 * i).sin() + 0.1 * (0.011 * i * i).cos();
    let each = (0..n).map(|i| i as f64);
    each.map(|i| (truth(i), truth(i) + 0.08 * (1.9 * i + 0.3).sin())).unzip()
}

fn on_waves<T>(shape: &[usize], f: impl Fn(&Pair<'_>) -> T) -> T {
    let (t, x) = waves(shape);
    let (t, x) = (ImageRef::new(&t, shape).unwrap(), ImageRef::new(&x, shape).unwrap());
    f(&Pair::new(t, x, None, Rounding::Keep, Crop::Nothing).unwrap())
}

fn close(got: f64, expected: f64) {
    assert!((got - expected).abs() <= 1e-11 * expected, "{got} against {expected}");
}

/// The mean, the map's first pixel, and its last but two.
fn check(shape: &[usize], window: Window, sample_covariance: bool, expected: [f64; 3]) {
    let ssim = Ssim { window, sample_covariance, ..Ssim::uniform7(1.3) };
    on_waves(shape, |pair| {
        let map = ssim.map(pair).unwrap();
        close(ssim.mean(pair).unwrap(), expected[0]);
        close(map[0], expected[1]);
        close(map[map.len() - 3], expected[2]);
    });
}

#[test]
fn windows_of_a_plane() {
    let (uniform, gaussian) = (|size| Window::Uniform { size }, |sigma| Window::Gaussian { sigma });
    let s = [16, 19];
    check(&s, uniform(5), false, [0.9600356075023354, 0.7952947404515421, 0.9509290523167593]);
    check(&s, uniform(9), true, [0.9690090937479721, 0.9468466735324174, 0.9678408373154831]);
    check(&s, gaussian(1.5), true, [0.9615764683135329, 0.8358579902227613, 0.9576603374910271]);
    check(&s, gaussian(0.8), false, [0.9176421391500174, 0.790286543623269, 0.8992612362066698]);
}

#[test]
fn windows_of_a_volume() {
    let (uniform, gaussian) = (|size| Window::Uniform { size }, |sigma| Window::Gaussian { sigma });
    let s = [12, 13, 14];
    check(&s, uniform(5), false, [0.9688197647863446, 0.9739630261447041, 0.965288269241967]);
    check(&s, uniform(9), true, [0.9689344413519161, 0.973588642203635, 0.9687363458028985]);
    check(&s, gaussian(1.5), true, [0.9688669566306646, 0.9755454682763864, 0.9652394547522066]);
    check(&s, gaussian(0.8), false, [0.9670658612645375, 0.9830954740454173, 0.9609733017425878]);
}

#[test]
fn normalisations() {
    on_waves(&[16, 19], |pair| {
        close(nrmse(pair, Normalisation::Euclidean), 0.10326295352890331);
        close(nrmse(pair, Normalisation::MinMax), 0.07095068452596849);
        close(nrmse(pair, Normalisation::Mean), 0.11322177901306084);
    });
}

/// Three scales from scikit-image's Gaussian filter and numpy's block means.
#[test]
fn scales() {
    let got = on_waves(&[50, 47], |pair| ms_ssim(pair, &Ssim::wang2004(1.3), 3).unwrap());
    close(got, 0.991424746206735);
}
