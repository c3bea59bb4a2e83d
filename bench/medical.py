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
    ("plain", "raw", "as scanned"), ("plain", "nlm", "non-local means"), ("plain", "gat+bm3d", "BM3D"), ("plain", "unet/best.clearshot", "U-Net, supervised"),
    ("few-concat", "concat/best.clearshot", "`concat`, one evaluation"),
    ("few-concat", None, "`concat`, 25 steps, mean of 4 samples"),
    ("ddim-concat", None, "`concat`, DDIM, 200 steps, mean of 4 samples"),
    ("ddpm-concat", None, "`concat`, DDPM, 1000 steps, mean of 2 samples"),
    ("few-crossattn", None, "`crossattn`, 25 steps, mean of 4 samples"),
    ("few-adm", None, "`adm`, 25 steps, mean of 4 samples"),
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


def scored(folder, run, method, domain):
    """The rows of an evaluation, or of `measure` on the means of samples with the share of pixels that 1.645 of their standard deviations reach."""
    if method:
        path = os.path.join(folder, f"scores-{run}-{domain}", "records.csv")
        return [r for r in csv.DictReader(open(path)) if r["method"] == method] if os.path.exists(path) else []
    at = os.path.join(folder, f"sampled-{run}-{domain}")
    if not os.path.exists(at + "/scores.jsonl"):
        return []
    rows = [r for r in map(json.loads, open(at + "/scores.jsonl")) if isinstance(r.get("psnr"), float) and "image" in r]
    for row, file in zip(rows, sorted(glob.glob(at + "/phantom_????.tif"))):
        truth = tifffile.imread(os.path.join(folder, "test", domain, "truth", os.path.basename(file)))
        apart = np.abs(tifffile.imread(file) - truth)
        row["coverage"] = float((apart <= 1.645 * tifffile.imread(file.replace(".tif", "_std.tif"))).mean())
    return rows


def table(folder):
    print("| method |" + "".join(f" {name} |" for name in DOMAINS.values()))
    print("|---|" + "---|" * len(DOMAINS))
    for run, method, name in ROWS:
        cells = []
        for domain in DOMAINS:
            rows = scored(folder, run, method, domain)
            mean = lambda key: np.mean([float(r[key]) for r in rows if r.get(key) not in (None, "")] or [np.nan])
            cover = mean("coverage")
            cell = f"{mean('psnr'):.2f} dB, {mean('ssim'):.3f}" if rows else "-"
            cells.append(cell + ("" if np.isnan(cover) else f", {100 * cover:.0f} %"))
        print(f"| {name} |" + "".join(f" {c} |" for c in cells))


def fit(source, target, peak):
    """Values become those of generated sections, whose brightest is at most 1: divided by the bright end, or by a given number."""
    values = tifffile.imread(source).astype(np.float64)
    peak = float(peak) if peak else float(np.percentile(values, 99.9)) / 0.8
    tifffile.imwrite(target, (values / peak).astype(np.float32))
    print(peak)


def real(folder):
    """The scores of the tooth, with the error of the slices from a quarter of the angles first."""
    rows = list(csv.DictReader(open(os.path.join(folder, "scores-real", "records.csv"))))
    print("| slices from 46 of 181 angles | PSNR | SSIM |")
    print("|---|---|---|")
    for method in dict.fromkeys(r["method"] for r in rows):
        mean = lambda key: np.mean([float(r[key]) for r in rows if r["method"] == method])
        print(f"| {method} | {mean('psnr'):.2f} dB | {mean('ssim'):.3f} |")


def draw(panels, path, columns):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(2.1 * columns, 2.3 * rows), squeeze=False)
    for axis, (title, image, high) in zip(axes.ravel(), panels):
        axis.imshow(image, cmap="gray", vmin=0, vmax=high, interpolation="nearest")
        axis.set_title(title, fontsize=8)
    for axis in axes.ravel():
        axis.axis("off")
    figure.tight_layout(pad=0.4)
    figure.savefig(path, dpi=80, bbox_inches="tight", pad_inches=0.05)


def pictures(folder, out):
    panels = []
    for domain, name in DOMAINS.items():
        at = lambda *parts: tifffile.imread(os.path.join(folder, *parts)).astype(float)
        file = "phantom_0001.tif"
        panels += [("truth", at("test", domain, "truth", file), 1), (name, at("test", domain, "noisy", file), 1)]
        for label, place in [("BM3D", "bm3d"), ("U-Net", "unet"), ("concat", "concat")]:
            panels.append((label, at("shown", domain, place + ".tif"), 1))
        panels.append(("concat, std x 5", 5 * at("shown", domain, "std.tif"), 1))
    draw(panels, os.path.join(out, "medical.png"), 6)
    if os.path.exists(os.path.join(folder, "real", "sparse-unet.tif")):
        at = lambda *parts: tifffile.imread(os.path.join(folder, "real", *parts)).astype(float)[0]
        panels = [("181 angles", at("truth", "tooth.tif"), 1), ("46 angles", at("noisy", "tooth.tif"), 1), ("BM3D", at("bm3d.tif"), 1),
                  ("U-Net", at("sparse-unet.tif"), 1), ("concat", at("sparse-concat.tif"), 1)]
        draw(panels, os.path.join(out, "tooth.png"), 5)


if __name__ == "__main__":
    if sys.argv[1] == "--noise":
        print(json.dumps(noise(sys.argv[2])))
    elif sys.argv[1] == "--fit":
        fit(*sys.argv[2:4], sys.argv[4] if len(sys.argv) > 4 else None)
    elif sys.argv[1] == "--apart":
        print(f"{1e6 * np.mean([(n - t).std() for n, t in zip(planes(sys.argv[2] + '/noisy'), planes(sys.argv[2] + '/truth'))]):.4g}")
    else:
        table(sys.argv[1])
        if os.path.exists(os.path.join(sys.argv[1], "scores-real")):
            print()
            real(sys.argv[1])
        if len(sys.argv) > 2:
            pictures(*sys.argv[1:3])
