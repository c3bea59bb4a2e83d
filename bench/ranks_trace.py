"""A timeline of two ranks that train, with their exchanges beside the backward and behind it.

    python bench/ranks_trace.py PROGRAM FOLDER

PROGRAM is a release build of clearshot. Writes FOLDER/overlap.json and FOLDER/behind.json, which ui.perfetto.dev and chrome://tracing open: each rank
is a process with rows for its phases, its nodes and what it exchanges. Prints, for each, how much of the exchange lies beside the backward.
"""

import json
import pathlib
import subprocess
import sys

PROGRAM, FOLDER = sys.argv[1], pathlib.Path(sys.argv[2])
KEYS = ["experiment=supervised", "trainer.device=cpu", "trainer.crop=64", "trainer.batch=8", "trainer.iterations=24", "performance.threads=1", "validation.every=0", "validation.images=4", "validation.crop=0"]
KEYS += ["calibration.images=0", "checkpoint.every=0", "debug=profile_gpu", "distributed.bucket=256kiB"]


def trace(name, overlap):
    out = FOLDER / name
    command = [PROGRAM, "train", *KEYS, f"distributed.overlap={overlap}", "--devices", "2", "--out", str(out)]
    subprocess.run(command, check=True, capture_output=True)
    ranks = [json.loads((out / "profile" / of / "trace.json").read_text()) for of in [".", "rank-1"]]
    first = min(r["otherData"]["began_unix_seconds"] for r in ranks)
    events, exchanged, beside = [], 0, 0
    for rank, of in enumerate(ranks):
        shift = 1e6 * (of["otherData"]["began_unix_seconds"] - first)
        for e in of["traceEvents"]:
            e["pid"] = rank
            if "ts" in e:
                e["ts"] += shift
            if e["name"] == "process_name":
                e["args"]["name"] = f"rank {rank}"
            events.append(e)
        spans = lambda wanted: [(e["ts"], e["ts"] + e["dur"]) for e in of["traceEvents"] if e["ph"] == "X" and wanted(e)]
        backward = spans(lambda e: e["cat"] == "backward" and not e["name"].startswith("all_reduce"))
        for start, end in spans(lambda e: e["name"] == "exchanging between ranks"):
            exchanged += end - start
            beside += sum(max(0, min(end, b) - max(start, a)) for a, b in backward)
    (FOLDER / f"{name}.json").write_text(json.dumps({"displayTimeUnit": "ms", "traceEvents": events}))
    waited = [json.loads(line) for line in (out / "records.jsonl").read_text().splitlines()]
    waited = [r["ranks_waiting"] for r in waited if "ranks_waiting" in r]
    print(f"{name}: {exchanged / 1e3:.1f} ms of exchanges in the profiled iterations of both ranks, {100 * beside / max(exchanged, 1e-9):.0f} % of it beside nodes of the backward; waiting for gradients {100 * sum(waited) / len(waited):.1f} % of the time")


FOLDER.mkdir(parents=True, exist_ok=True)
trace("overlap", "true")
trace("behind", "false")
