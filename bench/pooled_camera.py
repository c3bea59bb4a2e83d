"""What a camera that is known better than from one image gains in `restore`: PSNR in dB of the model alone on real images, with the camera

- estimated from each image (what `restore` does),
- pooled: measured from all images of a set-up together (`clearshot camera IMAGES -o camera.json`, then `restore --camera camera.json`),
- true: variance and correlation of noisy minus clean image, each image by itself. This is the upper limit of what any estimate can gain.

    python pooled_camera.py --data DATA --out OUT [--sets fmd,w2s,gigadb]

DATA is as `own_images.sh` says. Prints a row for each set-up.
"""
import argparse
import json
import pathlib
import shutil
import subprocess

import numpy as np
import tifffile

P = argparse.ArgumentParser()
P.add_argument("--data", type=pathlib.Path, required=True)
P.add_argument("--out", type=pathlib.Path, required=True)
P.add_argument("--clearshot", default="target/release/clearshot")
P.add_argument("--sets", default="fmd,w2s,gigadb")
P.add_argument("--threads", default="2")
A = P.parse_args()
REACH = 4


def fitted(x, to):
    """x with the gain and offset that bring it nearest to another image."""
    ones = np.stack([x.ravel(), np.ones(x.size)], 1)
    return (ones @ np.linalg.lstsq(ones, to.ravel(), rcond=None)[0]).reshape(to.shape)


def read(path):
    return tifffile.imread(path).astype(float)


def clean_of(path):
    return read(str(path).replace("/noisy/", "/clean/"))


def true_camera(path):
    """Variance against brightness and correlation of what is noise for sure; pixels at the ends of the range are left out."""
    noisy, clean = read(path), clean_of(path)
    clean = fitted(clean, noisy)
    inner = (noisy > noisy.min()) & (noisy < noisy.max())
    noise = np.where(inner, noisy - clean, 0.0)
    order = np.argsort(clean[inner])
    level, square = clean[inner][order], noise[inner][order] ** 2
    bins = np.array_split(np.arange(level.size), 40)
    mean, variance = (np.array([v[b].mean() for b in bins]) for v in (level, square))
    weights = 1 / np.maximum(variance, 1e-9)  # The error of a variance goes by the variance.
    slope, dark = np.polyfit(mean, variance, 1, w=weights)
    slope = max(slope, 1e-6)
    offset = max(-dark / slope, 0.0) if dark < 0 else 0.0
    whitened = noise / np.sqrt(np.maximum(slope * clean + dark, variance.min()))
    white, rows, columns = np.mean(whitened**2), *noise.shape
    lag = lambda dy, dx: float(np.mean(whitened[: rows - dy, max(0, -dx) : columns - max(0, dx)] * whitened[dy:, max(0, dx) : columns + min(0, dx)]) / white)
    correlation = [[1.0 if (dy, dx) == (0, 0) else lag(dy, dx) for dx in range(-REACH, REACH + 1)] for dy in range(REACH + 1)]
    camera = dict(gain=1 / slope, offset=offset, read_noise=float(np.sqrt(max(dark + slope * offset, 0.0)) / slope))
    if max(abs(c) for row in correlation for c in row if c != 1.0) > 0.03:
        camera["correlation"] = correlation
    return camera


def clearshot(*arguments):
    return subprocess.run([A.clearshot, *map(str, arguments)], check=True, capture_output=True, text=True).stdout


def psnr(path, camera=None):
    out = A.out / "restored"
    shutil.rmtree(out, ignore_errors=True)
    given = ["--camera", camera] if camera else []
    clearshot("restore", path, "-o", out, "--method", "model", "--float", "--quiet", "--device", "cpu", "--threads", A.threads, *given)
    made, clean = read(out / path.name), clean_of(path)
    made = made if "fmd" in path.parts else fitted(made, clean)
    span = 255.0 if clean.max() <= 255 else np.ptp(clean)
    return 10 * np.log10(span**2 / np.mean((made - clean) ** 2))


def set_ups():
    fmd = sorted((A.data / "fmd" / "noisy").glob("*.tif"))
    w2s = sorted((A.data / "w2s" / "dev" / "noisy").glob("*.tif"))
    for name in sorted({f.stem.rsplit("_", 1)[0] for f in fmd}):
        yield "fmd", name, [f for f in fmd if f.stem.rsplit("_", 1)[0] == name]
    for channel in sorted({f.stem.rsplit("_", 1)[1] for f in w2s}):
        yield "w2s", f"W2S channel {channel}", [f for f in w2s if f.stem.endswith("_" + channel)]
    for f in sorted((A.data / "gigadb" / "noisy").glob("*.tif")):
        yield "gigadb", f.stem, [f]


A.out.mkdir(parents=True, exist_ok=True)
print("| set-up | images | each image's own | pooled, gain of each | true, gain of each |\n|---|---|---|---|---|", flush=True)
for which, name, files in set_ups():
    if which not in A.sets.split(","):
        continue
    pooled, true = A.out / "pooled.json", A.out / "true.json"
    own = np.array([psnr(f) for f in files])
    together = own
    if len(files) > 1:
        clearshot("camera", *files, "-o", pooled, "--force")
        together = np.array([psnr(f, pooled) for f in files])
    best = []
    for f in files:
        true.write_text(json.dumps(true_camera(f)))
        best.append(psnr(f, true))
    gains = lambda scores: " ".join(f"{g:+.2f}" for g in np.array(scores) - own)
    print(f"| {name} | {len(files)} | {own.mean():.2f} | {gains(together) if len(files) > 1 else '-'} | {gains(best)} |", flush=True)
