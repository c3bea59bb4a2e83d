"""Clearshot's Noise2Void on the noisy images of W2S train, scored on W2S dev: one JSON line for each time of training, as `n2v_careamics.py` has them.

    python n2v_clearshot.py --data DATA/w2s --seconds 60,180,300 --out OUT [KEY=VALUE ...]

A second is two seconds of processor time on one thread, so that other programs on the machine do not count. Every time is a run of its own, from nothing: its number of iterations
follows from the pace of a short run, and what is printed is the processor time that the whole program took, with reading, validation and writing. KEY=VALUE changes the training.
"""
import argparse
import json
import pathlib
import resource
import shutil
import subprocess

import numpy as np
import tifffile

P = argparse.ArgumentParser()
P.add_argument("--data", type=pathlib.Path, required=True)
P.add_argument("--out", type=pathlib.Path, required=True)
P.add_argument("--clearshot", default="target/release/clearshot")
P.add_argument("--seconds", default="60,180,300")
A, CHANGES = P.parse_known_args()


def processor():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (used.ru_utime + used.ru_stime) / 2


def run(*arguments):
    return subprocess.run([A.clearshot, *map(str, arguments)], check=True, capture_output=True, text=True).stdout


def train(iterations):
    """Seconds that so many iterations took."""
    shutil.rmtree(A.out, ignore_errors=True)
    before = processor()
    run("train", "experiment=noise2void", f"data.inputs={A.data / 'train' / 'noisy'}", "trainer.device=cpu", "performance.threads=1", "performance.workers=1",
        f"trainer.iterations={iterations}", "validation.every=0", "validation.images=8", *CHANGES, "--out", A.out / "run", "--quiet")
    return processor() - before


def psnr(path, clean):
    made, clean = (tifffile.imread(p).astype(float) for p in (path, clean))
    ones = np.stack([made.ravel(), np.ones(made.size)], 1)
    fitted = (ones @ np.linalg.lstsq(ones, clean.ravel(), rcond=None)[0]).reshape(clean.shape)
    return 10 * np.log10(255.0**2 / np.mean((fitted - clean) ** 2))


few, more = 20, 100
start = train(few)
each = (train(more) - start) / (more - few)
start -= few * each
for seconds in map(float, A.seconds.split(",")):
    iterations = max(1, int((seconds - start) / each))
    took = train(iterations)
    run("restore", A.data / "dev" / "noisy", "-o", A.out / "restored", "--model", A.out / "run" / "best.clearshot", "--method", "model", "--float", "--quiet",
        "--device", "cpu", "--threads", "1")
    found = float(np.mean([psnr(A.out / "restored" / f.name, f) for f in sorted((A.data / "dev" / "clean").glob("*.tif"))]))
    print(json.dumps(dict(engine="clearshot", seconds=round(took, 1), iterations=iterations, psnr=found, changes=CHANGES)), flush=True)
