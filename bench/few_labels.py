"""Segmentation by few labels: does an encoder that was trained without labels (experiment=mae) beat training from scratch?

    python bench/few_labels.py CLEARSHOT FOLDER [--device cuda] [--jobs 8] [...]

Images are mosaics whose regions show four kinds of structure at the same mean brightness, or nothing (`clearshot synth --scene fibres,mitochondria,reticulum,vesicles`). A
network has to tell for each pixel which it is, by 1, 2, 4, 8 or 16 labelled images of 128 x 128 pixels. The encoder is trained on other mosaics without labels.

All ways have the same iterations, crops and batch. Learning rate and image skip of each way are chosen beforehand, by the mean Dice of runs with four labels whose
images, seeds and scoring images appear nowhere else. The table then has all seeds and numbers of labels, without a choice: Dice is the mean over classes that appear and
over images, of the network at the end of its training. Intervals are 95 % of Student's t over seeds; each seed has its own labelled images, the same for all ways.

Steps that are done are not repeated; the results are FOLDER/results.jsonl. Needs nothing but Python.
"""
import argparse
import csv
import json
import math
import shlex
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

KINDS = "fibres,mitochondria,reticulum,vesicles"
LABELS = [1, 2, 4, 8, 16]
CHOSEN_BY = 4
CHOICE_SEEDS = [901, 902]
# Seeds of images: no two series share one.
UNLABELLED, TEST, CHOICE_TEST = 1000, 7000, 8000
# Student's t for 95 %, by degrees of freedom.
T95 = [math.nan, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228]

# Pretrained encoders, by folder.
ENCODERS = {"mae": "model.network.normalise_patches=false", "mae_normalised": "model.network.normalise_patches=true"}
VIT = "model=vit_segmentation"
SKIPS = [f"model.network.image_skip={s}" for s in ("false", "true")]


def of_encoder(rates, more):
    return [f"{VIT} model.encoder={e}/best.clearshot {more} optimizer.rate={r} {s}" for e in ENCODERS for r in rates for s in SKIPS]


# Settings to choose from, by way; without the step `choose` it is the first.
WAYS = {
    "U-Net from scratch": [f"optimizer.rate={r}" for r in ("1e-3", "3e-3")],
    "from scratch": [f"{VIT} optimizer.rate={r} {s}" for r in ("1e-3", "3e-4") for s in SKIPS],
    "encoder tuned": of_encoder(("1e-3", "3e-4"), "optimizer.layer_decay=0.75"),
    "encoder frozen": of_encoder(("1e-3", "3e-3"), "model.only=[decoder]"),
}
BASELINE = "from scratch"


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("clearshot")
    p.add_argument("folder", type=Path)
    p.add_argument("--device", default="cpu")
    p.add_argument("--jobs", type=int, default=2, help="runs at once")
    p.add_argument("--seeds", type=int, default=5)
    p.add_argument("--labels", default=",".join(map(str, LABELS)))
    p.add_argument("--iterations", type=int, default=500)
    p.add_argument("--unlabelled", type=int, default=1024, help="images without labels")
    p.add_argument("--pretraining", default="trainer.iterations=12000 trainer.batch=128", help="settings of the pretraining")
    p.add_argument("--encoders", default=",".join(ENCODERS), help="encoders that are pretrained")
    p.add_argument("--tests", type=int, default=48, help="images that score")
    p.add_argument("--ways", default=",".join(WAYS), help="which of the ways are run; the table has all that there is")
    p.add_argument("--crops", type=int, default=256, help="crops of 64 x 64 pixels of these that are scored")
    p.add_argument("--steps", default="data,pretrain,choose,table")
    p.add_argument("--seconds", type=float, default=1e9, help="start no run after so many seconds")
    bench = Bench(p.parse_args())
    for step in bench.a.steps.split(","):
        getattr(bench, step)()


class Bench:
    def __init__(self, a):
        self.a, self.begin = a, time.time()
        self.ways = {way: WAYS[way] for way in a.ways.split(",")}
        self.folder = a.folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.results = self.folder / "results.jsonl"
        rows = [json.loads(line) for line in self.results.open()] if self.results.exists() else []
        self.done = {(r["way"], r["settings"], r["seed"], r["labels"]): r["dice"] for r in rows}

    def run(self, *words):
        got = subprocess.run([self.a.clearshot, *words], cwd=self.folder, capture_output=True, text=True)
        if got.returncode != 0:
            sys.exit(f"{shlex.join(words)}\n{got.stdout[-500:]}{got.stderr[-1500:]}")
        return got.stdout

    def each(self, do, items):
        with ThreadPoolExecutor(self.a.jobs) as pool:
            list(pool.map(do, items))

    def say(self, text):
        print(f"[{time.time() - self.begin:6.1f} s] {text}", flush=True)

    def data(self):
        """Images, each series by its own seed."""
        parts = 16
        series = [(f"unlabelled/{i:02}", UNLABELLED + i, self.a.unlabelled // parts) for i in range(parts)]
        series += [(f"labelled/{s}", s, max(LABELS)) for s in [*range(1, self.a.seeds + 1), *CHOICE_SEEDS]]
        series += [("test", TEST, self.a.tests), ("choice_test", CHOICE_TEST, self.a.tests)]

        def make(one):
            out, seed, count = one
            if not (self.folder / out).exists():
                self.run("synth", "--scene", KINDS, "--size", "128x128", "--peak", "100", "--bits", "16", "--labels", "--count", str(count), "--seed", str(seed), "--out", out)

        self.each(make, series)
        self.say(f"{self.a.unlabelled} images without labels, {max(LABELS)} with for each seed")

    def pretrain(self):
        def train(one):
            name, own = one
            if (self.folder / name / "best.clearshot").exists():
                return
            settings = ["experiment=mae", "data=noisy", "data.inputs=unlabelled/*/noisy/*.tif", "data.validation=0.05", "validation.every=0", f"trainer.device={self.a.device}", own]
            said = self.run("train", *settings, *self.a.pretraining.split(), "--out", name, "--json")
            end = json.loads(said.splitlines()[-1])
            self.say(f"{name}: " + ", ".join(f"{k} {end[k]}" for k in ("iteration", "images", "seconds", "iterations_per_second", "waiting", "masked_psnr") if k in end))

        self.each(train, [(name, ENCODERS[name]) for name in self.a.encoders.split(",")])

    def manifest(self, seed, labels, test):
        path = self.folder / f"{seed}_{labels}.csv"
        with path.open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["input", "target", "scene", "domain", "split"])
            few = sorted((self.folder / f"labelled/{seed}/noisy").glob("*.tif"))[:labels]
            for split, inputs in [("train", few), ("validation", sorted((self.folder / test / "noisy").glob("*.tif")))]:
                for file in inputs:
                    rows.writerow([file, file.parent.parent / "labels" / file.name, f"{file.parent.parent.name}-{file.stem}", "mosaic", split])
        return path

    def score(self, job):
        way, settings, seed, labels, test = job
        key = (way, settings, seed, labels)
        if key in self.done or time.time() - self.begin > self.a.seconds:
            return
        words = settings.split()
        fixed = f"""experiment=segmentation data=pairs data.manifest={self.manifest(seed, labels, test)} task.classes=5 seed={seed} ~trainer.seconds trainer.iterations={self.a.iterations}
            validation.every=0 validation.images={self.a.crops} validation.crop=64 checkpoint.every=0 checkpoint.top=1 records.tensorboard=false records.pictures=0
            performance.threads=1 performance.workers=1 performance.precision=fp32 trainer.device={self.a.device}""".split()
        out = f"runs/{abs(hash(key))}"
        said = self.run("train", *fixed[:1], *words, *fixed[1:], "--out", out, "--json")
        subprocess.run(["rm", "-r", str(self.folder / out)])
        dice = json.loads(said.splitlines()[-1])["dice"]
        self.done[key] = dice
        with self.results.open("a") as file:
            file.write(json.dumps(dict(way=way, settings=settings, seed=seed, labels=labels, dice=dice)) + "\n")

    def choose(self):
        jobs = [(way, s, seed, CHOSEN_BY, "choice_test") for way, all in self.ways.items() for s in all for seed in CHOICE_SEEDS]
        self.each(self.score, jobs)
        for way, all in self.ways.items():
            scores = {s: [self.done.get((way, s, seed, CHOSEN_BY), math.nan) for seed in CHOICE_SEEDS] for s in all}
            for s, of in scores.items():
                print(f"  {way}: {s}: Dice {statistics.mean(of):.4f}")
        self.say("chosen")

    def chosen(self, way):
        mean = lambda s: statistics.mean(self.done.get((way, s, seed, CHOSEN_BY), 0.0) for seed in CHOICE_SEEDS)
        return max(WAYS[way], key=mean)

    def table(self):
        counts = [int(n) for n in self.a.labels.split(",")]
        chosen = {way: self.chosen(way) for way in WAYS}
        seeds = range(1, self.a.seeds + 1)
        # Seed by seed, so that what time cuts off are whole seeds.
        self.each(self.score, [(way, chosen[way], seed, n, "test") for seed in seeds for n in counts for way in self.ways])
        for way, s in chosen.items():
            print(f"  {way}: {s}")
        print("| labelled images | " + " | ".join([*WAYS, "tuned less from scratch"]) + " |")
        print("|" + "---|" * (len(WAYS) + 2))
        for n in counts:
            of = {way: {seed: self.done[way, chosen[way], seed, n] for seed in seeds if (way, chosen[way], seed, n) in self.done} for way in WAYS}
            both = of["encoder tuned"].keys() & of[BASELINE].keys()
            cells = [interval(list(scores.values())) for scores in of.values()]
            cells.append(interval([of["encoder tuned"][s] - of[BASELINE][s] for s in sorted(both)]))
            print(f"| {n} | " + " | ".join(cells) + " |")
        self.say(f"{min(len(s) for s in of.values())} seeds")


def interval(values):
    """The mean, and its 95 % interval by Student's t."""
    if len(values) < 2:
        return f"{values[0]:.3f}" if values else ""
    half = T95[len(values) - 1] * statistics.stdev(values) / math.sqrt(len(values))
    return f"{statistics.mean(values):.3f} ± {half:.3f}"


main()
