"""Files: regions, metadata, and the program that the wheel carries."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import clearshot
from conftest import noisy


@pytest.mark.parametrize("name", ["a.tif", "a.ome.tif", "a.ome.zarr", "a.npy", "a.nii", "a.fits"])
def test_written_and_read(name, tmp_path):
    values = noisy((3, 20, 30)).astype("int16")
    clearshot.write(tmp_path / name, values, axes="ZYX", pixel_size=(0.3, 0.1, 0.2))
    image = clearshot.read(tmp_path / name)
    got = np.asarray(image)
    assert got.dtype == values.dtype and image.dtype == values.dtype
    np.testing.assert_array_equal(got, values)
    if name.startswith("a.ome") or name == "a.nii":
        assert image.axes == "ZYX"
        nanometres = {"um": 1e3, "µm": 1e3, "micrometer": 1e3, "mm": 1e6}
        for letter, size in zip("ZYX", [300, 100, 200], strict=True):
            np.testing.assert_allclose(image.pixel_size[letter] * nanometres[image.units[letter]], size, rtol=1e-5)


KEYS = [
    np.s_[1],
    np.s_[-1, 3:9],
    np.s_[..., 4],
    np.s_[:, ::3, ::-2],
    np.s_[0, 0, 0],
    np.s_[2:1],
    np.s_[...],
    np.s_[:, 5:5],
    np.s_[1, ..., 2:100],
    np.s_[np.int64(1), 19:3:-4],
]


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_regions_as_numpy_has_them(key, tmp_path):
    values = noisy((3, 20, 30)).astype("uint16")
    clearshot.write(tmp_path / "a.ome.zarr", values, axes="ZYX")
    np.testing.assert_array_equal(clearshot.read(tmp_path / "a.ome.zarr")[key], values[key])


def test_wrong_regions(tmp_path):
    clearshot.write(tmp_path / "a.tif", np.zeros((20, 30), "uint8"))
    image = clearshot.read(tmp_path / "a.tif")
    for key in [20, (0, 0, 0), -21]:
        with pytest.raises(IndexError):
            image[key]
    with pytest.raises(TypeError, match="asarray"):
        image[[1, 2]]


def test_images_as_dask_and_xarray(tmp_path):
    values = noisy((2, 40, 50)).astype("uint16")
    clearshot.write(tmp_path / "a.ome.tif", values, axes="CYX", pixel_size=0.1, channels=["DNA", "actin"])
    image = clearshot.read(tmp_path / "a.ome.tif")
    np.testing.assert_array_equal(image.to_dask().compute(), values)
    named = image.to_xarray()
    assert named.dims == ("c", "y", "x") and list(named.coords["c"].values) == ["DNA", "actin"]
    np.testing.assert_allclose(named.coords["x"].values[1], image.pixel_size["X"])
    np.testing.assert_array_equal(named.sel(c="actin").values, values[1])


def test_a_file_like_another(tmp_path):
    values = noisy((2, 40, 50)).astype("uint16")
    clearshot.write(tmp_path / "a.ome.tif", values, axes="CYX", pixel_size=0.1, channels=["DNA", "actin"])
    image = clearshot.read(tmp_path / "a.ome.tif")
    clearshot.write(tmp_path / "b.ome.tif", values.astype("float32") / 2, like=image)
    other = clearshot.read(tmp_path / "b.ome.tif")
    assert (other.channels, other.pixel_size, other.axes) == (image.channels, image.pixel_size, image.axes)
    np.testing.assert_array_equal(np.asarray(other), values.astype("float32") / 2)
    with pytest.raises(clearshot.ImageError, match="cannot be written like"):
        clearshot.write(tmp_path / "c.tif", values[:, :3], axes="CYX", like=image)
    assert not (tmp_path / "c.tif").exists()


def test_nothing_is_replaced(tmp_path, counts):
    path = tmp_path / "a.tif"
    clearshot.write(path, counts)
    with pytest.raises(clearshot.FileError, match="exists already"):
        clearshot.write(path, counts)
    clearshot.write(path, counts + 1, replace=True)
    np.testing.assert_array_equal(np.asarray(clearshot.read(path)), counts + 1)
    with pytest.raises(clearshot.FileError, match="replace its own input"):
        clearshot.restore_file(path, path)


def test_a_report_of_a_file(tmp_path, counts, camera):
    clearshot.write(tmp_path / "a.tif", counts)
    arguments = {"camera": camera, "std": True, "samples": 2, "steps": 2}
    report = clearshot.restore_file(tmp_path / "a.tif", tmp_path / "b.tif", **arguments)
    [image] = report["images"]
    assert image["status"] == "restored" and image["camera"]["gain"] == 0.5
    assert [Path(path).name for path in image["written"]] == ["b.tif", "b_std.tif"]
    again = clearshot.restore_file(tmp_path / "a.tif", tmp_path / "b.tif", **arguments)
    assert again["images"][0]["status"] == "already done"


def test_the_program():
    command = Path(sys.executable).with_name("clearshot")
    for program in [[sys.executable, "-m", "clearshot"], [str(command)]]:
        done = subprocess.run([*program, "--version"], capture_output=True, text=True)
        assert (done.returncode, done.stdout.strip()) == (0, f"clearshot {clearshot.__version__}")
        wrong = subprocess.run([*program, "info", "no-such-file.tif"], capture_output=True, text=True)
        assert wrong.returncode == 1 and "no such file" in wrong.stderr
        usage = subprocess.run([*program, "restore"], capture_output=True, text=True)
        assert usage.returncode == 2 and "--output" in usage.stderr


def test_models_are_kept(tmp_path, counts, camera):
    model = clearshot.Model.builtin()
    model.save(tmp_path / "a.clearshot")
    again = clearshot.Model.load(tmp_path / "a.clearshot")
    assert again.about == model.about and again.about["channels"] == 1
    wanted = clearshot.restore(counts, camera=camera, method="model").image
    for given in [again, tmp_path / "a.clearshot"]:
        np.testing.assert_array_equal(clearshot.restore(counts, camera=camera, model=given, method="model").image, wanted)
    with pytest.raises(clearshot.FileError, match="exists already"):
        model.save(tmp_path / "a.clearshot")
