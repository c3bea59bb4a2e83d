"""Memory of a Python process that calls `clearshot.restore` again and again on a small image, with the model.

    python bench/python_calls.py [--calls 10000] [--side 64] [--method auto]

Needs the package (`pip install ./python`). Prints the process's memory after the first calls and then every `--every` calls, and one line of JSON at the
end, or when Ctrl-C ends it.
"""

import argparse
import json
import resource
import time

import clearshot
import numpy as np

WARM = 20


def resident():
    """MiB of this process at present."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--method", default="auto")
    parser.add_argument("--every", type=int, default=500)
    given = parser.parse_args()
    image = np.random.default_rng(0).poisson(60, (given.side, given.side)).astype("uint16")
    call = lambda: clearshot.restore(image, camera={"gain": 0.5, "offset": 0, "read_noise": 1.5}, method=given.method)
    for _ in range(WARM):
        call()
    first, began, most, done = resident(), time.monotonic(), 0.0, 0
    print(f"after {WARM} calls: {first:.1f} MiB", flush=True)
    try:
        for done in range(1, given.calls + 1):
            call()
            if done % given.every == 0 or done == given.calls:
                most = max(most, resident() - first)
                print(f"{done} calls more: {resident() - first:+.2f} MiB", flush=True)
    except KeyboardInterrupt:
        pass
    seconds = time.monotonic() - began
    report = {"method": given.method, "side": given.side, "calls": done, "first_mib": round(first, 1), "most_more_mib": round(most, 2)}
    print(json.dumps({**report, "end_more_mib": round(resident() - first, 2), "seconds": round(seconds, 1)}))


main()
