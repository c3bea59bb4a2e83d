"""Results have the bits of the command line's."""

import numpy as np
import pytest

import clearshot
from conftest import noisy, program

GENERATED = {
    "plane.tif": ("YX", (48, 64), "uint16"),
    "channels.ome.zarr": ("CYX", (2, 40, 56), "uint16"),
    "stack.nii": ("ZYX", (3, 40, 48), "int16"),
    "sky.fits": ("YX", (56, 48), "float32"),
    "movie.ome.tif": ("TYX", (3, 40, 48), "uint16"),
}
# A TIFF of 16 bits, an OME-TIFF of frames, an OME-Zarr, a volume of NIfTI, FITS.
REAL = [
    "real/content/xy_16bit__nuclei_high_dynamic_range.tif",
    "tiff/ome_time-series.ome.tif",
    "zarr/2d_v0.5.ome.zarr",
    "medical/nib_anatomical.nii",
    "pairs/sunpy_eit_a.fits",
]


def same(got, path):
    wanted = np.asarray(clearshot.read(path))
    assert wanted.dtype == np.float32
    np.testing.assert_array_equal(np.asarray(got).view(np.uint32), wanted.view(np.uint32))


@pytest.mark.parametrize("name", GENERATED)
def test_files_and_arrays_like_the_program(name, tmp_path):
    axes, shape, dtype = GENERATED[name]
    path, out = tmp_path / name, tmp_path / "out.tif"
    values = noisy(shape)
    clearshot.write(path, values.round().astype(dtype) if dtype != "float32" else values.astype(dtype), axes=axes)
    program("restore", path, "-o", out, "--float")
    image = clearshot.read(path)
    same(clearshot.restore(image).image, out)
    same(clearshot.restore(np.asarray(image), axes=image.axes).image, out)
    clearshot.restore_file(path, tmp_path / "again.tif", float=True)
    same(clearshot.read(tmp_path / "again.tif"), out)


KNOWN = {"gain": 1, "offset": 0, "read_noise": 2}
COMMANDS = {
    "restore": (["-o"], [], lambda image, **more: clearshot.restore(image, **more)),
    "denoise": ([], ["--method", "bm3d"], lambda image, **more: clearshot.denoise(image, "bm3d", **more)),
    "deconvolve": ([], ["--psf", "gaussian:1.2px"], lambda image, **more: clearshot.deconvolve(image, "gaussian:1.2px", **more)),
}


@pytest.mark.filterwarnings("ignore::clearshot.ClearshotWarning")
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", REAL)
def test_real_files_like_the_program(name, command, data, tmp_path):
    path, out = data / name, tmp_path / "out.tif"
    before, options, function = COMMANDS[command]
    program(command, path, *before, out, "--float", "--gain", 1, "--offset", 0, "--read-noise", 2, *options)
    image = clearshot.read(path)
    same(function(image, camera=KNOWN).image, out)
    if not image.tags.get("scaled") and image.dtype != np.float64:
        same(function(np.asarray(image), camera=KNOWN, axes=image.axes).image, out)


def test_maps_and_samples_like_the_program(tmp_path, counts, camera):
    path, out = tmp_path / "a.tif", tmp_path / "out.tif"
    clearshot.write(path, counts)
    program(
        *["restore", path, "-o", out, "--float", "--gain", 0.5, "--offset", 100, "--read-noise", 1.5, "--std", "--chi2"],
        *["--save-samples", "--samples", 2, "--steps", 3, "--seed", 7, "--method", "model", "--estimate", "samples"],
    )
    result = clearshot.restore(
        counts, camera=camera, samples=2, steps=3, seed=7, chi2=True, keep_samples=True, method="model", estimate="samples"
    )
    same(result.image, out)
    same(result.std, tmp_path / "out_std.tif")
    same(result.chi2, tmp_path / "out_chi2.tif")
    for number, sample in enumerate(result.samples):
        same(sample, tmp_path / f"out_sample{number + 1}.tif")
    assert len(result.samples) == 2


def test_classical_methods_like_the_program(tmp_path, counts):
    path = tmp_path / "a.tif"
    clearshot.write(path, counts)
    camera = ["--gain", 0.5, "--offset", 100, "--read-noise", 1.5]
    known = {"gain": 0.5, "offset": 100, "read_noise": 1.5}
    program("denoise", path, tmp_path / "bm3d.tif", "--float", *camera)
    same(clearshot.denoise(counts, camera=known).image, tmp_path / "bm3d.tif")
    program("denoise", path, tmp_path / "estimated.tif", "--float", "--method", "nlm")
    same(clearshot.denoise(counts, "nlm").image, tmp_path / "estimated.tif")
    program("denoise", path, tmp_path / "set.tif", "--float", "--method", "gaussian", "--set", "sigma=2.5")
    same(clearshot.denoise(counts, "gaussian", parameters={"sigma": 2.5}).image, tmp_path / "set.tif")
    program("deconvolve", path, tmp_path / "lucy.tif", "--float", "--psf-sigma", 1.2, *camera)
    same(clearshot.deconvolve(counts, 1.2, camera=known).image, tmp_path / "lucy.tif")
    program("deconvolve", path, tmp_path / "wiener.tif", "--float", "--psf", "gaussian:1.5px", "--method", "wiener")
    same(clearshot.deconvolve(counts, "gaussian:1.5px", "wiener").image, tmp_path / "wiener.tif")
