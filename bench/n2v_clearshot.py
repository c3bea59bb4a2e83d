"""Clearshot's Noise2Void on noisy images of W2S, scored on the same images against their truth after some minutes of one run: one JSON line for each, as
`n2v_careamics.py` has them.

    taskset -c 0 python n2v_clearshot.py --data DATA/w2s --minutes 1,2,5,10 --out OUT [--n2v2 | --plain] [KEY=VALUE ...]

A minute is one of processor time of the whole program, with its start and the reading of files, so that other programs on the machine do not count. The run's number of iterations follows from
the pace of a short one before it, so that its schedule ends with the last minute. --n2v2 takes N2V2's U-Net and sampling, --plain those of Noise2Void; without either it is `experiment=noise2void` as it is.
KEY=VALUE changes the training.
"""
import argparse
import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import time

import numpy as np
import tifffile

P = argparse.ArgumentParser()
P.add_argument("--data", type=pathlib.Path, required=True)
P.add_argument("--part", default="dev")
P.add_argument("--out", type=pathlib.Path, required=True)
P.add_argument("--clearshot", default="target/release/clearshot")
P.add_argument("--minutes", default="1,2,5,10")
P.add_argument("--n2v2", action="store_true")
P.add_argument("--plain", action="store_true")
A, CHANGES = P.parse_known_args()
MARKS = [60 * float(m) for m in A.minutes.split(",")]
NETWORK = ["model=n2v", f"model.network.n2v2={str(A.n2v2).lower()}", f"task.blind.fill={'median' if A.n2v2 else 'uniform'}"] if A.n2v2 or A.plain else []
NAME = "N2V2" if A.n2v2 else "N2V" if A.plain else "as it is"
TICKS = os.sysconf("SC_CLK_TCK")


def arguments(iterations):
    return [A.clearshot, "train", "experiment=noise2void", f"data.inputs={A.data / A.part / 'noisy'}", "trainer.device=cpu", "performance.threads=1", "performance.workers=1",
            f"trainer.iterations={iterations}", "validation.every=0", "validation.images=8", "checkpoint.every=20", *NETWORK, *CHANGES, "--out", str(A.out / "run"), "--quiet"]


def pace():
    """Seconds of processor time before the first iteration, and of each."""
    found = []
    for iterations in (20, 100):
        shutil.rmtree(A.out, ignore_errors=True)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(arguments(iterations), check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    each = (found[1] - found[0]) / 80
    return found[0] - 20 * each, each


def used(process):
    """Processor seconds of a process that runs."""
    fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def newest(after=""):
    """The newest checkpoint's model, kept beside the run."""
    for path in sorted((A.out / "run" / "checkpoints").glob("iteration-?????????"), reverse=True):
        try:
            kept = A.out / f"kept-{path.name}"
            shutil.copytree(path / "model", kept, dirs_exist_ok=True)
            return kept, int(path.name.rsplit("-", 1)[1])
        except FileNotFoundError:
            continue  # It was removed meanwhile.
    raise SystemExit("no checkpoint by the first mark")


def psnr(path, clean):
    made, clean = (tifffile.imread(p).astype(float) for p in (path, clean))
    ones = np.stack([made.ravel(), np.ones(made.size)], 1)
    fitted = (ones @ np.linalg.lstsq(ones, clean.ravel(), rcond=None)[0]).reshape(clean.shape)
    return 10 * np.log10(255.0**2 / np.mean((fitted - clean) ** 2))


def score(model):
    restored = A.out / "restored"
    shutil.rmtree(restored, ignore_errors=True)
    subprocess.run([A.clearshot, "restore", A.data / A.part / "noisy", "-o", restored, "--model", model, "--method", "model", "--float", "--quiet", "--device", "cpu", "--threads", "1"],
                   check=True, capture_output=True)
    return float(np.mean([psnr(restored / f.name, f) for f in sorted((A.data / A.part / "clean").glob("*.tif"))]))


start, each = pace()
shutil.rmtree(A.out, ignore_errors=True)
A.out.mkdir(parents=True)
begun, kept = time.monotonic(), []
process = subprocess.Popen(arguments(int((MARKS[-1] - start) / each)), stdout=subprocess.DEVNULL)
while len(kept) < len(MARKS):
    time.sleep(0.2)
    spent = used(process) if process.poll() is None else None
    if spent is None or spent >= MARKS[len(kept)]:
        kept.append((spent, time.monotonic() - begun, *newest()))
    if spent is None:
        break
if process.poll() is None:
    process.send_signal(signal.SIGINT)
process.wait()
for spent, wall, model, iterations in kept:
    print(json.dumps(dict(engine="clearshot", network=NAME, minutes=round((spent or MARKS[len(kept) - 1]) / 60, 2), wall=round(wall / 60, 2), iterations=iterations, psnr=score(model),
                          changes=CHANGES)), flush=True)
