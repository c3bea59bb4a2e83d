"""Training in several processes beside one: what docs/scaling.md has its tables from.

    python bench/ranks.py PROGRAM FOLDER [times] [losses] [powersgd]

PROGRAM is a release build of clearshot, FOLDER is for the runs. `times` measures MPI too where there is MPICH's mpiexec in the path (`pip install mpich`).
"""

import json
import pathlib
import shutil
import statistics
import subprocess
import sys

PROGRAM, FOLDER = sys.argv[1], pathlib.Path(sys.argv[2])
PARTS = sys.argv[3:] or ["times", "losses", "powersgd"]
COMMON = ["trainer.device=cpu", "validation.every=0", "validation.images=4", "validation.crop=0", "calibration.images=0", "checkpoint.every=0"]


def run(name, ranks, *changes, by=None):
    """The summary of a run, and its losses. `by` starts its processes in place of the program."""
    out = FOLDER / name
    command = [PROGRAM, "train", *COMMON, *changes, "--json", "--out", str(out)]
    if by:
        command = [by, "-n", str(ranks), *command]
    else:
        command += ["--devices", str(ranks)] if ranks > 1 else []
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    records = [json.loads(line) for line in (out / "records.jsonl").read_text().splitlines()]
    records = [r for r in records if "loss" in r]
    # Without what comes before the first record and behind the last.
    first, last = records[0], records[-1]
    each = (last["seconds"] - first["seconds"]) / max(last["iteration"] - first["iteration"], 1)
    return json.loads(said.splitlines()[-1]) | {"each": each}, [r["loss"] for r in records]


def times():
    network = ["experiment=supervised", "trainer.crop=64", "trainer.iterations=25", "records.every=5"]
    print("| processes x threads, images each | ms an iteration | scaling efficiency by the program | MB sent by each |")
    print("|---|---|---|---|")
    rows = [(1, 2, 16, [], None), (2, 1, 8, [], None), (2, 1, 8, ["distributed.overlap=false"], None), (4, 1, 4, [], None)]
    if shutil.which("mpiexec"):
        rows += [(2, 1, 8, [], "mpiexec"), (4, 1, 4, [], "mpiexec")]
    found = [[] for _ in rows]
    # In turns: other work on the machine meets all alike.
    for turn in range(5):
        for row, (ranks, threads, batch, more, by) in enumerate(rows):
            name = f"times-{turn}-{row}"
            changes = [f"trainer.batch={batch}", f"performance.threads={threads}", *more]
            found[row].append(run(name, ranks, *network, *changes, by=by)[0])
    for (ranks, threads, batch, more, by), all in zip(rows, found):
        ms = [1e3 * s["each"] for s in all]
        over = [s["ranks"] for s in all if s["ranks"]]
        efficiency = f"{100 * statistics.median(o['efficiency'] for o in over):.0f} %" if over else "-"
        sent = f"{over[0]['bytes_per_iteration'] / 1e6:.2f}" if over else "-"
        said = " ".join([over[0]["backend"] if over else "", *more])
        print(f"| {ranks} x {threads}, {batch} {said} | {statistics.median(ms):.0f} ({min(ms):.0f} to {max(ms):.0f}) | {efficiency} | {sent} |")


def losses():
    tasks = {
        "conditional": ["experiment=default", "trainer.crop=16", "model.network.channels=[8,16]", "model.network.blocks=1"],
        "supervised": ["experiment=supervised", "trainer.crop=16", "model.network.channels=[8,16]", "model.network.blocks=1"],
    }
    for task, keys in tasks.items():
        for accumulate in [1, 2]:
            each = [*keys, "trainer.iterations=200", "records.every=1", f"trainer.accumulate={accumulate}", "data.pool=16", "data.sizes=[64]"]
            for ranks in [2, 3, 4]:
                name = f"losses-{task}-{accumulate}-{ranks}"
                _, alone = run(f"{name}-one", 1, *each, f"trainer.batch={4 * ranks}")
                _, many = run(name, ranks, *each, "trainer.batch=4")
                off = [abs(a - b) / abs(a) for a, b in zip(alone, many)]
                print(f"{task}, accumulate {accumulate}, {ranks} ranks: {len(off)} losses, largest relative difference {max(off):.1e}, first 20 {max(off[:20]):.1e}")


def powersgd():
    keys = ["experiment=volumes", "task=supervised", "data.pool=4", "data.sizes=[32]", "optimizer.rate=1e-3", "schedule.warm_up=20", "model=dynunet3d", "model.network.filters=[16,32,64]", "model.network.strides=[1,2,2]"]
    keys += ["model.network.kernel_size=[3,3,3]", "model.network.upsample_kernel_size=[2,2]", "model.network.res_block=true"]
    keys += ["model.network.in_channels=0", "trainer.seconds=null", "trainer.depth=8", "trainer.crop=16", "trainer.batch=2", "trainer.iterations=200", "records.every=20"]
    for compression in ["none", "bf16", "fp16", "powersgd"]:
        each = [f"distributed.compression={compression}", "distributed.rank=2", "distributed.start=10"]
        summary, found = run(f"powersgd-{compression}", 2, *keys, *each)
        over = summary["ranks"]
        print(f"{compression}: loss of the last 20 of 200 iterations {found[-1]:.5f}, {over['bytes_per_iteration'] / 1e6:.3f} MB an iteration, {over['compression']:.2f} values for each sent")


for part in PARTS:
    {"times": times, "losses": losses, "powersgd": powersgd}[part]()
