"""Large files through clearshot and through Python on the same machine, one after the other.

    pip install numpy tifffile zarr scipy
    cargo build --release
    python bench/images.py FOLDER [--program target/release/clearshot] [--rounds 2] [--small]

Makes a 16,384 x 16,384 uint16 TIFF in tiles of 256 and a 200 x 2,048 x 2,048 uint16 OME-Zarr in chunks of 1 x 512 x 512 in
FOLDER (about 5 GB of room), copies each with the identity restore and through the 3 x 3 median, and with tifffile and
zarr-python. Prints seconds, MB/s and the peak of the process's memory, the best of the rounds, and whether the
identity gave every bit back. `--small` takes files of a sixteenth of the size.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time

MAKE_TIFF = """
import numpy, tifffile
rng = numpy.random.default_rng(1)
n = {n}
y = rng.integers(150, 260, (n, n), dtype="uint16")
tifffile.imwrite({path!r}, y, tile=(256, 256), resolution=(1e4 / 0.065,) * 2, resolutionunit="CENTIMETER")
"""

MAKE_ZARR = """
import numpy, zarr
rng = numpy.random.default_rng(2)
shape = {shape}
group = zarr.open_group({path!r}, mode="w", zarr_format=3)
axes = [dict(name=a, type="space", unit="micrometer") for a in "zyx"]
scale = [dict(type="scale", scale=[0.5, 0.1, 0.1])]
group.attrs["ome"] = dict(version="0.5", multiscales=[dict(axes=axes, datasets=[dict(path="0", coordinateTransformations=scale)])])
array = group.create_array("0", shape=shape, chunks=(1, 512, 512), dtype="uint16", dimension_names=["z", "y", "x"])
for z in range(shape[0]):
    array[z] = rng.integers(150, 260, shape[1:], dtype="uint16")
"""

COPY_TIFF = """
import tifffile
tifffile.imwrite({to!r}, tifffile.imread({path!r}), tile=(256, 256))
"""

COPY_ZARR = """
import zarr
old = zarr.open_array({path!r} + "/0", mode="r")
new = zarr.create_array({to!r}, shape=old.shape, chunks=old.chunks, dtype=old.dtype)
for z in range(old.shape[0]):
    new[z] = old[z]
"""

MEDIAN_TIFF = """
import tifffile, scipy.ndimage
tifffile.imwrite({to!r}, scipy.ndimage.median_filter(tifffile.imread({path!r}), 3), tile=(256, 256))
"""

SAME_TIFF = """
import tifffile, numpy
assert numpy.array_equal(tifffile.imread({path!r}), tifffile.imread({to!r}))
"""

SAME_ZARR = """
import zarr, numpy
a, b = zarr.open_array({path!r} + "/0", mode="r"), zarr.open_array({to!r} + "/0", mode="r")
assert a.shape == b.shape and all(numpy.array_equal(a[z], b[z]) for z in range(a.shape[0]))
"""


def timed(command):
    """Seconds and peak memory in bytes of a command."""
    start = time.time()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"failed: {command}")
    return time.time() - start, usage.ru_maxrss * 1024


def remove(path):
    shutil.rmtree(path) if os.path.isdir(path) else os.path.exists(path) and os.remove(path)


def python(text, **values):
    return [sys.executable, "-c", text.format(**values)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--program", default="target/release/clearshot")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--median-peer", action="store_true", help="also scipy's median of the TIFF, which takes long")
    args = parser.parse_args()
    os.makedirs(args.folder, exist_ok=True)
    n, shape = (4096, (50, 1024, 1024)) if args.small else (16384, (200, 2048, 2048))
    tiff, zarr = (os.path.join(args.folder, f"in-{n}{e}") for e in (".tif", ".ome.zarr"))
    if not os.path.exists(tiff):
        subprocess.run(python(MAKE_TIFF, n=n, path=tiff), check=True)
    if not os.path.exists(zarr):
        subprocess.run(python(MAKE_ZARR, shape=shape, path=zarr), check=True)
    megabytes = {tiff: n * n * 2 / 1e6, zarr: shape[0] * shape[1] * shape[2] * 2 / 1e6}

    def denoise(method, path, to):
        return [args.program, "denoise", "--method", method, path, to]

    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
    print("| file | what | seconds | MB/s | peak MB |\n|---|---|---|---|---|")
    for path, ending, copy, same, name in [
        (tiff, ".tif", COPY_TIFF, SAME_TIFF, "tifffile copy"),
        (zarr, ".ome.zarr", COPY_ZARR, SAME_ZARR, "zarr-python copy"),
    ]:
        to = os.path.join(args.folder, "out" + ending)
        runs = {
            "clearshot identity": denoise("none", path, to),
            name: python(copy, path=path, to=to),
            "clearshot median": denoise("median", path, to),
        }
        if args.median_peer and path == tiff:
            runs["scipy median"] = python(MEDIAN_TIFF, path=path, to=to)
        best = {}
        for _ in range(args.rounds):
            for what, command in runs.items():
                remove(to)
                seconds, peak = timed(command)
                best[what] = min(best.get(what, (1e9, 0)), (seconds, peak))
                if what == "clearshot identity":
                    subprocess.run(python(same, path=path, to=to), check=True)
        for what, (seconds, peak) in best.items():
            rate = megabytes[path] / seconds
            print(f"| {os.path.basename(path)} | {what} | {seconds:.2f} | {rate:.0f} | {peak / 1e6:.0f} |")
        remove(to)


if __name__ == "__main__":
    main()
