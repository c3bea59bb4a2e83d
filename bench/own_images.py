"""What training on one's own images comes to, on real images; `own_images.sh` says how to run it; `n2v.sh` has Noise2Void beside CAREamics.

- adapt: every set-up of FMD, every channel of W2S dev and every image of GigaDB is adapted to by itself; the truth says what it gained (dB of squared error,
  restored by the model alone), beside what `adapt` estimated without it.
- supervised: 60 pairs of W2S, scored on W2S dev, beside `pairs_torch.py` in the same seconds.
- loader: images a second of the data alone, from memory, TIFF, zstd OME-Zarr and S3.
- pace: iterations a second of `train` beside the same iteration without data (`bench --train`).

Pairs of W2S and GigaDB were stretched separately: gain and offset of a result are fitted to the clean image before PSNR.
"""
import argparse
import json
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import tifffile

HERE = pathlib.Path(__file__).resolve().parent
P = argparse.ArgumentParser()
P.add_argument("--data", type=pathlib.Path, required=True)
P.add_argument("--out", type=pathlib.Path, required=True)
P.add_argument("--parts", default="adapt,supervised,loader,pace")
P.add_argument("--clearshot", default="target/release/clearshot")
P.add_argument("--device", default="auto")
P.add_argument("--adapt-seconds", type=int, default=60)
P.add_argument("--pairs-seconds", type=int, default=80)
P.add_argument("--variants", default="")
P.add_argument("--s3", default="")
P.add_argument("--source", default="auto", help="what `adapt` learns from: auto, repeats or noise")
P.add_argument("--keep", action="store_true", help="train and write a model whatever its gain; without it, as users have it")
P.add_argument("--only", default="", help="set-ups of `adapt` whose name contains one of these, separated by commas")
P.add_argument("--files", type=int, default=0, help="images of a set-up, at most; 0 for all")


def record(**values):
    with open(A.out / "results.jsonl", "a") as f:
        f.write(json.dumps(values) + "\n")


def run(*arguments):
    """The last JSON line of the program."""
    done = subprocess.run([A.clearshot, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, arguments))}: {done.stderr}")
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return [json.loads(line) for line in lines]


def psnr(noisy, made):
    clean = tifffile.imread(str(noisy).replace("/noisy/", "/clean/")).astype(float)
    made = np.asarray(made, float)
    if "fmd" not in noisy.parts:
        ones = np.stack([made.ravel(), np.ones(made.size)], 1)
        made = (ones @ np.linalg.lstsq(ones, clean.ravel(), rcond=None)[0]).reshape(clean.shape)
    span = 255.0 if clean.max() <= 255 else np.ptp(clean)
    return 10 * np.log10(span**2 / np.mean((made - clean) ** 2))


def scores(files, model=None, method="model"):
    out = A.out / "restored"
    shutil.rmtree(out, ignore_errors=True)
    more = ["--model", model] if model else []
    run("restore", *files, "-o", out, "--method", method, "--float", "--quiet", "--json", "--device", A.device, *more)
    return np.array([psnr(f, tifffile.imread(out / f.name)) for f in files])


def table(head, rows):
    print("\n| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(f"{x:.2f}" if isinstance(x, float) else str(x) for x in row) + " |", flush=True)


def groups():
    """Set-ups: (set, name, files)."""
    fmd = sorted((A.data / "fmd" / "noisy").glob("*.tif"))
    for name in sorted({f.stem.rsplit("_", 1)[0] for f in fmd}):
        yield "fmd", name, [f for f in fmd if f.stem.rsplit("_", 1)[0] == name]
    w2s = sorted((A.data / "w2s" / "dev" / "noisy").glob("*.tif"))
    for channel in sorted({f.stem.rsplit("_", 1)[1] for f in w2s}):
        yield "w2s", f"w2s channel {channel}", [f for f in w2s if f.stem.endswith("_" + channel)]
    for f in sorted((A.data / "gigadb" / "noisy").glob("*.tif")):
        yield "gigadb", f.stem, [f]


def adapt():
    for variant in A.variants.split(";"):
        changes = [x for change in variant.split() for x in ("--set", change)]
        rows, gains = [], []
        for which, name, files in groups():
            if not any(part in f"{which} {name}" for part in A.only.split(",")):
                continue
            files = files[: A.files or None]
            chosen = A.out / "chosen"
            shutil.rmtree(chosen, ignore_errors=True)
            chosen.mkdir()
            for f in files:
                shutil.copy(f, chosen)
            model = A.out / "adapted.clearshot"
            model.unlink(missing_ok=True)
            before = scores(files)
            said = run("adapt", chosen, "-o", model, "--seconds", A.adapt_seconds, "--device", A.device, "--from", A.source, *(["--keep"] if A.keep else []), "--json", *changes)[-1]
            after = scores(files, model) if model.exists() else before
            gain = after - before
            row = dict(part="adapt", variant=variant, set=which, name=name, before=before.tolist(), after=after.tolist(), **said)
            record(**row)
            estimated = "-" if said["gain_db"] is None else f"{said['gain_db']:+.2f} ± {said['gain_error_db']:.2f} (doubt {said['gain_doubt_db']:.2f})"
            rows.append([name, float(before.mean()), float(after.mean()), " ".join(f"{g:+.2f}" for g in gain), estimated, "kept" if said["kept"] else "refused"])
            gains.append((which, gain, gain if said["kept"] else 0 * gain))
            print(rows[-1], file=sys.stderr, flush=True)
        print(f"\nadapt {variant or 'as it is'}, {A.adapt_seconds} s a set-up on {A.device}")
        table(["set-up", "zero-shot dB", "adapted dB", "true gain of each image", "estimated gain", "decision"], rows)
        for which in dict.fromkeys(g[0] for g in gains):
            of = [g for g in gains if g[0] == which]
            every, kept = (np.concatenate([g[k] for g in of]) for k in (1, 2))
            print(f"{which}: {every.mean():+.3f} dB if all were kept, {kept.mean():+.3f} dB as decided, worst image {kept.min():+.3f} dB")


def supervised():
    pairs = A.data / "w2s" / "train"
    files = sorted((A.data / "w2s" / "dev" / "noisy").glob("*.tif"))
    out = A.out / "supervised"
    shutil.rmtree(out, ignore_errors=True)
    said = run("train", "experiment=supervised", "data=pairs", f"data.inputs={pairs / 'noisy'}", f"data.targets={pairs / 'clean'}",
               "model.network.channels=[48,96,192]", "trainer.batch=16", f"trainer.device={A.device}", f"trainer.seconds={A.pairs_seconds}",
               "--out", out, "--json")[-1]
    ours = scores(files, out / "best.clearshot").mean()
    rows = [["clearshot", A.pairs_seconds, float(ours), f"{said['iterations_per_second']:.1f} iterations/s, {100 * said['waiting']:.1f} % waiting"]]
    made = subprocess.run([sys.executable, HERE / "pairs_torch.py", "--data", A.data / "w2s", "--seconds", str(A.pairs_seconds)],
                          capture_output=True, text=True)
    if made.returncode == 0:
        torch = json.loads(made.stdout.splitlines()[-1])
        rows.append(["PyTorch", A.pairs_seconds, torch["psnr"], f"{torch['iterations_per_second']:.1f} iterations/s"])
    else:
        print(f"PyTorch is left out: {made.stderr.splitlines()[-1:]}", file=sys.stderr)
    for row in rows:
        record(part="supervised", who=row[0], seconds=row[1], psnr=row[2])
    print("\nsupervised on 60 pairs of W2S, scored on W2S dev")
    table(["who", "seconds", "PSNR dB", "pace"], rows)


def loader():
    noisy, zarr = A.data / "w2s" / "train" / "noisy", A.out / "zarr"
    if not zarr.exists():
        run("convert", noisy, zarr, "--to", "ome.zarr", "--json")
    sources = [("memory", noisy, "4GiB"), ("TIFF", noisy, "1KiB"), ("zstd OME-Zarr", zarr, "1KiB")]
    if A.s3:
        for f in sorted(zarr.glob("*.zarr")):
            run("convert", f, f"{A.s3.rstrip('/')}/{f.name}", "--force", "--json")
        sources.append(("S3", f"{A.s3.rstrip('/')}/*.zarr", "1KiB"))
    rows = []
    for name, inputs, memory in sources:
        # The numbers as they are: estimating cameras is no part of loading.
        made = run("train", "experiment=noise2void", f"data.inputs={inputs}", f"data.memory={memory}", "trainer.crop=128", "trainer.batch=32",
                   "--time-data", "3", "--json")
        record(part="loader", source=name, pace=made)
        rows.append([name] + [f"{m['images_per_second']:.0f}" for m in made])
    print("\nimages of 128 x 128 pixels a second")
    table(["from"] + [f"{m['threads']} threads" for m in made], rows)


def pace():
    """The default network in batches of 32: bench has neither data nor validation."""
    noisy, out = A.data / "w2s" / "train" / "noisy", A.out / "pace"
    shutil.rmtree(out, ignore_errors=True)
    said = run("train", "experiment=adapt", f"data.inputs={noisy}", f"model.init={HERE.parent / 'models' / 'default.clearshot'}", f"trainer.device={A.device}",
               "trainer.seconds=60", "trainer.batch=32", "validation.images=8", "--out", out, "--json")[-1]
    config = next((out / "checkpoints").glob("*/model/config.json"))
    bench = run("bench", "--config", config, "--batch", "32", "--size", "128", "--train", "--device", A.device, "--json")[-1]
    rows = [["train", said["iterations_per_second"], f"{100 * said['waiting']:.1f} % waiting"], ["bench --train", 1e3 / bench["median_ms"], ""]]
    record(part="pace", train=said, bench=bench)
    print("\niterations a second of the default network, 32 crops of 128 x 128 pixels")
    table(["what", "iterations/s", ""], rows)


A = P.parse_args()
A.out.mkdir(parents=True, exist_ok=True)
for part in A.parts.split(","):
    {"adapt": adapt, "supervised": supervised, "loader": loader, "pace": pace}[part]()
