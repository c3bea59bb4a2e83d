"""Restoring with any method: from an image to a `Result`, or from a file to a file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from . import _native
from ._arrays import PixelSize, Turned, back, chunks, subject
from ._progress import Callback, Listener, Progress
from .errors import SettingError

if TYPE_CHECKING:
    from ._learned import Model


@dataclass(frozen=True, repr=False)
class Result:
    """A restored image with its maps and report. Arrays are of the same kind as the input, in its unit, as 32-bit floats."""

    #: The restored image. A pixel that was not finite is NaN.
    image: Any
    #: The standard deviation of every pixel's error, if it was asked for or there are two samples at least.
    std: Any = None
    #: The map of chi2, if it was asked for: about 1 where only noise is left over.
    chi2: Any = None
    #: The posterior samples, if they were asked for.
    samples: list[Any] = field(default_factory=list)
    #: Camera, chi2, counts, what it was restored by, what there is to know (`notices`), the plan, and the time.
    report: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        parts = [f"image {getattr(self.image, 'shape', '?')}"]
        parts += [name for name in ("std", "chi2") if getattr(self, name) is not None]
        parts += [f"{len(self.samples)} samples"] if self.samples else []
        parts += [f"chi2 {self.report['chi2']:.2f}"] if self.report.get("chi2") is not None else []
        return f"<clearshot.Result: {', '.join(parts)}>"


class _Place:
    """A destination for values, in the form of the extension module."""

    def __init__(self, name: str, target: Any) -> None:
        self.name, self.target = name, target

    def open(self, shape: list[int], axes: str) -> list[int]:
        if tuple(self.target.shape) != tuple(shape):
            raise SettingError(f"out: the {self.name} is {axes} {tuple(shape)}, and a place of {self.target.shape} was given")
        if np.dtype(self.target.dtype).kind != "f":
            raise SettingError(f"out: a place of {self.target.dtype} was given; floats are needed, float32 for example")
        return chunks(self.target)

    def put(self, start: list[int], stop: list[int], values: npt.NDArray[np.uint8]) -> None:
        size = [b - a for a, b in zip(start, stop, strict=True)]
        region = tuple(slice(a, b) for a, b in zip(start, stop, strict=True))
        self.target[region] = values.view(np.float32).reshape(size)


def run(
    restorer: _native.Restorer,
    image: Any,
    given: dict[str, Any],
    *,
    axes: str | None,
    pixel_size: PixelSize,
    unit: str,
    mask: Any,
    out: Any,
    progress: Progress,
    callback: Callback | None,
) -> Result:
    """Restores any supported object."""
    what = subject(image, axes, pixel_size, unit)
    marks = what.mask
    if isinstance(mask, (str, os.PathLike)):
        given["mask"] = os.fspath(mask)
    elif mask is not None:
        marks = _marks(mask, what.shape, marks)
    targets = out if isinstance(out, Mapping) else {} if out is None else {"image": out}
    places = {name: _Place(name, Turned(to, what.order) if what.order else to) for name, to in targets.items()}
    if marks is not None and what.order is not None:
        marks = marks.transpose(what.order)
    flat = None if marks is None else np.ascontiguousarray(marks).reshape(-1)
    with Listener("restoring", progress, callback) as listener:
        maps, shape, _, report = restorer.restore(what.native, what.about, flat, given, places, listener)

    def shaped(name: str) -> Any:
        if name in targets:
            return targets[name]
        return what.wrap(back(maps[name].reshape(shape), what.order)) if name in maps else None

    names = sorted((name for name in {*maps, *targets} if name.startswith("sample")), key=lambda name: int(name[6:]))
    return Result(
        shaped("image"),
        shaped("std"),
        shaped("chi2"),
        [shaped(name) for name in names],
        {**json.loads(report), "notices": listener.notices, "plan": listener.plan},
    )


def _marks(mask: Any, shape: tuple[int, ...], masked: npt.NDArray[np.bool_] | None) -> npt.NDArray[np.bool_]:
    marks = np.asarray(mask) != 0
    try:
        marks = np.broadcast_to(marks, shape)
    except ValueError:
        raise SettingError(f"mask: {marks.shape} does not fit an image of {shape}") from None
    return marks if masked is None else marks | masked


def settings(**given: Any) -> dict[str, Any]:
    """The given settings; the others keep the library's defaults."""
    return {key: value for key, value in given.items() if value is not None}


def point_spread(psf: Any) -> Any:
    """A point-spread function in the form of the extension module: a text, widths, or a shape and values."""
    if psf is None or isinstance(psf, str):
        return psf
    if isinstance(psf, os.PathLike):
        return os.fspath(psf)
    array = np.asarray(psf, dtype=np.float64)
    if array.ndim <= 1:
        return [float(width) for width in np.atleast_1d(array)]
    return list(array.shape), array.reshape(-1).tolist()


def restore_file(
    input: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    model: Model | str | os.PathLike[str] | None = None,
    camera: Any = None,
    samples: int = 0,
    std: bool = False,
    chi2: bool = False,
    keep_samples: bool = False,
    method: str = "auto",
    item: str | None = None,
    psf: Any = None,
    float: bool = False,
    replace: bool = False,
    progress: Progress = False,
    callback: Callback | None = None,
    device: str = "auto",
    threads: int | None = None,
    **others: Any,
) -> dict[str, Any]:
    """Restores all images of a file into another file, like `clearshot restore`, with its metadata and a record of how it was made.

    Args:
        input: The file, or the address of a Zarr.
        output: The file to make, whose ending names the format.
        model: A `Model`, or the path of one. Default: the built-in model.
        camera: The camera, as far as known. Default: estimated from each image.
        samples: Number of posterior samples; two or more give a standard deviation. Default: 0; 8 with `keep_samples`, and with `std` if
            the model does not state its error.
        std: Write the standard deviation of every pixel's error too, as OUT_std: as the model states it, or of the samples. Default: False.
        chi2: Write a map of chi2 too, as OUT_chi2. Default: False.
        keep_samples: Write the samples too, as OUT_sample1 and so on. Default: False.
        method: `auto`, or restore by `model`, `bm3d`, `gaussian` or `raw` alone. Default: auto.
        item: Restore this image of a file that has several. Default: all.
        psf: The blur to take off, as in `restore`. Default: none.
        float: Write 32-bit floats in place of the input's type. Default: False.
        replace: Replace files that are there already. Default: False.
        progress, callback, device, threads: As in `restore`.
        others: Other settings of `restore`, and `save_mask` (write OUT_mask), `picture` (write OUT.png) and, beside `max_seconds`, `allow_binning` (where there is
            no time for every pixel, restore means over 2 x 2, 4 x 4 or 8 x 8 of them into a file with fewer and larger pixels).

    Returns:
        The `input` and a report for each of its `images`.

    >>> import numpy as np, clearshot
    >>> clearshot.write("noisy.tif", np.random.default_rng(0).poisson(40, (64, 64)).astype("uint16"))
    >>> camera = {"gain": 1, "offset": 0, "read_noise": 0}
    >>> report = clearshot.restore_file("noisy.tif", "clean.tif", camera=camera)
    >>> report["images"][0]["status"], clearshot.read("clean.tif").dtype.name
    ('restored', 'uint16')
    """
    from ._learned import learned_settings, native

    given = learned_settings(
        camera=camera, samples=samples, std=std, chi2=chi2, keep_samples=keep_samples, method=method, psf=psf, **others
    )
    given |= settings(item=item, float=float, replace=replace)
    with Listener(os.path.basename(os.fspath(input)), progress, callback) as listener:
        report = _native.restore_file(native(model, device, threads), input, output, given, listener)
    return {**json.loads(report), "notices": listener.notices, "plan": listener.plan}
