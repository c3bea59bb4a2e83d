"""References for the classical restorers: SciPy's filters and scikit-image's total variation and Richardson-Lucy.

Needs numpy, scipy, scikit-image, safetensors. Run from this folder: python make_restore.py
"""
import numpy as np
from safetensors.numpy import save_file
from scipy.ndimage import gaussian_filter, median_filter, uniform_filter
from scipy.signal import fftconvolve
from skimage.restoration import denoise_tv_chambolle, richardson_lucy

rng = np.random.default_rng(20260101)


def picture(shape):
    x = np.zeros(shape)
    inner = tuple(slice(n // 4, n - n // 3) for n in shape)
    x[inner] = 3.0
    return x + gaussian_filter(rng.normal(size=shape), 1.5) * 2 + 4


for name, shape in (("plane", (37, 52)), ("volume", (9, 21, 18))):
    noise = 0.7
    y = (picture(shape) + rng.normal(0, noise, shape)).astype(np.float32)
    wide = y.astype(np.float64)
    mean = uniform_filter(wide, 5)
    variance = np.maximum(uniform_filter(wide**2, 5) - mean**2, 0)
    wiener = mean + np.where(variance > noise**2, 1 - noise**2 / np.maximum(variance, 1e-30), 0) * (wide - mean)
    grid = np.meshgrid(*[np.arange(-3, 4)] * len(shape), indexing="ij")
    psf = np.exp(-sum((g / s) ** 2 for g, s in zip(grid, (1.1, 1.6, 1.4))) / 2)
    psf /= psf.sum()
    blurred = np.maximum(fftconvolve(picture(shape), psf, mode="same"), 0) + 0.01
    blurred = blurred.astype(np.float32)
    save_file(
        {
            "in.y": y,
            "in.psf": psf,
            "in.blurred": blurred,
            "out.gaussian": gaussian_filter(wide, 1.3),
            "out.median": median_filter(wide, 3),
            "out.wiener": wiener,
            "out.tv": denoise_tv_chambolle(wide, weight=1.2 * noise, eps=1e-9, max_num_iter=60),
            "out.richardson_lucy": richardson_lucy(blurred.astype(np.float64), psf, 15, clip=False),
        },
        f"restore/{name}.safetensors",
        metadata={"kind": "restore", "name": name, "attrs": "{}", "noise": str(noise), "note": "gaussian 1.3, median 3, Wiener 5, TV weight 1.2 noise and 60 steps, RL 15"},
    )
