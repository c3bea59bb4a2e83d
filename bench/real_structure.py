"""Real structure in noise that is known: pairs for `clearshot compare`, from images of many kinds.

    python bench/real_structure.py --images ../shared/data/real/content --out pairs
    clearshot compare raw best-gaussian gat+bm3d default auto --truth pairs/truth --noisy pairs/noisy --fit --group '([a-z0-9]+_p[0-9]+)_'

Each plane of an image is shrunk two or three times, so that its own noise is small (planes where it is not are left out), and becomes the
mean of a camera with a peak of 10, 40 or 160 electrons over some background. Four kinds of noise: `white` (16 bits, read noise of 1.5
electrons), `excess8` (amplified electrons, as photomultipliers and EMCCDs have them), `rows8` (the same, shared along rows as by scanning
detectors), `mosaic8` (shared by 0.6 with the next pixel, as a colour camera's interpolation leaves it). The last three are stretched to
8 bits, with 0.2 % of the pixels cut off at either end. Needs numpy, scipy and tifffile.
"""

import argparse
import pathlib

import numpy as np
import tifffile
from scipy import ndimage

KINDS = ["white", "excess8", "rows8", "mosaic8"]
PEAKS = [10, 40, 160]
BACKGROUNDS = [0.02, 0.1, 0.3]
#: The least side of a plane, the most of a crop, and its own noise at the most, as a share of its range.
LEAST, MOST, QUIET = 130, 256, 0.02


def planes(path):
    """The planes of a file: its channels, or the middle of a stack or movie."""
    image = tifffile.imread(path)
    if image.ndim == 3 and image.shape[-1] == 3:
        return [image[..., c] for c in range(3)] if "hela" in path.name else [image[..., 1]]
    if image.ndim == 2:
        return [image]
    if path.name.startswith("xyc_"):
        return list(image)
    while image.ndim > 3:
        image = image[:, 0] if image.shape[1] == 2 else image[0]
    return [image[image.shape[0] // 2]]


def structure(plane):
    """A plane from about 0 to 1, shrunk; nothing where it is small or noisy."""
    plane = plane.astype(float)
    height, width = plane.shape
    if min(height, width) < LEAST:
        return None
    factor = 3 if min(height, width) >= 500 else 2
    laplacian = np.array([[1, -2, 1], [-2, 4, -2], [1, -2, 1]]) / 6
    noise = np.median(np.abs(ndimage.convolve(plane, laplacian))) / 0.6745 / factor
    plane = plane[: height // factor * factor, : width // factor * factor]
    plane = plane.reshape(height // factor, factor, width // factor, factor).mean((1, 3))[:MOST, :MOST]
    low, high = np.percentile(plane, [1, 99.8])
    if noise > QUIET * (high - low) or high - low < 8 * noise:
        return None
    return ndimage.gaussian_filter(np.clip((plane - low) / (high - low), -0.05, None), 0.4)


def measured(mean, kind, rng):
    """What a camera makes of mean electrons."""
    counts = rng.poisson(mean).astype(float)
    if kind == "white":
        return np.clip(np.round((counts + rng.normal(0, 1.5, mean.shape)) / 0.5 + 100), 0, 65535).astype("u2")
    if kind != "mosaic8":
        counts = rng.gamma(np.maximum(counts, 1e-9) * 3, 1 / 3)
    noise = counts + rng.normal(0, 1, mean.shape) - mean
    if kind == "rows8":
        noise = ndimage.convolve1d(noise, [0.13, 1, 0.13], axis=1, mode="reflect")
    if kind == "mosaic8":
        noise = ndimage.gaussian_filter(noise, 0.72, mode="reflect") * 2
    low, high = np.percentile(mean + noise, [0.2, 99.8])
    return np.clip(np.round((mean + noise - low) / (high - low) * 255), 0, 255).astype("u1")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    for part in ("truth", "noisy"):
        (arguments.out / part).mkdir(parents=True, exist_ok=True)
    rng, number = np.random.default_rng(5), 0
    for path in sorted(arguments.images.iterdir()):
        for image in filter(lambda s: s is not None, map(structure, planes(path))):
            for turn, kind in enumerate(KINDS):
                peak = PEAKS[(number + turn) % 3]
                mean = np.clip(image, 0, 3) * peak + BACKGROUNDS[number // 3 % 3] * peak
                name = f"{kind}_p{peak}_{number:03d}.tif"
                tifffile.imwrite(arguments.out / "noisy" / name, measured(mean, kind, rng))
                tifffile.imwrite(arguments.out / "truth" / name, mean.astype("f4"))
            number += 1
    print(f"{number} planes, {4 * number} pairs in {arguments.out}")


if __name__ == "__main__":
    main()
