#!/usr/bin/env python3
"""Compares what `clearshot measure` says of random images with scikit-image and scipy.

    python measure.py target/release/clearshot      (needs numpy, scipy, scikit-image and tifffile)
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import scipy.ndimage as ndimage
import scipy.optimize
import scipy.stats
import skimage.filters
import skimage.measure
import skimage.metrics
import tifffile

PROGRAM = sys.argv[1]
WORK = pathlib.Path(tempfile.mkdtemp(prefix="measure"))
failures = 0


def measure(*arguments):
    done = subprocess.run([PROGRAM, "measure", *map(str, arguments), "--json"], capture_output=True, text=True, cwd=WORK)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def close(what, ours, theirs, within=1e-9):
    global failures
    if not abs(ours - theirs) <= within * max(abs(theirs), 1e-300):
        failures += 1
        print(f"FAIL  {what}: {ours}, reference {theirs}")


def scene(rng, shape):
    return ndimage.gaussian_filter(rng.normal(size=shape), 3) * 100 + 50


def similarities(rng, n):
    truth = scene(rng, (61, 83))
    image = truth + rng.normal(size=truth.shape)
    np.save(WORK / "t.npy", truth)
    np.save(WORK / "x.npy", image)
    got = measure("--truth", "t.npy", "--image", "x.npy", "--range", 80, "--metric", "psnr,ssim,ssim-gaussian,nrmse,mae")[0]
    of = skimage.metrics
    close(f"psnr {n}", got["psnr"], of.peak_signal_noise_ratio(truth, image, data_range=80))
    close(f"ssim {n}", got["ssim"], of.structural_similarity(truth, image, data_range=80))
    gaussian = of.structural_similarity(truth, image, data_range=80, gaussian_weights=True, sigma=1.5, use_sample_covariance=False)
    close(f"ssim-gaussian {n}", got["ssim_gaussian"], gaussian)
    close(f"nrmse {n}", got["nrmse"], of.normalized_root_mse(truth, image))
    close(f"mae {n}", got["mae"], np.abs(truth - image).mean())


def objects(rng, n):
    truth = scene(rng, (64, 70))
    image = truth + 2 * rng.normal(size=truth.shape)
    for name, a in [("t", truth), ("x", image)]:
        tifffile.imwrite(WORK / f"{name}.tif", a.astype("f4"), imagej=True, resolution=(4, 2), metadata={"unit": "um"})
    truth, image = truth.astype("f4").astype("f8"), image.astype("f4").astype("f8")
    a, b = (v > skimage.filters.threshold_otsu(v) for v in (truth, image))
    got = measure("--truth", "t.tif", "--image", "x.tif", "--metric", "dice,iou,hausdorff,ap,count")[0]
    close(f"dice {n}", got["dice"], 2 * (a & b).sum() / (a.sum() + b.sum()))
    close(f"iou {n}", got["iou"], (a & b).sum() / (a | b).sum())
    steps = (0.5, 0.25)
    directed = [ndimage.distance_transform_edt(~to, sampling=steps)[of].max() for of, to in [(a, b), (b, a)]]
    close(f"hausdorff {n}", got["hausdorff"], max(directed), 1e-6)
    labels = [skimage.measure.label(m, connectivity=2) for m in (a, b)]
    overlap = np.zeros([l.max() + 1 for l in labels])
    np.add.at(overlap, tuple(l.ravel() for l in labels), 1)
    areas = overlap.sum(1)[1:, None] + overlap.sum(0)[None, 1:] - overlap[1:, 1:]
    ious = overlap[1:, 1:] / areas
    rows, columns = scipy.optimize.linear_sum_assignment(-(ious >= 0.5).astype(float))
    found = (ious[rows, columns] >= 0.5).sum()
    close(f"ap {n}", got["ap"], found / (sum(ious.shape) - found))
    close(f"count {n}", got["count"], labels[1].max())


def residuals(rng, n):
    image = scene(rng, (30, 33))
    measured = image + 2 * rng.normal(size=image.shape) + 0.1
    np.save(WORK / "x.npy", image)
    np.save(WORK / "m.npy", measured)
    got = measure("--image", "x.npy", "--measured", "m.npy", "--noise", 2, "--metric", "chi2,ks,bias")[0]
    left = (measured - image).ravel()
    close(f"chi2 {n}", got["chi2"], ((left / 2) ** 2).mean())
    test = scipy.stats.kstest(left / 2, "norm")
    close(f"ks {n}", got["ks"], test.statistic)
    close(f"p of ks {n}", got["ks_p"], test.pvalue, 1e-6)
    test = scipy.stats.ttest_1samp(left, 0)
    close(f"p of bias {n}", got["bias_p"], test.pvalue, 1e-6)
    close(f"bias {n}", got["bias_low"], test.confidence_interval(0.95).low, 1e-6)


def comparison(rng):
    for folder in "tab":
        (WORK / folder).mkdir()
    for i in range(20):
        truth = rng.normal(size=(9, 9))
        for folder, noise in [("t", 0), ("a", 0.1), ("b", 0.11)]:
            np.save(WORK / folder / f"{i}.npy", truth + noise * rng.normal(size=truth.shape))
    lines = measure("--truth", "t", "--image", "a", "--against", "b", "--metric", "mae")
    own, other = ([l["mae"] for l in lines[:-1] if l["image"].startswith(f)] for f in ("a/", "b/"))
    assert len(own) == len(other) == 20
    got = lines[-1]["summary"]["mae"]
    test = scipy.stats.wilcoxon(own, other)
    close("wilcoxon", got["against"]["wilcoxon"]["statistic"], test.statistic)
    close("p of wilcoxon", got["against"]["wilcoxon"]["p"], test.pvalue)
    close("p of t", got["against"]["paired_t"]["p"], scipy.stats.ttest_rel(own, other).pvalue, 1e-7)
    interval = scipy.stats.bootstrap((own,), np.mean, n_resamples=100_000, method="BCa", rng=1).confidence_interval
    width = interval.high - interval.low
    for end in ("low", "high"):
        # Both are drawn; ends of 10,000 draws stray by about 2 % of the width.
        assert abs(got[end] - getattr(interval, end)) < 0.08 * width, (end, got, interval)


rng = np.random.default_rng(29)
for n in range(5):
    similarities(rng, n)
    objects(rng, n)
    residuals(rng, n)
comparison(rng)
print(f"{failures} failures")
sys.exit(1 if failures else 0)
