"""Memory does not grow with calls, and stays within the plan for images that are larger than it."""

import os
import resource
import subprocess
import sys

import numpy as np
import pytest

import clearshot


def resident():
    """Bytes of this process at present."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def growth(calls, image, **more):
    """Bytes that calls leave behind."""
    for _ in range(20):
        clearshot.restore(image, **more)
    before = resident()
    for _ in range(calls):
        clearshot.restore(image, **more)
    return resident() - before


@pytest.fixture
def small():
    return np.random.default_rng(0).poisson(60, (64, 64)).astype("uint16")


def test_calls_leave_nothing(small, camera):
    assert growth(60, small, camera=camera) < 4 << 20


@pytest.mark.long
@pytest.mark.parametrize("method", ["gaussian", "auto"])
def test_ten_thousand_calls_leave_nothing(small, camera, method):
    left = growth(10_000, small, camera=camera, method=method)
    print(f"10000 calls by {method}: {left / 2**20:+.1f} MiB")
    assert left < 8 << 20


PIECES = """
import resource, sys, time
import numpy as np, zarr, clearshot
side, folder = int(sys.argv[1]), sys.argv[2]
image = zarr.create_array(folder + "/in.zarr", shape=(side, side), chunks=(512, 512), dtype="uint16")
rng = np.random.default_rng(0)
for y in range(0, side, 512):
    image[y:y + 512] = rng.poisson(50, (min(512, side - y), side)).astype("uint16")
out = zarr.create_array(folder + "/out.zarr", shape=(side, side), chunks=(512, 512), dtype="float32")
clearshot.denoise(np.asarray(image[:256, :256]), sys.argv[3], camera={"gain": 1})
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
begin = time.monotonic()
clearshot.denoise(image, sys.argv[3], camera={"gain": 1}, out=out)
seconds = time.monotonic() - begin
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
part = np.s_[side // 2 - 96:side // 2 + 96, side // 3 - 96:side // 3 + 96]
alone = clearshot.denoise(np.asarray(image[part]), sys.argv[3], camera={"gain": 1}).image
assert np.abs(np.asarray(out[part]) - alone)[64:-64, 64:-64].max() < 1e-3
print(after - before, seconds)
"""


def pieces(side, method, folder):
    """Bytes beyond those of a small image that restoring a Zarr of so many pixels a side takes, and seconds."""
    done = subprocess.run([sys.executable, "-c", PIECES, str(side), str(folder), method], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    took, seconds = done.stdout.split()
    return int(took), float(seconds)


def test_a_large_array_is_never_held_whole(tmp_path):
    took, _ = pieces(6144, "gaussian", tmp_path)
    whole = 6144 * 6144 * 6
    assert took < 0.75 * whole


@pytest.mark.long
@pytest.mark.parametrize("method", ["gaussian", "bm3d"])
def test_sixteen_thousand_pixels_a_side(tmp_path, method):
    took, seconds = pieces(16384, method, tmp_path)
    print(f"{method}, 16384 x 16384: {took / 2**20:.0f} MiB, {seconds:.0f} s")
    assert took < 1 << 30
