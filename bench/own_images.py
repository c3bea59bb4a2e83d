"""What training on one's own images comes to, on real images; `own_images.sh` says how to run it.

- adapt: every set-up of FMD, every channel of W2S dev and every image of GigaDB is adapted to by itself; the truth says what it gained (PSNR,
  restored by the model alone) at the state that `adapt` chose and at the last one, beside what `adapt` estimated without it. Variants are lists of `--set`; one that begins with `truth` is
  trained on the clean images themselves: what there is to gain.
- trials: the same for set-ups that differ most and for several ways of adapting at once, in three minutes on one H200.
- supervised: 60 pairs of W2S, scored on W2S dev, beside `pairs_torch.py` in the same seconds.
- n2v: the noisy images of W2S train alone, scored on W2S dev, beside CAREamics' N2V in the same seconds.
- loader: images a second of the data alone, from memory, TIFF, zstd OME-Zarr and S3.
- pace: iterations a second of `train` beside the same iteration without data (`bench --train`).

Scores are those of `clearshot compare`. Pairs of W2S and GigaDB were stretched separately: gain and offset of a result are fitted to the clean image before PSNR.
"""
import argparse
import concurrent.futures
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
P = argparse.ArgumentParser()
P.add_argument("--data", type=pathlib.Path, required=True)
P.add_argument("--out", type=pathlib.Path, required=True)
P.add_argument("--parts", default="adapt,supervised,n2v,loader,pace")
P.add_argument("--clearshot", default="target/release/clearshot")
P.add_argument("--device", default="auto")
P.add_argument("--careamics", default="")
P.add_argument("--adapt-seconds", type=int, default=60)
P.add_argument("--pairs-seconds", type=int, default=80)
P.add_argument("--n2v-seconds", default="20,60,180")
P.add_argument("--variants", default="")
P.add_argument("--s3", default="")
P.add_argument("--only", default="", help="set-ups of `adapt` whose names contain one of these, separated by commas")
P.add_argument("--jobs", type=int, default=1, help="trials of `adapt` at once; each gets its share of the device")
P.add_argument("--model", default="", help="the model to begin from")


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


def pairs_of(files, folder):
    """A folder with noisy and clean of these files."""
    for part in ("noisy", "clean"):
        (folder / part).mkdir(parents=True, exist_ok=True)
        for f in files:
            shutil.copy(str(f).replace("/noisy/", f"/{part}/"), folder / part)
    return folder


def scores(files, *models):
    """PSNR of each file by each model, `default` for the one that comes with the program. Pairs of FMD have one scale."""
    folder = pairs_of(files, pathlib.Path(tempfile.mkdtemp(dir=A.out)))
    fit = [] if "fmd" in files[0].parts else ["--fit"]
    done = subprocess.run([A.clearshot, "compare", *map(str, models), "--truth", folder / "clean", "--noisy", folder / "noisy", "--group", "(.*)",
                           "--json", "--quiet", "--device", A.device, *fit], capture_output=True, text=True)
    shutil.rmtree(folder)
    if done.returncode != 0:
        raise SystemExit(f"compare of {files[0]}: {done.stderr}")
    cells = {(c["method"], c["scene"]): c["psnr"][0] for c in json.loads(done.stdout)["cells"]}
    return [np.array([cells[str(m), f.stem] for f in files]) for m in models]


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


def trial(number, variant, which, name, files):
    """One set-up adapted to: what was said, and what the truth says of the state that was chosen and of the last one."""
    folder = A.out / "trials" / f"{name.replace(' ', '-')}.{number}"
    shutil.rmtree(folder, ignore_errors=True)
    pairs_of(files, folder)
    begin, words, out = A.model or HERE.parent / "models" / "default.clearshot", variant.split(), folder / "run" / "run"
    if words[:1] == ["truth"]:
        said = run("train", "experiment=adapt", "task=supervised", "data=pairs", f"data.inputs={folder / 'noisy'}", f"data.targets={folder / 'clean'}",
                   f"model.init={begin}", f"trainer.device={A.device}", f"trainer.seconds={A.adapt_seconds}", *words[1:], "--out", out, "--json")[-1]
        said = dict(gain_db=None, kept=False, seconds=said["seconds"], iterations=said["iteration"])
    else:
        changes = [x for change in words for x in ("--set", change)]
        said = run("adapt", folder / "noisy", "-o", folder / "chosen.clearshot", "--model", begin, "--seconds", A.adapt_seconds, "--device", A.device,
                   "--run", folder / "run", "--keep", "--json", *changes)[-1]
    course = [json.loads(line)["psnr"] for line in open(out / "records.jsonl") if '"psnr"' in line]
    chosen, last = folder / "chosen.clearshot", max((out / "checkpoints").glob("*/model"))
    before, at_last, *best = scores(files, begin, last, *([chosen] if chosen.exists() else []))
    gain = best[0] - before if best else 0 * before
    made = dict(said, before=before.tolist(), gain=gain.tolist(), last=(at_last - before).tolist(), course=[p - course[0] for p in course[1:]])
    record(part="adapt", variant=variant, set=which, name=name, **made)
    print(f"{variant or 'as it is'}: {name} {np.round(made['last'], 3)} at the last state, estimated {made['course'][-1]:+.3f}", file=sys.stderr, flush=True)
    shutil.rmtree(folder)
    return made


def adapt():
    variants = A.variants.split(";")
    chosen = [g for g in groups() if any(word in f"{g[0]} {g[1]}" for word in A.only.split(","))]
    with concurrent.futures.ThreadPoolExecutor(A.jobs) as pool:
        trials = {(v, g[1]): pool.submit(trial, number, v, *g) for number, v in enumerate(variants) for g in chosen}
    for v in variants:
        rows, gains = [], []
        for which, name, _ in chosen:
            try:
                made = trials[v, name].result()
            except SystemExit as error:
                print(error, file=sys.stderr)
                continue
            signed = lambda values: " ".join(f"{g:+.2f}" for g in values)
            estimated = "-" if made["gain_db"] is None else f"{made['gain_db']:+.2f} ± {made['gain_error_db']:.2f} (doubt {made['gain_doubt_db']:.2f})"
            rows.append([name, float(np.mean(made["before"])), signed(made["gain"]), signed(made["last"]), estimated, signed(made["course"]),
                         made["iterations"], "kept" if made["kept"] else "refused"])
            gains.append((which, np.array(made["last"]), np.array(made["gain"]) * made["kept"]))
        print(f"\nadapt {v or 'as it is'}, {A.adapt_seconds} s a set-up on {A.device}, {A.jobs} at once")
        table(["set-up", "zero-shot dB", "true gain of each image", "at the last state", "estimated gain", "its course", "iterations", "decision"], rows)
        for which in dict.fromkeys(g[0] for g in gains):
            of = [g for g in gains if g[0] == which]
            every, kept = (np.concatenate([g[k] for g in of]) for k in (1, 2))
            print(f"{which}: {every.mean():+.3f} dB at the last state, {kept.mean():+.3f} dB as decided, worst image {kept.min():+.3f} dB", flush=True)


TRIALS = ["", "optimizer.rate=1e-4", "trainer.batch=96 optimizer.rate=1e-4", "optimizer.kind=sgd optimizer.rate=0.03", "trainer.batch=96 task.kind=splitting optimizer.rate=3e-5",
          "truth optimizer.rate=1e-4"]
DIFFERENT = "w2s channel 0,Confocal_BPAE_G,Confocal_FISH,TwoPhoton_MICE,WideField_BPAE_G,actin-60x,mito-60x"


def trials():
    A.variants = A.variants or ";".join(TRIALS)
    A.only, A.jobs, A.adapt_seconds = A.only or DIFFERENT, max(A.jobs, 6), min(A.adapt_seconds, 18)
    adapt()


def supervised():
    pairs = A.data / "w2s" / "train"
    files = sorted((A.data / "w2s" / "dev" / "noisy").glob("*.tif"))
    out = A.out / "supervised"
    shutil.rmtree(out, ignore_errors=True)
    said = run("train", "experiment=supervised", "data=pairs", f"data.inputs={pairs / 'noisy'}", f"data.targets={pairs / 'clean'}",
               "model.network.channels=[48,96,192]", "trainer.batch=16", f"trainer.device={A.device}", f"trainer.seconds={A.pairs_seconds}",
               "--out", out, "--json")[-1]
    [ours] = scores(files, out / "best.clearshot")
    ours = ours.mean()
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


def n2v():
    noisy, files = A.data / "w2s" / "train" / "noisy", sorted((A.data / "w2s" / "dev" / "noisy").glob("*.tif"))
    rows = []
    for seconds in map(int, A.n2v_seconds.split(",")):
        out = A.out / f"n2v{seconds}"
        shutil.rmtree(out, ignore_errors=True)
        run("train", "experiment=noise2void", f"data.inputs={noisy}", f"trainer.device={A.device}", f"trainer.seconds={seconds}", "--out", out, "--json")
        rows.append(["clearshot", seconds, float(scores(files, out / "best.clearshot")[0].mean())])
        if A.careamics:
            made = subprocess.run([A.careamics, HERE / "n2v_careamics.py", "--data", A.data / "w2s", "--seconds", str(seconds)], capture_output=True, text=True)
            if made.returncode != 0:
                print(f"CAREamics is left out: {made.stderr.splitlines()[-1:]}", file=sys.stderr)
            else:
                rows.append(["CAREamics", seconds, json.loads(made.stdout.splitlines()[-1])["psnr"]])
    for row in rows:
        record(part="n2v", who=row[0], seconds=row[1], psnr=row[2])
    print("\nNoise2Void on the noisy images of W2S train, scored on W2S dev")
    table(["who", "seconds", "PSNR dB"], rows)


def loader():
    noisy, zarr = A.data / "w2s" / "train" / "noisy", A.out / "zarr"
    if not zarr.exists():
        run("convert", noisy, zarr, "--to", "ome.zarr", "--json")
    sources = [("memory", noisy, "4GiB"), ("TIFF", noisy, "1KiB"), ("zstd OME-Zarr", zarr, "1KiB")]
    if A.s3:
        for f in sorted(zarr.glob("*.zarr"))[:1]:
            run("convert", f, f"{A.s3.rstrip('/')}/{f.name}", "--force", "--json")
            sources.append(("S3", f"{A.s3.rstrip('/')}/{f.name}", "1KiB"))
    rows = []
    for name, inputs, memory in sources:
        # The numbers as they are: estimating cameras is no part of loading.
        made = run("train", "experiment=noise2void", f"data.inputs={inputs}", f"data.memory={memory}", "trainer.crop=128", "trainer.batch=32",
                   "--time-data", "5", "--json")
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
    {"adapt": adapt, "trials": trials, "supervised": supervised, "n2v": n2v, "loader": loader, "pace": pace}[part]()
