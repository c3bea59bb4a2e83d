"""Real images with a partner: scores of raw, the classical methods and the default model on them.

    python bench/real_pairs.py --clearshot target/release/clearshot --data ../shared/data/pairs --out pairs

Nothing here was made by a simulated camera. What serves as the truth is said of each set:

- fmri:  20 repeats of a slab; the truth of each is the mean of the 19 others, so their noise is in the score.
- eit:   two frames of the sun an hour apart, each the other's truth: noise and an hour's change are in the score.
- ascm:  a volume of magnetic resonance and another program's denoised version of it: likeness to that, no truth.
- bars:  a made object through a real microscope's PSF with noise; the truth is the object through the PSF.

The camera is what `clearshot restore` finds in the first noisy image and says; that of the slab, which is too small for
this, follows from how the variance of repeats rises with their mean. Every method is told the same.
Needs numpy, scipy, tifffile, nibabel and astropy.
"""

import argparse
import json
import pathlib
import subprocess

import nibabel
import numpy as np
import tifffile
from astropy.io import fits
from scipy.signal import fftconvolve

METHODS = ["raw", "gaussian", "gat+median", "gat+nlm", "bm3d", "gat+bm3d", "default"]


def fmri(data):
    """(noisy, truth) of the middle plane of every fifth repeat."""
    stack = nibabel.load(data / "nibabel_functional_20repeats.nii").get_fdata()
    for r in range(0, stack.shape[3], 5):
        others = np.delete(stack, r, axis=3).mean(axis=3)
        yield stack[:, :, 1, r].T, others[:, :, 1].T


def eit(data):
    a, b = (fits.getdata(data / f"sunpy_eit_{f}.fits") for f in "ab")
    # Two missing blocks are zero in either.
    hole = (a == 0) | (b == 0)
    a, b = (np.where(hole, np.median(x), x) for x in (a, b))
    yield a, b
    yield b, a


def ascm(data):
    noisy, made = (nibabel.load(data / f).get_fdata() for f in ("dipy_aniso_vox.nii.gz", "dipy_ascm_out_test.nii.gz"))
    for z in (8, 12, 16):
        yield noisy[:, :, z].T, made[:, :, z].T


def bars(data):
    noisy, actual, kernel = (tifffile.imread(data / f"flowdec_bars_{f}.tif") for f in ("data", "actual", "kernel"))
    blurred = fftconvolve(actual, kernel / kernel.sum(), mode="same")
    # The data have a scale and an offset of their own.
    slope, offset = np.polyfit(blurred.ravel(), noisy.ravel(), 1)
    for z in (8, 16, 24):
        yield noisy[z], slope * blurred[z] + offset


def camera_of_repeats(data):
    """Photon transfer: the variance of repeats is mean / gain + (read noise / gain)^2."""
    stack = nibabel.load(data / "nibabel_functional_20repeats.nii").get_fdata()
    mean, variance = stack.mean(axis=3).ravel(), stack.var(axis=3, ddof=1).ravel()
    slope, dark = np.polyfit(mean, variance, 1)
    # Variance that does not rise with the signal is all read noise.
    slope = max(slope, 1e-3 * variance.mean() / mean.mean())
    dark = max(np.mean(variance - slope * mean), 0.0)
    return {"gain": 1 / slope, "offset": 0.0, "read_noise": np.sqrt(dark) / slope}


def run(program, *arguments):
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, arguments))}: {done.stderr}")
    return done.stdout


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--clearshot", default="target/release/clearshot")
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    given = parser.parse_args()
    print("| set | " + " | ".join(METHODS) + " |\n|" + "---|" * (len(METHODS) + 1))
    for pairs in (fmri, eit, ascm, bars):
        folder = given.out / pairs.__name__
        for part in ("noisy", "truth"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        for i, (noisy, truth) in enumerate(pairs(given.data)):
            for part, values in (("noisy", noisy), ("truth", truth)):
                tifffile.imwrite(folder / part / f"{i}.tif", np.ascontiguousarray(values, np.float32))
        camera = camera_of_repeats(given.data) if pairs is fmri else None
        if camera is None:
            first = folder / "noisy" / "0.tif", "-o", folder / "first.tif"
            said = run(given.clearshot, "restore", *first, "--json", "--force")
            camera = next(e["camera"] for e in map(json.loads, said.splitlines()) if e["event"] == "file")
        options = [x for k in ("gain", "offset", "read_noise") for x in (f"--{k.replace('_', '-')}", camera[k])]
        report = folder / "report"
        summary = json.loads(
            run(given.clearshot, "compare", *METHODS, "--truth", folder / "truth", "--noisy", folder / "noisy", *options,
                "--out", report, "--json")
        )
        cells = {c["method"]: c["psnr"] for c in summary["cells"]}
        print(f"| {pairs.__name__} | " + " | ".join(f"{cells[m][0]:.2f}" if m in cells else "-" for m in METHODS) + " |", flush=True)
        (folder / "camera.json").write_text(json.dumps(camera))


if __name__ == "__main__":
    main()
