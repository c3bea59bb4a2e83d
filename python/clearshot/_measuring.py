"""Scores of images, and measuring cameras."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from . import _native
from ._camera import Camera, CameraEstimate, CameraLike
from ._progress import Listener
from ._restoring import settings
from ._staged import stage


def measure(
    image: Any,
    truth: Any = None,
    metrics: Sequence[str] | None = None,
    *,
    axes: str | None = None,
    range: float | None = None,
    measured: Any = None,
    camera: CameraLike = None,
    noise: float | None = None,
    labels: bool = False,
    mask: Any = None,
    crop: int = 0,
    volume: bool = False,
) -> dict[str, float]:
    """Scores an image against the truth, against the measurement that it was restored from, or alone, like `clearshot measure`.

    Args:
        image: An array, an `Image`, or the path of a file.
        truth: The true image. Default: none.
        metrics: Names of metrics (see docs/measure.md); `all` for every one whose inputs are given. Default: the usual ones.
        axes: A letter for each axis, as in `restore`. Default: `YX`, or as the array or file says.
        range: The largest less the smallest value that an image can have, for PSNR and SSIM. Default: 255 for true images of 8
            bits, otherwise the maximum minus the minimum of each true image.
        measured: The measurement that the image was restored from, for tests of residuals. Default: none.
        camera: What is known of the measurement's camera. Default: estimated.
        noise: One standard deviation of the measurement's noise, in the place of a camera. Default: none.
        labels: Whether images are labels of objects, 0 being background. Default: False.
        mask: An image whose pixels other than zero are left out. Default: none.
        crop: Pixels that are left out at each edge. Default: 0.
        volume: Score volumes along Z, Y and X. Default: plane by plane.

    Returns:
        The scores by the metrics' names.

    >>> import numpy as np, clearshot
    >>> truth = np.random.default_rng(0).random((64, 64))
    >>> round(clearshot.measure(truth + 0.1, truth, ["psnr"], range=1)["psnr"], 6)
    20.0
    """
    with stage() as staged:
        given = settings(
            truth=staged.maybe(truth, axes),
            metrics=None if metrics is None else list(metrics),
            range=range,
            measured=staged.maybe(measured, axes),
            camera=Camera.of(camera)._json(),
            noise=noise,
            labels=labels,
            mask=staged.maybe(mask, axes),
            crop=crop,
            volume=volume,
        )
        [scored] = json.loads(_native.measure(staged.name(image, axes), given, Listener("measuring")))
    scores: dict[str, float] = {key: float("nan") if value is None else value for key, value in scored["scores"].items()}
    return scores


def estimate_camera(
    images: Any,
    *,
    kind: str = "single",
    axes: str | None = None,
    camera: CameraLike = None,
    darks: Any = (),
    axis: str | None = None,
    saturation: float | None = None,
    item: str | None = None,
) -> CameraEstimate:
    """Measures a camera's gain, offset, read noise and noise correlation from its own images, like `clearshot camera`.

    Args:
        images: An image (an array, an `Image`, or the path of a file), or a list of them.
        kind: What they show: `single` images, whose noise is separated from their structure; `repeats` of one scene, as several images or along an axis;
            a `movie`; or `flats`, frames of even light, two or more of each brightness. Default: single.
        axes: A letter for each axis of arrays, as in `restore`. Default: `YX`, or as an array or file says.
        camera: What is known already. Default: nothing.
        darks: Frames without light, two or more, as images are given. Default: none.
        axis: Along which axis frames lie. Default: T.
        saturation: Pixels at or above this value are saturated. Default: where values pile up at the top of the range.
        item: Which image of files that have several. Default: the first.

    Raises:
        EstimateError: If the images do not tell.

    >>> import numpy as np, clearshot
    >>> light = 40 + 300 * np.linspace(0, 1, 128)[:, None] * np.ones(128)
    >>> counts = 100 + np.random.default_rng(0).poisson(light, (8, 128, 128)) / 0.5
    >>> found = clearshot.estimate_camera(counts.astype("uint16"), kind="repeats", axes="TYX", camera={"offset": 100})
    >>> abs(found.camera.gain - 0.5) < 0.05
    True
    """
    with stage() as staged:
        names, dark = staged.names(images, axes), staged.names(darks, axes)
        known, listener = Camera.of(camera)._json(), Listener("measuring")
        record, svg = _native.estimate_camera(names, kind, axis, known, saturation, item, dark, listener)
    found = json.loads(record)
    return CameraEstimate(Camera.of(found), found["measured"], svg)
