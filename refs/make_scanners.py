"""Radon transforms, filtered backprojections and Fourier transforms by scikit-image and numpy, for crates/physics/tests/scanners.rs.

    python refs/make_scanners.py        # writes refs/scanner/*.json; scikit-image 0.26
"""

import json
import pathlib

import numpy as np
from skimage.transform import iradon, radon

OUT = pathlib.Path(__file__).parent / "scanner"
OUT.mkdir(exist_ok=True)
DIGITS = 14


def listed(values):
    return [float(f"{v:.{DIGITS}g}") for v in np.asarray(values, dtype=np.float64).ravel()]


def disk(rng, side):
    """An image that is zero outside of the circle, as radon wants it."""
    y, x = np.ogrid[:side, :side]
    return np.where((x - side // 2) ** 2 + (y - side // 2) ** 2 <= (side // 2) ** 2, rng.random((side, side)), 0.0)


rng = np.random.default_rng(5)
cases = []
for side, angles in [(12, [0.0, 30.0, 45.5, 90.0, 171.0]), (13, list(np.linspace(0, 180, 7, endpoint=False)))]:
    image = disk(rng, side)
    sinogram = radon(image, theta=angles, circle=True)
    noisy = sinogram + 0.1 * rng.standard_normal(sinogram.shape)
    slices = {
        name: listed(iradon(noisy, theta=angles, filter_name=name, circle=True))
        for name in ["ramp", "shepp-logan", "cosine", "hamming", "hann"]
    }
    # Rows are angles here, columns there.
    cases.append({"side": side, "angles": listed(angles), "image": listed(image), "sinogram": listed(sinogram.T),
                  "noisy": listed(noisy.T), "slices": slices})
(OUT / "radon.json").write_text(json.dumps(cases))

cases = []
for size in [(6, 10), (7, 5)]:
    image = rng.standard_normal(size) + 1j * rng.standard_normal(size)
    read = rng.random(size[0]) < 0.6
    read[0] = True
    samples = np.where(read[:, None], np.fft.fft2(image, norm="ortho"), 0)
    back = np.fft.ifft2(samples, norm="ortho")
    parts = lambda a: {"re": listed(a.real), "im": listed(a.imag)}
    cases.append({"size": size, "read": read.tolist(), "image": parts(image), "samples": parts(samples), "back": parts(back)})
(OUT / "kspace.json").write_text(json.dumps(cases))
