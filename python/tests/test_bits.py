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


CONDITIONAL = """data=nuclei +data.scenes.stars=1 data.sizes=[32] data.pool=4 data.balance=domains task=conditional task.drop_class=0.25 trainer.device=cpu
    trainer.crop=16 trainer.batch=4 trainer.iterations=3 validation.images=4 validation.crop=16 validation.every=0 checkpoint.every=0 calibration.images=0
    schedule.warm_up=2"""
VECTOR = "model=local model.network.channels=[4,8] model.network.blocks=1 task.vector=[domain,camera]"
ATTENDING = """model=unet2d_prior model.network._class_name=UNet2DConditionModel model.network.down_block_types=[CrossAttnDownBlock2D,DownBlock2D]
    model.network.up_block_types=[UpBlock2D,CrossAttnUpBlock2D] model.network.in_channels=0 model.network.out_channels=0 model.network.attention_head_dim=2
    model.network.block_out_channels=[8,8] model.network.layers_per_block=1 model.network.norm_num_groups=4"""


def test_conditions_like_the_program(tmp_path, counts, camera):
    path, options = tmp_path / "a.tif", ["--float", "--gain", 0.5, "--offset", 100, "--read-noise", 1.5, "--method", "model"]
    clearshot.write(path, counts)
    model = clearshot.train([*CONDITIONAL.split(), *VECTOR.split()], out=tmp_path / "vector").model
    model.save(tmp_path / "vector.clearshot")
    told = {"class_name": "stars", "condition": {"scale": 500, "read_noise": 2}}
    program("restore", path, "-o", tmp_path / "b.tif", "--model", tmp_path / "vector.clearshot", *options, "--class", "stars", "--condition", "scale=500", "--condition", "read-noise=2")
    same(clearshot.restore(counts, camera=camera, method="model", model=model, **told).image, tmp_path / "b.tif")
    same(clearshot.restore(counts, camera=camera, method="model", model=model, **{**told, "class_name": 1}).image, tmp_path / "b.tif")
    with pytest.raises(clearshot.SettingError, match="one of nuclei, stars is needed"):
        clearshot.restore(counts, camera=camera, model=model, class_name="dogs")
    with pytest.raises(clearshot.SettingError, match="attends to no context"):
        clearshot.restore(counts, camera=camera, model=model, context=np.zeros((2, 3)))


def test_a_context_like_the_programs(tmp_path, counts, camera):
    (tmp_path / "contexts").mkdir()
    contexts = {name: np.random.default_rng(n).normal(size=(2, 3)).astype("f") for n, name in enumerate(["nuclei", "stars"])}
    for name, values in contexts.items():
        np.save(tmp_path / "contexts" / f"{name}.npy", values)
    overrides = [*CONDITIONAL.split(), *ATTENDING.split(), f"task.context={tmp_path / 'contexts'}"]
    model = clearshot.train(overrides, out=tmp_path / "run").model
    model.save(tmp_path / "run.clearshot")
    path, out, file = tmp_path / "a.tif", tmp_path / "b.tif", tmp_path / "contexts/stars.npy"
    clearshot.write(path, counts)
    program("restore", path, "-o", out, "--model", tmp_path / "run.clearshot", "--float", "--gain", 0.5, "--offset", 100, "--read-noise", 1.5, "--method", "model", "--context", file)
    for given in (file, contexts["stars"]):
        same(clearshot.restore(counts, camera=camera, method="model", model=model, context=given).image, out)
    with pytest.raises(clearshot.SettingError, match="the model takes 3"):
        clearshot.restore(counts, camera=camera, model=model, context=np.zeros((2, 4)))
    with pytest.raises(clearshot.SettingError, match="shape"):
        clearshot.restore(counts, camera=camera, model=model, context=np.zeros(3))


def test_cascades_and_budgets_like_the_program(tmp_path, counts, camera):
    path, options = tmp_path / "a.tif", ["--float", "--gain", 0.5, "--offset", 100, "--read-noise", 1.5]
    clearshot.write(path, counts)
    program("restore", path, "-o", tmp_path / "b.tif", *options, "--samples", 1, "--estimate", "samples", "--steps", 3, "--cascade", 2)
    coarse_to_fine = clearshot.restore(counts, camera=camera, samples=1, estimate="samples", steps=3, cascade=2)
    same(coarse_to_fine.image, tmp_path / "b.tif")
    with pytest.raises(clearshot.SettingError, match="max_seconds"):
        clearshot.restore(counts, camera=camera, samples=2, max_seconds=1e-9)
    with pytest.raises(clearshot.SettingError, match="allow_binning"):
        clearshot.restore_file(path, tmp_path / "no.tif", camera=camera, allow_binning=True)
    # With time enough every pixel is restored.
    budget = {"max_seconds": 1e9, "allow_binning": True}
    clearshot.restore_file(path, tmp_path / "whole.tif", model="default", camera=camera, samples=1, estimate="samples", steps=3, cascade=2, float=True, **budget)
    same(coarse_to_fine.image, tmp_path / "whole.tif")


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
