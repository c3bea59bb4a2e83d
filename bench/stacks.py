"""Stacks restored with the help of neighbouring planes, beside planes restored one by one: one line for each kind of scene and light.

    python stacks.py --clearshot target/release/clearshot --out OUT [--volumes MODEL]

Generated specimens in three dimensions, 16 planes of 128 x 128 pixels, the camera known. PSNR in units of the peak, clipped to [0, 1.5], over the whole stack.
"""
import argparse, pathlib, subprocess

import numpy as np
import tifffile

P = argparse.ArgumentParser()
P.add_argument("--clearshot", default="clearshot")
P.add_argument("--out", type=pathlib.Path, required=True)
P.add_argument("--volumes", help="a model of volumes (`experiment=volumes`), as a third column")
P.add_argument("--peaks", default="10,100", help="of 10, 30 and 100 electrons")
A = P.parse_args()
KINDS = "fibres mitochondria membranes reticulum vesicles tissue textures".split()
# Background and read noise in electrons, as `synth` has them for such peaks.
CAMERAS = {10: (1.0, 1.0), 30: (2.0, 1.5), 100: (5.0, 2.0)}
SEEDS = {(kind, peak): 1001 + 3 * k + p for k, kind in enumerate(KINDS) for p, peak in enumerate(CAMERAS)}


def run(*arguments):
    subprocess.run([A.clearshot, *map(str, arguments)], check=True, capture_output=True)


gains = []
for peak in map(int, A.peaks.split(",")):
    background, read_noise = CAMERAS[peak]
    for kind in KINDS:
        at = A.out / f"{kind}-{peak}"
        run("synth", "--scene", kind, "--size", "16x128x128", "--peak", peak, "--background", background, "--read-noise", read_noise,
            "--seed", SEEDS[kind, peak], "--out", at)
        noisy = at / "noisy" / f"{kind}_0000.tif"
        truth = (tifffile.imread(at / "truth" / noisy.name) - background) / peak
        found = []
        ways = [("planes.tif", ["--planes"]), ("stack.tif", [])] + ([("volumes.tif", ["--model", A.volumes, "--max-memory", "2GiB"])] if A.volumes else [])
        for name, options in ways:
            run("restore", noisy, "-o", at / name, "--method", "model", "--gain", 1, "--offset", 0, "--read-noise", read_noise,
                "--background", background, *options)
            made = np.clip((tifffile.imread(at / name) - background) / peak, 0, 1.5)
            found.append(-10 * np.log10(np.mean((made - truth) ** 2)))
        gains.append([way - found[0] for way in found[1:]])
        print(f"| {kind} | {peak} | {' | '.join(f'{way:.2f}' for way in found)} | {' | '.join(f'{gain:+.2f}' for gain in gains[-1])} |", flush=True)
print("mean gain", " ".join(f"{gain:+.2f}" for gain in np.mean(gains, 0)), "dB")
