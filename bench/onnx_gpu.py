"""Networks of others on a GPU: Clearshot from their ONNX files beside PyTorch on the networks themselves, in bf16.

    python bench/onnx_gpu.py --export FOLDER                              anywhere with torch, onnx and monai
    python bench/onnx_gpu.py FOLDER [--clearshot PROGRAM] [NAME ...]      on a machine with a GPU, torch and monai

Batches of images as large as the GPU is worth. PyTorch has its weights and images in bf16 and channels last, by itself and compiled (`max-autotune-no-cudagraphs` is not
used: it takes minutes for each network; `reduce-overhead` records CUDA graphs, as Clearshot does). The table goes to standard output as Markdown.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import time

import torch
from onnx_zoo import networks

#: Batch and size: planes and volumes, as long as they are high, which `bench` wants.
PLANES, VOLUMES = (8, 512, 512), (4, 96, 96, 96)
LIBRARIES = ("PyTorch", "MONAI")


def chosen(names):
    for name, library, network, channels, sizes in networks():
        if library in LIBRARIES and (not names or any(n in name for n in names)):
            batch, *size = PLANES if len(sizes[0]) == 2 else VOLUMES
            yield name, library, network.eval(), (batch, channels, *size)


def export(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name, _, network, shape in chosen([]):
        small = torch.randn(1, shape[1], *[n // 4 for n in shape[2:]])
        axes = {0: "n", **{a + 2: f"s{a}" for a in range(len(shape) - 2)}}
        path = folder / f"{name.replace(' ', '_').replace(',', '')}.onnx"
        torch.onnx.export(network, (small,), path, dynamo=False, opset_version=17, input_names=["x"], output_names=["y"], dynamic_axes={"x": axes, "y": axes})
        print(path, flush=True)


def timed(call):
    """Median milliseconds."""
    for _ in range(5):
        call()
    torch.cuda.synchronize()
    times = []
    for _ in range(20):
        clock = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - clock))
    return sorted(times)[len(times) // 2]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--export", action="store_true")
    parser.add_argument("--clearshot", default="target/release/clearshot")
    arguments = parser.parse_intermixed_args()
    if arguments.export:
        return export(arguments.folder)
    torch.backends.cudnn.benchmark = True
    print(f"PyTorch {torch.__version__}, {torch.cuda.get_device_name()}, bf16")
    print("| network | library | batch and size | Clearshot, ms | PyTorch, ms | torch.compile, ms | of the faster |\n|---|---|---|---|---|---|---|", flush=True)
    for name, library, network, shape in chosen(arguments.names):
        path = arguments.folder / f"{name.replace(' ', '_').replace(',', '')}.onnx"
        shown = " x ".join(map(str, shape[2:]))
        done = subprocess.run([arguments.clearshot, "bench", "--onnx", path, "--batch", str(shape[0]), "--size", str(shape[2]), "--device", "cuda", "--precision", "bf16", "--runs", "20", "--warm-up", "5", "--json"],
                              capture_output=True, text=True)
        if done.returncode != 0:
            print(f"{name}: {done.stderr.strip()[:300]}", file=sys.stderr)
        ours = json.loads(done.stdout.splitlines()[-1])["median_ms"] if done.returncode == 0 else None
        layout = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
        network = network.cuda().bfloat16().to(memory_format=layout)
        image = torch.randn(shape, device="cuda", dtype=torch.bfloat16).to(memory_format=layout)
        theirs = []
        with torch.no_grad():
            for call in (network, torch.compile(network, mode="reduce-overhead")):
                try:
                    theirs.append(timed(lambda: call(image)))
                except Exception as error:  # What one of them cannot do leaves one column out.
                    print(f"{name}: {str(error).splitlines()[0][:200]}", file=sys.stderr)
                    theirs.append(None)
        said = ["-" if t is None else f"{t:.3f}" for t in (ours, *theirs)]
        ratio = "-" if ours is None or not any(theirs) else f"{min(t for t in theirs if t) / ours:.2f}x"
        print(f"| {name} | {library} | {shape[0]}, {shown} | {said[0]} | {said[1]} | {said[2]} | {ratio} |", flush=True)
        torch.compiler.reset()


if __name__ == "__main__":
    main()
