"""PSNR of what `clearshot restore` makes of photographs with known noise, nothing told, beside the true noise told.

The images are those that scikit-image brings along (photographs, texture, printed text, microscopy), in grey, the middle 256 x 256 pixels of each;
those of 700 pixels and more along both sides at half size. To each is added independent normal noise of some standard deviations (in steps of
8 bits), as 16-bit counts of 20 a step above an offset of 500. Nothing was trained on these images, but the noise estimate was changed
while looking at them.

    python bench/photographs.py --clearshot target/release/clearshot --out photographs
"""

import argparse
import pathlib
import subprocess

import numpy as np
import skimage.data
import skimage.io
import tifffile
from skimage.transform import downscale_local_mean

NAMES = """astronaut.png brick.png camera.png cell.png chelsea.png clock_motion.png coins.png grass.png gravel.png hubble_deep_field.jpg ihc.png
microaneurysms.png moon.png motorcycle_left.png page.png retina.jpg rocket.jpg text.png""".split()
COUNTS, OFFSET, SIDE = 20, 500, 256
# Electrons a count where the noise is told: enough that shot noise hardly adds to it.
GAIN = 50


def photograph(name):
    """In steps of 8 bits."""
    image = np.asarray(skimage.io.imread(pathlib.Path(skimage.data.__file__).parent / name), float)
    if image.ndim == 3:
        image = image[..., :3] @ [0.2126, 0.7152, 0.0722]
    if min(image.shape) >= 700:
        image = downscale_local_mean(image, (2, 2))
    top, left = [max(0, (n - SIDE) // 2) for n in image.shape]
    return image[top : top + SIDE, left : left + SIDE]


def psnr(folder, name, truth):
    values = (tifffile.imread(folder / f"{name}.tif").astype(float) - OFFSET) / COUNTS
    return 10 * np.log10(255**2 / np.mean((values - truth) ** 2))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clearshot", default="target/release/clearshot", help="the program. Default: %(default)s")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for images and results")
    parser.add_argument("--noise", default="2,5,10,25", help="standard deviations. Default: %(default)s")
    arguments = parser.parse_args()
    truths = {name.split(".")[0]: photograph(name) for name in NAMES}
    levels = [float(level) for level in arguments.noise.split(",")]
    scores = {}
    for level in levels:
        rng = np.random.default_rng(5)
        noisy = arguments.out / f"{level:g}" / "noisy"
        noisy.mkdir(parents=True, exist_ok=True)
        for name, truth in truths.items():
            counts = (truth + level * rng.standard_normal(truth.shape)) * COUNTS + OFFSET
            tifffile.imwrite(noisy / f"{name}.tif", np.clip(np.round(counts), 0, 65535).astype(np.uint16))
        told = ["--gain", str(GAIN), "--offset", str(OFFSET), "--read-noise", str(level * COUNTS * GAIN)]
        folders = [noisy]
        for kind, options in [("restored", []), ("told", told)]:
            folders.append(noisy.parent / kind)
            command = [arguments.clearshot, "restore", str(noisy / "*.tif"), "-o", str(folders[-1]), "--float", "--force"]
            done = subprocess.run(command + options, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(done.stderr)
        scores[level] = {name: [psnr(folder, name, truth) for folder in folders] for name, truth in truths.items()}
    print("| image | " + " | ".join(f"{level:g}" for level in levels) + " |")
    print("|" + "---|" * (len(levels) + 1))
    row = lambda name, of: print(f"| {name} | " + " | ".join(" / ".join(f"{v:.2f}" for v in of(level)) for level in levels) + " |")
    for name in truths:
        row(name, lambda level: scores[level][name])
    row("mean", lambda level: np.mean(list(scores[level].values()), axis=0))


if __name__ == "__main__":
    main()
