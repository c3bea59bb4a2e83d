"""Arrays of every kind: types, axes, layouts, libraries; none is read whole that need not be."""

import dask.array
import numpy as np
import pytest
import xarray
import zarr

import clearshot
from conftest import noisy

TYPES = ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64"]


def smooth(image, **more):
    """A restorer that is quick and exact enough to see every pixel by."""
    return clearshot.denoise(image, "gaussian", **more).image


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("order", ["=", ">", "<"])
def test_types(dtype, order):
    values = (np.arange(24 * 30).reshape(24, 30) * 7 % 100).astype(np.dtype(dtype).newbyteorder(order))
    result = smooth(values)
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, smooth(values.astype("float32")))


def test_other_types():
    marks = np.random.default_rng(0).random((20, 20)) > 0.5
    np.testing.assert_array_equal(smooth(marks), smooth(marks.astype("uint8")))
    np.testing.assert_array_equal(smooth(marks.astype(int).tolist()), smooth(marks.astype("uint8")))
    for refused in ["complex64", "longdouble", "S3", "datetime64[s]"]:
        with pytest.raises(clearshot.ImageError, match="not supported; convert to one of uint8"):
            smooth(np.zeros((8, 8), refused))


@pytest.mark.parametrize("axes", ["YX", "XY", "ZYX", "TYX", "CYX", "YXC", "YXS", "TCZYX", "CTYX", "XYZ", "SYX"])
def test_axes(axes, camera):
    """Any order of axes gives what planes give one by one."""
    sizes = {"T": 2, "C": 3, "Z": 2, "S": 3, "Y": 24, "X": 32}
    shape = [sizes[letter] for letter in axes]
    outer = [letter for letter in axes if letter not in "YX"]
    planes = noisy([sizes[letter] for letter in outer] + [24, 32]).astype("float32")
    from_planes = outer + ["Y", "X"]
    image = planes.transpose([from_planes.index(letter) for letter in axes])
    assert list(image.shape) == shape
    result = clearshot.denoise(image, "bm3d", camera=camera, axes=axes).image
    assert result.shape == image.shape
    back = result.transpose([axes.index(letter) for letter in from_planes]).reshape(-1, 24, 32)
    for plane, got in zip(planes.reshape(-1, 24, 32), back, strict=True):
        np.testing.assert_array_equal(got, clearshot.denoise(plane, "bm3d", camera=camera).image)


def test_axes_are_needed_and_checked():
    with pytest.raises(clearshot.ImageError, match="say what its axes are"):
        smooth(np.zeros((3, 8, 8)))
    for axes, why in [("YX", "one letter"), ("ZZX", "may be there once"), ("ZCY", "Y and X"), ("ZYQ", "Y and X"), ("ZY?", "once")]:
        with pytest.raises(clearshot.ImageError, match=why):
            smooth(np.zeros((3, 8, 8)), axes=axes)


def test_layouts_of_memory():
    whole = noisy((50, 70)).astype("float32")
    for view in [whole.T, whole[::2, ::3], whole[::-1, ::-1], np.asfortranarray(whole), whole[7:33, 5:61], whole.reshape(50, 7, 10)[:, 3]]:
        np.testing.assert_array_equal(smooth(view), smooth(np.ascontiguousarray(view)))
    plane = np.broadcast_to(whole, (4, 50, 70))
    np.testing.assert_array_equal(smooth(plane, axes="TYX")[3], smooth(whole))
    whole.flags.writeable = False
    smooth(whole)
    odd = np.frombuffer(b"x" + whole.tobytes(), dtype="u1")[1:].view("float32").reshape(50, 70)
    np.testing.assert_array_equal(smooth(odd), smooth(whole))


def test_xarray_keeps_its_names(camera):
    image = xarray.DataArray(
        noisy((2, 40, 48)).astype("uint16"),
        dims=["channel", "y", "x"],
        coords={"channel": ["DNA", "actin"], "x": ("x", np.arange(48) * 0.1, {"units": "um"})},
        attrs={"microscope": "3"},
        name="cells",
    )
    result = clearshot.restore(image, camera=camera, method="bm3d", chi2=True)
    for got in [result.image, result.chi2]:
        assert isinstance(got, xarray.DataArray)
        assert (got.dims, got.name, got.attrs) == (image.dims, "cells", {"microscope": "3"})
        assert list(got.coords["channel"].values) == ["DNA", "actin"]
    plain = clearshot.restore(image.values, camera=camera, method="bm3d", axes="CYX")
    np.testing.assert_array_equal(result.image.values, plain.image)
    with pytest.raises(clearshot.ImageError, match="dimension 'angle'"):
        smooth(image.rename(channel="angle"))
    smooth(image.rename(channel="angle"), axes="CYX")


def test_the_size_of_pixels_is_taken_from_coordinates():
    at = {d: (d, np.arange(n) * 0.1, {"units": "um"}) for d, n in [("y", 40), ("x", 48)]}
    image = xarray.DataArray(noisy((40, 48)).astype("float32"), dims=["y", "x"], coords=at)
    options = {"camera": {"gain": 1}, "steps": 3}
    by_coordinates = clearshot.deconvolve(image, "gaussian:0.12um", **options).image
    by_argument = clearshot.deconvolve(image.values, "gaussian:0.12um", pixel_size=0.1, **options).image
    in_pixels = clearshot.deconvolve(image.values, "gaussian:1.2px", **options).image
    np.testing.assert_allclose(by_argument, in_pixels, rtol=1e-5)
    np.testing.assert_array_equal(by_coordinates.values, by_argument)
    with pytest.raises(clearshot.SettingError, match="psf"):
        clearshot.deconvolve(image.values, "gaussian:0.12um", **options)


class Watched:
    """An array that remembers the largest region that was read of it."""

    def __init__(self, values, chunks=None):
        self.values, self.shape, self.dtype, self.most = values, values.shape, values.dtype, 0
        if chunks is not None:
            self.chunks = chunks

    def __getitem__(self, key):
        region = self.values[key]
        self.most = max(self.most, region.size)
        return region


@pytest.mark.parametrize("chunks", [None, (64, 96)])
def test_arrays_are_read_by_region(chunks):
    values = noisy((1200, 900)).astype("float32")
    watched = Watched(values, chunks)
    np.testing.assert_array_equal(smooth(watched, tile=128), smooth(values))
    assert 0 < watched.most <= (1 << 20) // 4


def test_dask_and_zarr(tmp_path, camera):
    values = noisy((200, 150)).astype("uint16")
    wanted = smooth(values)
    np.testing.assert_array_equal(smooth(dask.array.from_array(values, chunks=(64, 50))), wanted)
    stored = zarr.create_array(tmp_path / "a.zarr", shape=values.shape, chunks=(64, 64), dtype="uint16")
    stored[:] = values
    np.testing.assert_array_equal(smooth(stored), wanted)
    learned = clearshot.restore(stored, camera=camera).image
    np.testing.assert_array_equal(learned, clearshot.restore(values, camera=camera).image)


def test_results_go_where_they_are_wanted(tmp_path, counts, camera):
    plain = clearshot.restore(counts, camera=camera, chi2=True, samples=2, steps=2)
    places = {
        "image": zarr.create_array(tmp_path / "image.zarr", shape=counts.shape, chunks=(16, 16), dtype="float32"),
        "std": np.memmap(tmp_path / "std", "float32", "w+", shape=counts.shape),
    }
    result = clearshot.restore(counts, camera=camera, chi2=True, samples=2, steps=2, out=places)
    assert result.image is places["image"] and result.std is places["std"]
    np.testing.assert_array_equal(result.image[:], plain.image)
    np.testing.assert_array_equal(result.std, plain.std)
    np.testing.assert_array_equal(result.chi2, plain.chi2)
    whole = np.zeros(counts.shape, "float32")
    assert smooth(counts, out=whole) is whole
    np.testing.assert_array_equal(whole, smooth(counts))
    with pytest.raises(clearshot.SettingError, match="out: the image is YX"):
        smooth(counts, out=np.zeros((3, 3), "float32"))
    with pytest.raises(clearshot.SettingError, match="floats are needed"):
        smooth(counts, out=np.zeros(counts.shape, "uint16"))


def test_pixels_without_a_measurement(counts):
    values = counts.astype("float32")
    bad = np.zeros(counts.shape, bool)
    bad[10, 20] = bad[30, 7] = True
    wrong = np.where(bad, 60000, values)
    marked = smooth(wrong, mask=bad)
    assert marked.max() < 2 * values.max()
    np.testing.assert_array_equal(smooth(np.ma.masked_array(wrong, bad)), marked)
    np.testing.assert_array_equal(smooth(np.stack([wrong, wrong]), axes="CYX", mask=bad)[1], marked)
    holes = np.where(bad, np.nan, values)
    assert np.isnan(smooth(holes)[bad]).all()
    with pytest.raises(clearshot.SettingError, match="mask"):
        smooth(wrong, mask=bad[:5])
