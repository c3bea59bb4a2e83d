"""Classical restorers of clearshot beside scikit-image, SciPy and the bm3d package, one 1024 x 1024 image, one run.

    pip install numpy scipy scikit-image tifffile bm3d
    cargo build --release
    python bench/classical.py FOLDER [--program target/release/clearshot] [--rounds 3] [--size 1024]

Richardson-Lucy is timed by the iteration: every program takes 10 iterations and 60, and the difference is divided by 50, so
that starting, reading and writing do not count. scikit-image pads and convolves as its function does; the SciPy loop is
the plain algorithm with real FFTs of a padded image on all cores and the transformed PSF kept. BM3D and non-local means
are timed as a whole: our program with reading and writing beside the functions alone. Rounds alternate; the least of them
is printed. Results are compared, so that nobody is fast by doing less.
"""

import argparse
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
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--no-bm3d", action="store_true", help="without the bm3d package, which takes longest")
    args = parser.parse_args()
    os.makedirs(args.folder, exist_ok=True)
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
