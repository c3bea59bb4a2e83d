"""Restores scientific images: removes noise and blur from images of microscopes, telescopes and other cameras, with a trained
diffusion model or by classical methods, and says how sure the result is.

>>> import numpy as np, clearshot
>>> rng = np.random.default_rng(1)
>>> light = 20 + 60 * (np.hypot(*np.mgrid[-24:24, -32:32]) < 12)             # a disc, in electrons
>>> counts = (100 + rng.poisson(light) / 0.5 + rng.normal(0, 3, light.shape)).astype("uint16")
>>> result = clearshot.restore(counts, camera={"gain": 0.5, "offset": 100, "read_noise": 1.5})
>>> result.image.shape, result.image.dtype.name
((48, 64), 'float32')
>>> 0.5 < result.report["chi2"] < 1.5                                         # about 1: only noise is left over
True
"""

from . import errors
from ._camera import Camera, CameraEstimate
from ._classical import deconvolve, denoise
from ._files import Image, read, write
from ._learned import Model, restore
from ._measuring import estimate_camera, measure
from ._native import VERSION as __version__
from ._restoring import Result, restore_file
from ._training import Adapted, Training, adapt, train
from .errors import (
    Cancelled,
    ClearshotError,
    ClearshotWarning,
    DeviceError,
    EstimateError,
    FileError,
    ImageError,
    ModelError,
    SettingError,
)

__all__ = [
    "Adapted",
    "Camera",
    "CameraEstimate",
    "Cancelled",
    "ClearshotError",
    "ClearshotWarning",
    "DeviceError",
    "EstimateError",
    "FileError",
    "Image",
    "ImageError",
    "Model",
    "ModelError",
    "Result",
    "SettingError",
    "Training",
    "__version__",
    "adapt",
    "deconvolve",
    "denoise",
    "errors",
    "estimate_camera",
    "measure",
    "read",
    "restore",
    "restore_file",
    "train",
    "write",
]
