"""How many true values lie inside the 90 % intervals of the default model: on real images, and in correlated noise.

    python bench/intervals.py --parts real --data ../shared/data/real
    python bench/intervals.py --parts correlated

`real`: for every pair of FMD and W2S the camera is estimated from the whole short exposure, its middle 128 x 128 pixels are restored,
and the intervals that the program states (its standard deviation times `interval_90` of the report) are held against the long exposure.
That is an average of 50 frames (FMD) or 400 (W2S), so it has a 50th or a 400th of the noise's variance itself; the last column
adds this to the interval's variance, for only then 90 % is what a perfect answer would reach. Exposures differ in brightness, so
gain and offset of the long one are fitted to the short one first.

`correlated`: generated scenes whose noise is filtered by 0.4, 1, 0.4 along both axes, its variance kept; the camera is estimated from each image of 128 x 128
pixels, or told with --known. (`clearshot compare` scores intervals in white noise, with the true camera.)

With --samples 8 intervals are those of posterior samples. Needs the Python package, numpy and tifffile.
"""

import argparse
import itertools
import pathlib
import subprocess
import sys
import tempfile

import clearshot
import numpy as np
import tifffile

SIDE = 128
#: Folder, and frames that a long exposure is the mean of.
SETS = {"fmd": ("fmd", 50), "w2s": ("w2s/dev", 400)}
SCENES = "filaments nuclei stars phantom dead-leaves fibres mitochondria membranes reticulum vesicles tissue textures".split()
PEAKS = (20, 100)
#: The read noise that goes with each in generated images.
READ_NOISE = {20: 1.5, 100: 2.0}
#: Electrons per count, and the counts without light, of the generated images.
GAIN, OFFSET = 0.5, 100.0
TAPS = np.array([0.4, 1.0, 0.4]) / np.sqrt(0.4**2 + 1 + 0.4**2)


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


def real(data, every, settings):
    for name, (folder, frames) in SETS.items():
        rows = []
        for noisy in sorted((data / folder / "noisy").iterdir())[::every]:
            rows.append(shares(noisy, data / folder / "clean" / noisy.name, frames, settings))
            print(f"{name} {noisy.stem}: {rows[-1][0]:.3f}, with the long exposure's noise {rows[-1][1]:.3f}", flush=True)
        mean, low, high = np.mean(rows, 0), np.min(rows, 0), np.max(rows, 0)
        print(f"{name}: {len(rows)} images, stated {mean[0]:.3f} ({low[0]:.3f} to {high[0]:.3f}), with the long exposure's noise {mean[1]:.3f} ({low[1]:.3f} to {high[1]:.3f})")


def filtered(noise):
    """Noise that neighbours share, as strong as before."""
    for axis in range(2):
        noise = sum(t * np.roll(noise, i - 1, axis) for i, t in enumerate(TAPS))
    return noise


def true_camera(peak):
    lags = np.zeros(9)
    lags[2:7] = np.convolve(TAPS, TAPS)
    return {"gain": GAIN, "offset": OFFSET, "read_noise": READ_NOISE[peak], "correlation": np.outer(lags[4:], lags).tolist()}


def correlated(count, known, settings):
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for kind, peak in itertools.product(SCENES, PEAKS):
            out = pathlib.Path(folder) / f"{kind}-{peak}"
            program = [sys.executable, "-m", "clearshot", "synth", "--scene", kind, "--peak", str(peak), "--count", str(count), "--seed", "880011", "--out", str(out)]
            subprocess.run(program, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            inside = []
            for clean in sorted((out / "truth").iterdir()):
                truth = tifffile.imread(clean).astype(float)
                noisy = truth + filtered(tifffile.imread(out / "noisy" / clean.name) - truth)
                counts = np.float32(noisy / GAIN + OFFSET)
                result = clearshot.restore(counts, camera=true_camera(peak) if known else None, method="model", **settings)
                error = np.abs(result.image - (truth / GAIN + OFFSET))
                inside.append(np.mean(error <= result.report["interval_90"] * result.std))
            rows.append(np.mean(inside))
            print(f"{kind} {peak}: {rows[-1]:.3f}", flush=True)
    outside = sum(not 0.85 <= row <= 0.95 for row in rows)
    print(f"correlated: {len(rows)} cells of {count} images, mean {np.mean(rows):.3f} ({min(rows):.3f} to {max(rows):.3f}), {outside} outside 0.85 to 0.95")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--parts", default="real,correlated")
    parser.add_argument("--data", type=pathlib.Path, help="the folder with fmd and w2s, for `real`")
    parser.add_argument("--every", type=int, default=1, help="take only one real image in so many")
    parser.add_argument("--count", type=int, default=2, help="generated images of each kind at each light level")
    parser.add_argument("--known", action="store_true", help="tell the camera of generated images instead of estimating it")
    parser.add_argument("--samples", type=int, default=0, help="posterior samples. Default: 0, the model states its error")
    parser.add_argument("--steps", type=int, default=12)
    arguments = parser.parse_args()
    settings = {"std": True, "samples": arguments.samples, "steps": arguments.steps}
    for part in arguments.parts.split(","):
        {"real": lambda: real(arguments.data, arguments.every, settings), "correlated": lambda: correlated(arguments.count, arguments.known, settings)}[part]()


if __name__ == "__main__":
    main()
