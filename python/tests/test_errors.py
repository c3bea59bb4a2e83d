"""What is wrong is said, by exceptions that callers can tell apart."""

import numpy as np
import pytest

import clearshot
from clearshot import errors


def test_one_hierarchy():
    for name in errors.__all__:
        kind = getattr(errors, name)
        assert issubclass(kind, UserWarning if name == "ClearshotWarning" else clearshot.ClearshotError)
        assert getattr(clearshot, name) is kind
    assert issubclass(clearshot.FileError, OSError) and issubclass(clearshot.SettingError, ValueError)


CASES = [
    ({"camera": {"gian": 1}}, "SettingError", "no such key 'gian'"),
    ({"camera": {"gain": "much"}}, "SettingError", "a number is needed"),
    ({"camera": {"gain": -1}}, "SettingError", "gain"),
    ({"camera": 0.5}, "SettingError", "a dictionary"),
    ({"method": "magic"}, "SettingError", "not one of auto, model"),
    ({"samples": -1}, "SettingError", "samples"),
    ({"samples": 1, "std": True}, "SettingError", "std: one sample has no standard deviation"),
    ({"sampler": "none", "samples": 2}, "ClearshotError", "none"),
    ({"psf": "airy:na=1.4"}, "SettingError", "wavelength"),
    ({"psf": "no-such-file.tif"}, "SettingError", "no such file"),
    ({"psf": np.ones((3, 3, 3))}, "ClearshotError", "PSF|axes"),
    ({"precision": "fp7"}, "SettingError", "precision"),
    ({"device": "tpu"}, "DeviceError", "no device `tpu`"),
    ({"device": "cuda:99"}, "DeviceError", ""),
    ({"model": "no-such.clearshot"}, "ModelError", "no-such"),
    ({"mask": "no-such.tif"}, "FileError", "no-such.tif"),
    ({"axes": "ZYX"}, "ImageError", "one letter"),
    ({"pixel_size": (1, 2, 3)}, "SettingError", "pixel_size: 3 numbers for the axes Y, X"),
    ({"pixel_size": {"Z": 1}}, "SettingError", "no axis Z"),
]


@pytest.mark.parametrize(("arguments", "kind", "text"), CASES, ids=lambda value: str(value)[:40])
def test_settings_that_are_refused(arguments, kind, text, counts):
    known = {"camera": {"gain": 0.5, "offset": 100, "read_noise": 1.5}}
    with pytest.raises(getattr(clearshot, kind), match=text):
        clearshot.restore(counts, **{**known, **arguments})


def test_files_that_are_refused(tmp_path):
    with pytest.raises(clearshot.FileError, match="no such file"):
        clearshot.read(tmp_path / "none.tif")
    (tmp_path / "text.tif").write_text("not an image")
    with pytest.raises(clearshot.FileError):
        clearshot.restore(tmp_path / "text.tif")
    with pytest.raises(clearshot.FileError):
        clearshot.write(tmp_path / "a.xyz", np.zeros((4, 4)))


def test_gain_that_is_not_seen_is_said():
    even = np.random.default_rng(0).poisson(30, (4, 64, 64)).astype("uint16")
    found = clearshot.estimate_camera(even, kind="repeats", axes="TYX", camera={"offset": 0})
    assert "gain not seen; assumed" in found.text
    # As it is, for `camera=`.
    assert clearshot.Camera.of(found) == found.camera


def test_images_that_do_not_tell(counts):
    with pytest.raises(clearshot.EstimateError, match="cannot be estimated"):
        clearshot.restore(np.full((64, 64), 7, "uint16"))
    with pytest.raises(clearshot.ClearshotError):
        clearshot.restore(np.zeros((0, 8), "uint16"), camera={"gain": 1, "offset": 0, "read_noise": 0})
    with pytest.raises(TypeError):
        clearshot.restore(counts, gain=1)
