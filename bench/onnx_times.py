"""Networks of others in Clearshot, ONNX Runtime and OpenVINO, side by side: outputs and times.

    cargo build --release
    python bench/onnx_zoo.py FOLDER
    python bench/onnx_times.py target/release/clearshot FOLDER [NAME ...] [--processor-time] [--outputs]

The programs run in turns on the same random input, with as many threads as the machine has and in fp32. The table goes to standard output as
Markdown. Needs numpy, onnxruntime and safetensors; OpenVINO is left out where it is not installed.

With --outputs nothing is timed: each network's largest difference from ONNX Runtime, or why it does not run; the exit status says whether all agree.

With --processor-time each has one thread and what counts is the processor's time, which other work on a machine changes far less than the clock's.
"""

import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnxruntime
from safetensors.numpy import load_file, save_file

try:
    import openvino
except ImportError:
    openvino = None

# The least median of some rounds in turns: other work on the machine only ever adds.
ROUNDS, RUNS = 2, 5
# Of the largest value.
TOLERANCE = 1e-4


# Threads of each program, and the clock: processor time is that of one thread.
THREADS, CLOCK = os.cpu_count(), time.perf_counter
# Seconds that are measured at once where the processor's time counts, whose clock is coarse.
SPAN = 4.0


class Runtime:
    """A library that runs here; `answer` gives the output."""

    def time(self):
        """Median milliseconds of some runs after two that do not count."""
        times = []
        for _ in range(RUNS + 2):
            start = CLOCK()
            self.answer()
            times.append(CLOCK() - start)
        return 1e3 * float(np.median(times[2:]))


class OnnxRuntime(Runtime):
    def __init__(self, path, x):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = THREADS
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.x = x

    def answer(self):
        return self.session.run(["y"], {"x": self.x})[0]


class OpenVino(Runtime):
    def __init__(self, path, x):
        options = {"INFERENCE_NUM_THREADS": THREADS, "INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
        self.request = openvino.Core().compile_model(path, "CPU", options).create_infer_request()
        self.x = x

    def answer(self):
        return self.request.infer({"x": self.x})[0]


class Clearshot:
    def __init__(self, program, path, x, folder):
        self.program, self.path, self.x, self.folder = program, path, x, folder

    def answer(self):
        given, made = self.folder / "in.safetensors", self.folder / "out.safetensors"
        save_file({"x": self.x}, given)
        subprocess.run([self.program, "predict", self.path, given, "-o", made, "--replace"], check=True, capture_output=True, text=True)
        return load_file(made)["y"]

    def bench(self, runs):
        """What the program measures, and its processor time in seconds."""
        command = [self.program, "bench", "--onnx", self.path, "--json", "--runs", str(runs), "--threads", str(THREADS)]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        line = subprocess.run(command, check=True, capture_output=True, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return json.loads(line.stdout)["median_ms"], after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def time(self):
        median, short = self.bench(RUNS)
        if CLOCK is time.perf_counter:
            return median
        # Reading the file and making the plan are in both, and differ by milliseconds from time to time.
        more = RUNS
        while (spent := self.bench(RUNS + more)[1] - short) < SPAN:
            more *= 4
        return 1e3 * spent / more


def measured(program, path, shape, folder):
    """Milliseconds of ONNX Runtime, OpenVINO (or nothing) and Clearshot, and the largest difference over the largest value."""
    x = np.random.default_rng(0).standard_normal(shape).astype("f")
    theirs, ours = OnnxRuntime(path, x), Clearshot(program, path, x, folder)
    want, got = theirs.answer(), ours.answer()
    engines = [theirs, OpenVino(path, x) if openvino else None, ours]
    rounds = [[e.time() if e else math.nan for e in engines] for _ in range(ROUNDS)]
    return (*np.min(rounds, 0), float(np.abs(got - want).max() / np.abs(want).max()))


def compare(program, models, wanted):
    """Prints the largest difference of each network over its sizes; whether all are small."""
    fine = True
    for about in sorted(models.glob("*.json")):
        about = json.loads(about.read_text())
        if wanted and not any(w in about["name"] for w in wanted):
            continue
        worst, why = 0.0, ""
        with tempfile.TemporaryDirectory() as folder:
            for file in about["files"]:
                path, x = models / file["file"], np.random.default_rng(0).standard_normal(file["shape"]).astype("f")
                want = OnnxRuntime(path, x).answer()
                try:
                    got = Clearshot(program, path, x, Path(folder)).answer()
                    worst = max(worst, float(np.abs(got - want).max() / np.abs(want).max()) if got.shape == want.shape else math.inf)
                except subprocess.CalledProcessError as e:
                    worst, why = math.inf, e.stderr.strip().splitlines()[-1] if e.stderr else str(e)
        fine = fine and worst < TOLERANCE
        print(f"| {about['name']} | {len(about['files'])} | {worst:.1e}{'' if worst < TOLERANCE else ' **too large** ' + why} |", flush=True)
    return fine


def main(program, models, wanted):
    version = openvino.__version__.split("-")[0] if openvino else "none"
    print(f"| network | library | sizes | ONNX Runtime {onnxruntime.__version__}, ms | OpenVINO {version}, ms | Clearshot, ms | ONNX Runtime over Clearshot | OpenVINO over Clearshot | largest difference |")
    print("|---|---|---|---|---|---|---|---|---|")
    ratios = []
    for about in sorted(models.glob("*.json")):
        about = json.loads(about.read_text())
        if wanted and not any(w in about["name"] for w in wanted):
            continue
        rows = []
        with tempfile.TemporaryDirectory() as folder:
            for file in about["files"]:
                rows.append(measured(program, models / file["file"], file["shape"], Path(folder)))
        ratios += [(row[0] / row[2], row[1] / row[2]) for row in rows]
        cells = [", ".join(" x ".join(map(str, file["shape"][2:])) for file in about["files"])]
        cells += [", ".join(f"{row[i]:.1f}" for row in rows) for i in range(3)]
        cells += [", ".join(f"{row[i] / row[2]:.2f}" for row in rows) for i in range(2)]
        worst = max(row[3] for row in rows)
        cells.append(f"{worst:.1e}" + ("" if worst < TOLERANCE else " **too large**"))
        print(f"| {about['name']} | {about['library']} | " + " | ".join(cells) + " |", flush=True)
    for i, name in enumerate(["ONNX Runtime", "OpenVINO"][: 2 if openvino else 1]):
        all_ = [r[i] for r in ratios]
        mean = math.exp(sum(map(math.log, all_)) / len(all_))
        print(f"\n{len(all_)} sizes: {mean:.2f} times as fast as {name} in the geometric mean, {min(all_):.2f} at the least, {max(all_):.2f} at the most.")


if __name__ == "__main__":
    given = [a for a in sys.argv[1:] if not a.startswith("--")]
    if "--processor-time" in sys.argv:
        THREADS, CLOCK = 1, time.process_time
    if "--outputs" in sys.argv:
        sys.exit(not compare(given[0], Path(given[1]), given[2:]))
    main(given[0], Path(given[1]), given[2:])
