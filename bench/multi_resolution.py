"""Tables of docs/multi-resolution.md from what bench/multi_resolution.sh made: python bench/multi_resolution.py FOLDER"""

import csv
import json
import os
import sys

RUNS = ["progressive", "growing", "multiscale", "large"]


def lines(path):
    return [json.loads(line) for line in open(path)] if os.path.exists(path) else []


def mean(values):
    values = list(values)
    return sum(values) / len(values) if values else float("nan")


def by_size(at):
    print("| run | 32 px | 64 px | 96 px | 128 px | processor time of training |\n|---|---|---|---|---|---|")
    for run in ["gat+bm3d"] + RUNS:
        folder = os.path.join(at, "scores-" + (RUNS[0] if run == "gat+bm3d" else run))
        if not os.path.exists(folder + "/records.csv"):
            continue
        rows = list(csv.DictReader(open(folder + "/records.csv")))
        score = lambda size: mean(float(r["psnr"]) for r in rows if r["method"].endswith(f"({size} px)") and (run == "gat+bm3d") == r["method"].startswith("gat+bm3d")
                                  and not r["method"].startswith("raw"))
        took = lines(os.path.join(at, f"time-{run}.json"))
        seconds = f"{took[0]['user'] + took[0]['system']:.0f} s" if took else ""
        print(f"| {run} |" + "".join(f" {score(size):.2f} dB |" for size in (32, 64, 96, 128)) + f" {seconds} |")


def switches(at):
    print("\n| run | to | loss before | after | at the end of the stage |\n|---|---|---|---|---|")
    for run in ["progressive", "growing"]:
        records = lines(os.path.join(at, run, "records.jsonl"))
        stages = [r for r in records if r["kind"] == "stage"]
        losses = [(r["iteration"], r["loss"]) for r in records if r["kind"] == "train"]
        ends = [r["iteration"] for r in stages[1:]] + [losses[-1][0]] if losses else []
        within = lambda low, high: mean(loss for i, loss in losses if low < i <= high)
        for stage, end in zip(stages, ends):
            i = stage["iteration"]
            print(f"| {run} | {stage['size']:.0f} px | {within(i - 50, i):.3f} | {within(i, i + 50):.3f} | {within(end - 50, end):.3f} |")


def cascades(at):
    print("\n| stages | PSNR of a sample | SSIM | processor time of 4 images |\n|---|---|---|---|")
    for stages in (1, 2, 3):
        rows = [r for r in lines(os.path.join(at, f"cascade-{stages}.jsonl")) if "image" in r and "psnr" in r]
        took = lines(os.path.join(at, f"time-cascade-{stages}.json"))
        if rows:
            seconds = f"{took[0]['user'] + took[0]['system']:.1f} s" if took else ""
            print(f"| {stages} | {mean(r['psnr'] for r in rows):.2f} dB | {mean(r['ssim'] for r in rows):.3f} | {seconds} |")


def domains(at):
    print("\n| domain | raw | BM3D | not told | told |\n|---|---|---|---|---|")
    for domain in ("nuclei", "filaments"):
        cells = []
        for name, method in [("told", "raw"), ("told", "gat+bm3d"), ("untold", None), ("told", None)]:
            path = os.path.join(at, f"scores-{name}-{domain}", "records.csv")
            rows = list(csv.DictReader(open(path))) if os.path.exists(path) else []
            cells.append(mean(float(r["psnr"]) for r in rows if (r["method"] == method if method else r["method"].endswith("clearshot"))))
        print(f"| {domain} |" + "".join(f" {c:.2f} dB |" for c in cells))


if __name__ == "__main__":
    by_size(sys.argv[1])
    switches(sys.argv[1])
    cascades(sys.argv[1])
    domains(sys.argv[1])
