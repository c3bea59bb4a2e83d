"""Restoring by classical methods, which need no training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import _native
from ._arrays import PixelSize
from ._camera import Camera, CameraLike
from ._progress import Callback, Progress
from ._restoring import Result, point_spread, run, settings
from .errors import SettingError


def denoise(
    image: Any,
    method: str = "bm3d",
    *,
    camera: CameraLike = None,
    noise: float | None = None,
    parameters: Mapping[str, float] | None = None,
    volume: bool = False,
    axes: str | None = None,
    mask: Any = None,
    saturation: float | None = None,
    tile: int | None = None,
    out: Any = None,
    progress: Progress = False,
    callback: Callback | None = None,
) -> Result:
    """Removes noise from an image without a trained model. The values are bit-identical to those of `clearshot denoise --float`.

    Args:
        image: As in `restore`.
        method: gaussian, median, wiener, nlm, tv or bm3d. Default: bm3d.
        camera: What is known of the camera; where a gain is given, what else is not is zero. Default: the noise is estimated from
            the image.
        noise: The standard deviation of the noise where it is the same everywhere, in the image's unit. Default: the noise is a camera's.
        parameters: Settings of the method, as `clearshot denoise --list` shows them. Default: the usual ones.
        volume: Along Z, Y and X together. Default: plane by plane.
        axes, mask, saturation, out, progress, callback: As in `restore`.
        tile: The side of the pieces that large images are cut into. Default: chosen by memory.

    >>> import numpy as np, clearshot
    >>> noisy = 100 + np.random.default_rng(0).normal(0, 5, (64, 64)).astype("float32")
    >>> clean = clearshot.denoise(noisy, noise=5).image
    >>> bool(clean.std() < 1)
    True
    """
    if noise is not None and camera is not None:
        raise SettingError("noise: is in place of a camera; give one of them")
    changes = [(key, str(value)) for key, value in (parameters or {}).items()]
    given = settings(
        camera=Camera.of(camera)._json(),
        noise=noise,
        stacks="volumes" if volume else "planes",
        saturation=saturation,
        tile=tile,
    )
    return run(
        _native.Restorer.denoiser(method, changes),
        image,
        given,
        axes=axes,
        pixel_size=None,
        unit="um",
        mask=mask,
        out=out,
        progress=progress,
        callback=callback,
    )


def deconvolve(
    image: Any,
    psf: Any,
    method: str = "richardson-lucy",
    *,
    camera: CameraLike = None,
    background: float = 0.0,
    tv: float = 0.0,
    steps: int | None = None,
    balance: float = 0.01,
    volume: bool = False,
    axes: str | None = None,
    pixel_size: PixelSize = None,
    unit: str = "um",
    mask: Any = None,
    saturation: float | None = None,
    tile: int | None = None,
    out: Any = None,
    progress: Progress = False,
    callback: Callback | None = None,
) -> Result:
    """Removes blur from an image without a trained model. The values are bit-identical to those of `clearshot deconvolve --float`.

    Args:
        image: As in `restore`.
        psf: The point-spread function: an array with its peak in the middle, standard deviations in pixels (one, or one for each axis),
            a file, `gaussian:1.5px` or `airy:na=1.4,em=520nm`, which needs the size of pixels.
        method: richardson-lucy or wiener. Default: richardson-lucy.
        camera: What is known of the camera, as in `denoise`.
        background: Mean electrons of the background, which is left out of the result. Default: 0.
        tv: The strength of the total-variation term; 0.002 to 0.02 where noise is strong. Default: 0.
        steps: So many steps everywhere. Default: until the predicted error is least.
        balance: Wiener's filter: the power of the noise over that of the image. Default: 0.01.
        volume: Along Z, Y and X together. Default: plane by plane.
        axes, pixel_size, unit, mask, saturation, out, progress, callback: As in `restore`.
        tile: The side of the pieces that large images are cut into. Default: chosen by memory.

    >>> import numpy as np, clearshot
    >>> blurred = np.zeros((48, 48), "float32")
    >>> blurred[20:28, 20:28] = 50
    >>> sharp = clearshot.deconvolve(blurred, 1.5, camera={"gain": 1}, steps=5).image
    >>> sharp.shape
    (48, 48)
    """
    if method == "richardson-lucy":
        restorer = _native.Restorer.richardson_lucy(background, tv, steps)
    elif method == "wiener":
        restorer = _native.Restorer.wiener(balance)
    else:
        raise SettingError(f"method: {method!r} is neither richardson-lucy nor wiener")
    given = settings(
        camera=Camera.of(camera)._json(),
        psf=point_spread(psf),
        stacks="volumes" if volume else "planes",
        saturation=saturation,
        tile=tile,
    )
    return run(
        restorer,
        image,
        given,
        axes=axes,
        pixel_size=pixel_size,
        unit=unit,
        mask=mask,
        out=out,
        progress=progress,
        callback=callback,
    )
