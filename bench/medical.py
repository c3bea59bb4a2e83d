"""Tables and pictures of docs/medical.md from what bench/medical.sh made.

    python bench/medical.py FOLDER [PICTURES]      # prints the tables; draws into PICTURES where it is given; needs numpy, tifffile, matplotlib
    python bench/medical.py --noise FOLDER         # the standard deviation of what is not in the truth, by domain, as JSON
    python bench/medical.py --fit FROM TO [PEAK]   # slices in units of their bright end, as models of generated sections want them
"""

import csv
import glob
import json
import os
import sys

import numpy as np
import tifffile

DOMAINS = {"ct": "CT, 3000 photons", "rician": "MR, Rician", "kspace": "MR, a third of k-space"}
ROWS = [
    ("plain", "raw", "raw"), ("plain", "nlm", "non-local means"), ("plain", "bm3d", "BM3D"), ("plain", "unet/best.clearshot", "U-Net, supervised"),
    ("few-concat", "concat/best.clearshot", "concat, 25 steps of DPM-Solver++, 4 samples"),
    ("ddim-concat", "concat/best.clearshot", "concat, DDIM 200, 4 samples"),
    ("ddpm-concat", "concat/best.clearshot", "concat, DDPM 1000, 2 samples"),
    ("few-crossattn", "crossattn/best.clearshot", "crossattn, 25 steps, 4 samples"),
    ("few-adm", "adm/best.clearshot", "adm, 25 steps, 4 samples"),
]


def planes(folder, pattern="*.tif"):
    return [tifffile.imread(f).astype(float) for f in sorted(glob.glob(os.path.join(folder, pattern)))]


def noise(folder):
    found = {}
    for domain in DOMAINS:
        test = os.path.join(folder, "test", domain)
        apart = [(n - t).std() for n, t in zip(planes(test + "/noisy"), planes(test + "/truth"))]
        found[domain] = float(f"{1e6 * np.mean(apart):.4g}")
    return found


def table(folder):
    print("| method |" + "".join(f" {name} |" for name in DOMAINS.values()))
    print("|---|" + "---|" * len(DOMAINS))
    for run, method, name in ROWS:
        cells = []
        for domain in DOMAINS:
            path = os.path.join(folder, f"scores-{run}-{domain}", "records.csv")
            if not os.path.exists(path):
                cells.append("-")
                continue
            rows = [r for r in csv.DictReader(open(path)) if r["method"] == method]
            mean = lambda key: np.mean([float(r[key]) for r in rows if r.get(key) not in (None, "")] or [np.nan])
            cell = f"{mean('psnr'):.2f} dB, {mean('ssim'):.3f}"
            cover = mean("coverage")
            cells.append(cell + ("" if np.isnan(cover) else f", {100 * cover:.0f} %"))
        print(f"| {name} |" + "".join(f" {c} |" for c in cells))


def fit(source, target, peak):
    """Values become those of generated sections, whose brightest is at most 1: divided by the bright end, or by a given number."""
    values = tifffile.imread(source).astype(np.float64)
    peak = float(peak) if peak else float(np.percentile(values, 99.9)) / 0.8
    tifffile.imwrite(target, (values / peak).astype(np.float32))
    print(peak)


if __name__ == "__main__":
    if sys.argv[1] == "--noise":
        print(json.dumps(noise(sys.argv[2])))
    elif sys.argv[1] == "--fit":
        fit(*sys.argv[2:5], *([None] if len(sys.argv) < 5 else []))
    else:
        table(sys.argv[1])
