"""Super-resolution beside bicubic interpolation, on generated filaments that the model has not seen.

    python superresolution.py CLEARSHOT MODEL FOLDER

Needs numpy, tifffile and scikit-image. Scenes of 256 x 256 pixels are averaged down to 64 x 64; a camera with a background of 2 electrons and a read noise of 1.5 counts so many electrons at the
scenes' brightest value. Enlarged four times by the model and by scikit-image (order 3), both are compared with the scenes: Fourier ring correlation (where it falls below 1/7, in pixels of the fine grid), PSNR and SSIM.
"""
import json, os, subprocess, sys
import numpy as np, tifffile
from skimage.transform import resize

PROGRAM, MODEL, OUT = sys.argv[1:4]
rng = np.random.default_rng(5)


def run(*arguments):
    return subprocess.run([PROGRAM, *arguments], check=True, capture_output=True, text=True).stdout


if not os.path.exists(f"{OUT}/scenes"):
    run(*f"synth --scene filaments --size 256x256 --count 6 --peak 100 --seed 99 --out {OUT}/scenes".split())
names = sorted(os.listdir(f"{OUT}/scenes/truth"))
for peak in [50, 200, 1000]:
    for method in ["given", "truth", "bicubic"]:
        os.makedirs(f"{OUT}/{peak}/{method}", exist_ok=True)
    for name in names:
        # Written with a peak of 100 electrons above a background of 5.
        scene = (tifffile.imread(f"{OUT}/scenes/truth/{name}").astype(float) - 5) / 100
        coarse = scene.reshape(64, 4, 64, 4).mean((1, 3))
        given = rng.poisson(peak * coarse + 2) + 1.5 * rng.standard_normal(coarse.shape)
        cubic = resize(given, scene.shape, order=3, mode="reflect", anti_aliasing=False, preserve_range=True)
        for method, image in [("given", given), ("truth", peak * scene + 2), ("bicubic", cubic)]:
            tifffile.imwrite(f"{OUT}/{peak}/{method}/{name}", image.astype(np.float32))
    run("predict", f"{OUT}/{peak}/given", "-o", f"{OUT}/{peak}/model", "--model", MODEL, "--force")
    for method in ["bicubic", "model"]:
        said = run("measure", "--truth", f"{OUT}/{peak}/truth", "--image", f"{OUT}/{peak}/{method}", "--metric", "frc,psnr,ssim", "--json")
        rows = [r for r in map(json.loads, said.splitlines()) if r.get("image", "").endswith(".tif")]
        print(peak, method, *(f"{k} {np.mean([r[k] for r in rows]):.3f}" for k in ["frc", "psnr", "ssim"]))
