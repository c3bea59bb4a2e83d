"""Classical restorers of clearshot beside scikit-image, SciPy and the bm3d package, one 1024 x 1024 image, one run.

    pip install numpy scipy scikit-image tifffile bm3d
    cargo build --release
    python bench/classical.py FOLDER [--program target/release/clearshot] [--rounds 3] [--size 1024]

Richardson-Lucy is timed by the iteration: every program takes 10 iterations and 60, and the difference is divided by 50, so
that starting, reading and writing do not count. scikit-image pads and convolves as its function does; the SciPy loop is
the plain algorithm with real FFTs of a padded image on all cores and the transformed PSF kept. BM3D and non-local means
are timed as a whole: our program with reading and writing beside the functions alone. Rounds alternate; the least of them
is printed. Results are compared, so that nobody is fast by doing less.

    cargo build --release -p clearshot-restore --example correlated
    python bench/classical.py FOLDER --correlated [--pairs PAIRS] [--size 256]

compares BM3D in correlated noise instead, both programs told the same spectrum: three scenes in drawn noise, and the images of
PAIRS/noisy with their truth in PAIRS/clean (8 bits), whose spectrum is that of what they differ by. Score and time
of the function alone.
"""

import argparse
import glob
import json
import os
import subprocess
import sys
import time

import numpy as np
import scipy.fft
import tifffile
from scipy.ndimage import gaussian_filter
from skimage.restoration import denoise_nl_means, richardson_lucy

SIGMA, PEAK, READ_NOISE = 1.5, 50.0, 1.5
FEW, MANY = 10, 60


def scene(size, rng):
    """Soft disks on a dark ground, in electrons."""
    y, x = np.mgrid[:size, :size]
    image = np.zeros((size, size))
    for _ in range(size * size // 4000):
        r, (cy, cx) = rng.uniform(6, 14), rng.uniform(0, size, 2)
        part = (slice(max(int(cy - r - 1), 0), int(cy + r + 2)), slice(max(int(cx - r - 1), 0), int(cx + r + 2)))
        image[part] += ((y[part] - cy) ** 2 + (x[part] - cx) ** 2 < r * r) * rng.uniform(0.3, 1)
    return PEAK * np.minimum(gaussian_filter(image, 1), 1) + 2


def threads(size, rng):
    """Bent threads of one brightness, from 0 to 1."""
    image, t = np.zeros((size, size)), np.linspace(0, 1, 4 * size)
    for _ in range(size * size // 600):
        a = rng.uniform(0, size, (2, 3, 1))
        at = a[:, 0] * (1 - t) ** 2 + 2 * a[:, 1] * t * (1 - t) + a[:, 2] * t**2
        image[tuple(at.astype(int))] = 1
    image = gaussian_filter(image, 1.2)
    return np.minimum(1.5 * image / image.max(), 1)


def leaves(size, rng):
    """Disks of all sizes and shades, each before those before it, from 0 to 1."""
    y, x = np.mgrid[:size, :size]
    image = np.zeros((size, size))
    for _ in range(size * size // 10):
        r, (cy, cx) = min(2 / rng.uniform(0.02, 1), 40), rng.uniform(0, size, 2)
        part = (slice(max(int(cy - r), 0), int(cy + r + 2)), slice(max(int(cx - r), 0), int(cx + r + 2)))
        image[part][(y[part] - cy) ** 2 + (x[part] - cx) ** 2 < r * r] = rng.uniform(0.1, 0.9)
    return gaussian_filter(image, 0.6)


REACH = 4
LAGS = [(dy, dx) for dy in range(-REACH, REACH + 1) for dx in range(-REACH, REACH + 1)]


def smoothed(sigma):
    """The autocorrelation of white noise behind a Gaussian with these widths along Y and X."""

    def along(s):
        taps = np.exp(-0.5 * (np.arange(-8, 9) / s) ** 2) if s > 0 else (np.arange(-8, 9) == 0).astype(float)
        whole = np.correlate(taps, taps, "full")[16:]
        return whole / whole[0]

    y, x = map(along, sigma)
    return {(dy, dx): y[abs(dy)] * x[abs(dx)] for dy, dx in LAGS}


def power(lags, shape):
    """The spectrum of lags on an image's grid, mean 1."""
    grid = np.zeros(shape)
    for lag, value in lags.items():
        grid[lag] = value
    spectrum = np.maximum(np.fft.fft2(grid).real, 1e-3)
    return spectrum / spectrum.mean()


def correlated(args):
    if not hasattr(np, "trapz"):
        # The package calls it by the name that NumPy 2.4 has no more.
        np.trapz = np.trapezoid
    import bm3d

    def ours(noisy, deviation, lags):
        names = [os.path.join(args.folder, name) for name in ("in.f32", "out.f32", "lags.json")]
        noisy.astype("<f4").tofile(names[0])
        with open(names[2], "w") as file:
            json.dump([[lags[dy, dx] for dx in range(-REACH, REACH + 1)] for dy in range(REACH + 1)], file)
        command = [args.example, "bm3d", *names[:2], *map(str, noisy.shape), str(deviation), names[2]]
        seconds = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        return np.fromfile(names[1], "<f4").reshape(noisy.shape), seconds

    def theirs(noisy, deviation, lags):
        psd = deviation**2 * power(lags, noisy.shape) * noisy.size
        start = time.perf_counter()
        return bm3d.bm3d(noisy, psd), time.perf_counter() - start

    def score(image, truth):
        return -10 * np.log10(np.mean((np.clip(image, 0, 1) - truth) ** 2))

    def row(name, cases):
        """Means over cases of (truth, noisy, deviation, lags), all from 0 to 1."""
        sums = np.zeros(5)
        for truth, *told in cases:
            (a, s), (b, t) = ours(*told), theirs(*told)
            sums += np.array([score(told[0], truth), score(a, truth), score(b, truth), s, t]) / len(cases)
        print("| {} | {:.2f} | {:.2f} | {:.2f} | {:.2f} s | {:.2f} s |".format(name, *sums), flush=True)

    print(f"load {os.getloadavg()[0]:.1f} before, {os.cpu_count()} cores")
    print("| image | noisy | Clearshot | the bm3d package | Clearshot | the bm3d package |\n|---|---|---|---|---|---|")
    size, rng = args.size or 256, np.random.default_rng(1)
    scenes = [scene(size, rng) / (PEAK + 2), threads(size, rng), leaves(size, rng)]
    for name, sigma in (("0.3", (0.3, 0.3)), ("0.5", (0.5, 0.5)), ("0.8", (0.8, 0.8)), ("0.5, along rows", (0, 0.5))):
        lags, cases = smoothed(sigma), []
        for truth in scenes:
            white = np.fft.fft2(rng.normal(0, 0.1, truth.shape))
            noisy = truth + np.fft.ifft2(white * np.sqrt(power(lags, truth.shape))).real
            cases.append((truth, noisy, 0.1, lags))
        row(f"3 scenes, {size} x {size}, noise smoothed by {name}", cases)
    for path in sorted(glob.glob(os.path.join(args.pairs, "noisy", "*.tif"))) if args.pairs else []:
        name = os.path.basename(path)
        if args.only not in name:
            continue
        noisy = tifffile.imread(path) / 255.0
        truth = tifffile.imread(os.path.join(args.pairs, "clean", name)) / 255.0
        noise = noisy - truth - (noisy - truth).mean()
        lags = np.fft.ifft2(np.abs(np.fft.fft2(noise)) ** 2).real
        row(os.path.splitext(name)[0], [(truth, noisy, noise.std(), {lag: lags[lag] / lags[0, 0] for lag in LAGS})])


def scipy_loop(image, psf, iterations):
    shape = [scipy.fft.next_fast_len(n + k - 1, real=True) for n, k in zip(image.shape, psf.shape)]
    kernel = scipy.fft.rfft2(psf, shape, workers=-1)
    half = [k // 2 for k in psf.shape]
    crop = tuple(slice(h, h + n) for h, n in zip(half, image.shape))

    def blur(x, k):
        return scipy.fft.irfft2(scipy.fft.rfft2(x, shape, workers=-1) * k, shape, workers=-1)[crop]

    # The PSF is symmetric, so it is its own adjoint.
    estimate = np.full(image.shape, 0.5, image.dtype)
    for _ in range(iterations):
        estimate = estimate * blur(image / (blur(estimate, kernel) + 1e-12), kernel)
    return estimate


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--program", default="target/release/clearshot")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", type=int, help="Default: 1024, or 256 with --correlated")
    parser.add_argument("--no-bm3d", action="store_true", help="without the bm3d package, which takes longest")
    parser.add_argument("--correlated", action="store_true", help="compare BM3D in correlated noise")
    parser.add_argument("--example", default="target/release/examples/correlated")
    parser.add_argument("--pairs", help="a folder with noisy/*.tif and clean/*.tif")
    parser.add_argument("--only", default="", help="take the pairs with this in their name. Default: all")
    args = parser.parse_args()
    os.makedirs(args.folder, exist_ok=True)
    if args.correlated:
        return correlated(args)
    args.size = args.size or 1024
    rng = np.random.default_rng(1)
    truth = scene(args.size, rng)
    blurred = gaussian_filter(truth, SIGMA, mode="reflect")
    seen = (rng.poisson(blurred) + rng.normal(0, READ_NOISE, truth.shape)).astype("float32")
    sharp = (rng.poisson(truth) + rng.normal(0, READ_NOISE, truth.shape)).astype("float32")
    files = {name: os.path.join(args.folder, f"{name}.tif") for name in ("seen", "sharp", "psf", "out")}
    radius = int(np.ceil(4 * SIGMA))
    axis = np.exp(-np.arange(-radius, radius + 1.0) ** 2 / (2 * SIGMA**2))
    psf = np.outer(axis, axis)
    psf = (psf / psf.sum()).astype("float32")
    for name, values in (("seen", seen), ("sharp", sharp), ("psf", psf)):
        tifffile.imwrite(files[name], values)

    def program(*arguments):
        command = [args.program, *map(str, arguments), files["out"], "--force"]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            sys.exit(f"failed: {command}\n{done.stderr}")
        return tifffile.imread(files["out"])

    def ours(steps):
        return program("deconvolve", "--psf", files["psf"], "--gain", 1, "--steps", steps, files["seen"])

    positive = np.maximum(seen, 1e-3)
    loops = {
        "clearshot": ours,
        "scikit-image": lambda n: richardson_lucy(positive / positive.max(), psf, num_iter=n) * positive.max(),
        "scipy.fft loop": lambda n: scipy_loop(positive, psf, n),
    }
    camera = ["--gain", 1, "--read-noise", READ_NOISE]
    stable = 2 * np.sqrt(np.maximum(sharp + 3 / 8 + READ_NOISE**2, 0))
    whole = {
        ("non-local means", "clearshot"): lambda: program("denoise", "--method", "nlm", *camera, files["sharp"]),
        ("non-local means", "scikit-image, fast"): lambda: denoise_nl_means(
            stable, patch_size=5, patch_distance=6, h=0.8, sigma=1.0, fast_mode=True),
        ("BM3D", "clearshot"): lambda: program("denoise", "--method", "bm3d", *camera, files["sharp"]),
    }
    if not args.no_bm3d:
        import bm3d

        whole[("BM3D", "the bm3d package")] = lambda: bm3d.bm3d(stable, 1.0)

    load = os.getloadavg()[0]
    least = {}

    def timed(key, run):
        start = time.perf_counter()
        result = run()
        least[key] = min(least.get(key, 1e9), time.perf_counter() - start)
        return result

    inner = (slice(32, -32),) * 2
    error = {}
    for _ in range(args.rounds):
        for name, loop in loops.items():
            for n in (FEW, MANY):
                result = timed((name, n), lambda: loop(n))
            error[name] = np.sqrt(np.mean((np.clip(result, 0, 3 * PEAK) - truth)[inner] ** 2))
        for key, run in whole.items():
            timed(key, run)
    print(f"load {load:.1f} before, {os.cpu_count()} cores, {args.size} x {args.size}, least of {args.rounds} rounds")
    print("| what | program | ms |\n|---|---|---|")
    for name in loops:
        each = (least[(name, MANY)] - least[(name, FEW)]) / (MANY - FEW)
        print(f"| one Richardson-Lucy iteration | {name} (error after {MANY}: {error[name]:.2f}) | {1e3 * each:.2f} |")
    for key in whole:
        print(f"| {key[0]}, whole | {key[1]} | {1e3 * least[key]:.0f} |")


if __name__ == "__main__":
    main()
