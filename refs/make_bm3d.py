"""References for BM3D in correlated noise: the bm3d package with the noise's power spectrum.

Needs numpy, scipy, bm3d (4.0.3), safetensors. Run from this folder: python make_bm3d.py
"""
import numpy as np

if not hasattr(np, "trapz"):
    # The package calls it by the name that NumPy 2.4 has no more.
    np.trapz = np.trapezoid
import bm3d
from safetensors.numpy import save_file
from scipy.ndimage import gaussian_filter

SIDE, NOISE, REACH = 80, 0.1, 4


def picture():
    """Disks and threads, from 0 to 1."""
    rng = np.random.default_rng(11)
    y, x = np.mgrid[:SIDE, :SIDE]
    image = np.zeros((SIDE, SIDE))
    for _ in range(9):
        (cy, cx), r = rng.uniform(0, SIDE, 2), rng.uniform(4, 12)
        image += rng.uniform(0.3, 0.8) * ((y - cy) ** 2 + (x - cx) ** 2 < r * r)
    for _ in range(6):
        t, (a, b) = np.linspace(0, 1, 400), rng.uniform(0, SIDE - 1, (2, 2))
        line = np.zeros_like(image)
        line[tuple((a[i] + t * (b[i] - a[i])).astype(int) for i in (0, 1))] = 1.5
        image += line
    return np.minimum(gaussian_filter(image, 0.8), 1)


def along(sigma):
    """The autocorrelation of white noise behind a Gaussian, at lags 0 to 4."""
    taps = np.exp(-0.5 * (np.arange(-8, 9) / sigma) ** 2) if sigma > 0 else (np.arange(-8, 9) == 0).astype(float)
    whole = np.correlate(taps, taps, "full")[16:]
    return whole[: REACH + 1] / whole[0]


def power(lags):
    """The spectrum of lags [dy, dx] on the image's grid, mean 1."""
    grid = np.zeros((SIDE, SIDE))
    for dy in range(-REACH, REACH + 1):
        for dx in range(-REACH, REACH + 1):
            grid[dy, dx] = lags[abs(dy), abs(dx)]
    spectrum = np.maximum(np.fft.fft2(grid).real, 1e-3)
    return spectrum / spectrum.mean()


truth = picture()
tensors = {"in.truth": truth.astype(np.float32)}
for name, sigma in (("both", (0.8, 0.8)), ("rows", (0, 0.5))):
    lags = np.outer(along(sigma[0]), along(sigma[1]))
    spectrum = power(lags)
    white = np.random.default_rng(12).normal(0, NOISE, truth.shape)
    noisy = (truth + np.fft.ifft2(np.fft.fft2(white) * np.sqrt(spectrum)).real).astype(np.float32)
    psd = NOISE**2 * spectrum * truth.size
    tensors[f"in.{name}"] = noisy
    tensors[f"in.{name}_lags"] = lags.astype(np.float32)
    tensors[f"out.{name}"] = bm3d.bm3d(noisy.astype(np.float64), psd).astype(np.float32)
    for key in (f"in.{name}", f"out.{name}"):
        print(key, 10 * np.log10(1 / np.mean((tensors[key] - truth) ** 2)))
about = {"kind": "restore", "name": "bm3d", "attrs": "{}", "noise": str(NOISE), "note": "bm3d 4.0.3; in.*_lags are [dy, dx] from 0 to 4"}
save_file(tensors, "restore/bm3d.safetensors", metadata=about)
