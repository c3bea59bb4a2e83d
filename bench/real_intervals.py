"""How many real long exposures lie inside the 90 % intervals of the default model.

    python bench/real_intervals.py --data ../shared/data/real --samples 8 --steps 12 --every 2

For every pair of FMD and W2S the camera is estimated from the whole short exposure, its middle 128 x 128 pixels are restored, and
the intervals that the program states (its standard deviation times `interval_90` of the report) are held against the long exposure.
That is an average of 50 frames (FMD) or 400 (W2S), so it has a 50th or a 400th of the noise's variance itself; the last column
adds this to the interval's variance, for only then 90 % is what a perfect answer would reach. Exposures differ in brightness, so
gain and offset of the long one are fitted to the short one first. Needs the Python package, numpy and tifffile.
"""

import argparse
import pathlib

import clearshot
import numpy as np
import tifffile

SIDE = 128
#: Folder, and frames that a long exposure is the mean of.
SETS = {"fmd": ("fmd", 50), "w2s": ("w2s/dev", 400)}


def shares(noisy, clean, frames, settings):
    """The shares of pixels inside the interval, as it is stated and with the noise of the long exposure."""
    camera = clearshot.estimate_camera(noisy)
    short, long = (tifffile.imread(path).astype(np.float32) for path in (noisy, clean))
    middle = tuple(slice((n - SIDE) // 2, (n + SIDE) // 2) for n in short.shape)
    short, long = short[middle], long[middle].astype(float)
    result = clearshot.restore(short, camera=camera, method="model", **settings)
    reach = result.report["interval_90"]
    gain, offset = np.polyfit(long.ravel(), short.ravel(), 1)
    known = result.report["camera"]
    electrons = np.maximum((result.image - known["offset"]) * known["gain"], 0.01)
    variance = (electrons + known["read_noise"] ** 2) / known["gain"] ** 2
    error = np.abs(result.image - (gain * long + offset))
    return [np.mean(error <= reach * np.sqrt(result.std**2 + more)) for more in (0.0, variance / frames)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--every", type=int, default=1, help="take only one image in so many")
    arguments = parser.parse_args()
    settings = {"samples": arguments.samples, "steps": arguments.steps}
    for name, (folder, frames) in SETS.items():
        rows = []
        for noisy in sorted((arguments.data / folder / "noisy").iterdir())[:: arguments.every]:
            rows.append(shares(noisy, arguments.data / folder / "clean" / noisy.name, frames, settings))
            print(f"{name} {noisy.stem}: {rows[-1][0]:.3f}, with the long exposure's noise {rows[-1][1]:.3f}", flush=True)
        mean, low, high = np.mean(rows, 0), np.min(rows, 0), np.max(rows, 0)
        print(f"{name}: {len(rows)} images, stated {mean[0]:.3f} ({low[0]:.3f} to {high[0]:.3f}), with the long exposure's noise {mean[1]:.3f} ({low[1]:.3f} to {high[1]:.3f})")


if __name__ == "__main__":
    main()
