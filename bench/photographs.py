"""PSNR of what `clearshot restore` makes of photographs with known noise, nothing told, beside the true noise told.

The images are those that scikit-image brings along (photographs, texture, printed text, microscopy), in grey, the middle 256 x 256 pixels of each;
those of 700 pixels and more along both sides at half size. To each is added independent normal noise of some standard deviations (in steps of
8 bits), as 16-bit counts of 20 a step above an offset of 500. Nothing was trained on these images, but the noise estimate was changed
while looking at them.

    python bench/photographs.py --clearshot target/release/clearshot --out photographs

With --colour the images in colour, with noise that is independent between the samples of a pixel: red, green and blue restored separately,
together, together with the true noise told, and by the bm3d package's BM3D for colour images, which is told the true noise.

    python bench/photographs.py --colour --noise 10,25,50 --clearshot target/release/clearshot --out photographs
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
IN_COLOUR = """astronaut.png chelsea.png coffee.png hubble_deep_field.jpg ihc.png motorcycle_left.png retina.jpg rocket.jpg""".split()
COUNTS, OFFSET, SIDE = 20, 500, 256
# Electrons a count where the noise is told: enough that shot noise hardly adds to it.
GAIN = 50


def photograph(name, colour):
    """In steps of 8 bits."""
    image = np.asarray(skimage.io.imread(pathlib.Path(skimage.data.__file__).parent / name), float)
    if colour:
        image = image[..., :3]
    elif image.ndim == 3:
        image = image[..., :3] @ [0.2126, 0.7152, 0.0722]
    if min(image.shape[:2]) >= (400 if colour else 700):
        image = downscale_local_mean(image, (2, 2, 1)[: image.ndim])
    top, left = [max(0, (n - SIDE) // 2) for n in image.shape[:2]]
    return image[top : top + SIDE, left : left + SIDE]


def psnr(folder, name, truth):
    values = (tifffile.imread(folder / f"{name}.tif").astype(float) - OFFSET) / COUNTS
    return 10 * np.log10(255**2 / np.mean((values - truth) ** 2))


def by_bm3d(noisy, names, level):
    """The folder with what the bm3d package makes of colour images."""
    import bm3d

    out = noisy.parent / "bm3d"
    out.mkdir(exist_ok=True)
    for name in names:
        image = (tifffile.imread(noisy / f"{name}.tif").astype(float) - OFFSET) / COUNTS
        tifffile.imwrite(out / f"{name}.tif", (bm3d.bm3d_rgb(image, level) * COUNTS + OFFSET).astype("f4"))
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clearshot", default="target/release/clearshot", help="the program. Default: %(default)s")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for images and results")
    parser.add_argument("--colour", action="store_true", help="restore colour images. Default: grey ones")
    parser.add_argument("--noise", default="2,5,10,25", help="standard deviations. Default: %(default)s")
    arguments = parser.parse_args()
    names = IN_COLOUR if arguments.colour else NAMES
    truths = {name.split(".")[0]: photograph(name, arguments.colour) for name in names}
    levels = [float(level) for level in arguments.noise.split(",")]
    scores = {}
    for level in levels:
        rng = np.random.default_rng(5)
        noisy = arguments.out / f"{level:g}" / "noisy"
        noisy.mkdir(parents=True, exist_ok=True)
        for name, truth in truths.items():
            counts = (truth + level * rng.standard_normal(truth.shape)) * COUNTS + OFFSET
            samples = {"photometric": "rgb"} if arguments.colour else {}
            tifffile.imwrite(noisy / f"{name}.tif", np.clip(np.round(counts), 0, 65535).astype(np.uint16), **samples)
        told = ["--gain", str(GAIN), "--offset", str(OFFSET), "--read-noise", str(level * COUNTS * GAIN)]
        folders = [noisy]
        alone = [("alone", ["--colours-alone"])] if arguments.colour else []
        for kind, options in [*alone, ("restored", []), ("told", told)]:
            folders.append(noisy.parent / kind)
            command = [arguments.clearshot, "restore", str(noisy / "*.tif"), "-o", str(folders[-1]), "--float", "--force"]
            done = subprocess.run(command + options, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(done.stderr)
        if arguments.colour:
            folders.append(by_bm3d(noisy, truths, level))
        scores[level] = {name: [psnr(folder, name, truth) for folder in folders] for name, truth in truths.items()}
    print("| image | " + " | ".join(f"{level:g}" for level in levels) + " |")
    print("|" + "---|" * (len(levels) + 1))
    row = lambda name, of: print(f"| {name} | " + " | ".join(" / ".join(f"{v:.2f}" for v in of(level)) for level in levels) + " |")
    for name in truths:
        row(name, lambda level: scores[level][name])
    row("mean", lambda level: np.mean(list(scores[level].values()), axis=0))


if __name__ == "__main__":
    main()
