"""Restoring by a trained model."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from . import _native
from ._arrays import PixelSize
from ._camera import Camera, CameraLike
from ._progress import Callback, Progress
from ._restoring import Result, point_spread, run, settings
from .errors import SettingError


class Model:
    """A trained model on a device. One serves any number of images, and stays compiled from one to the next of the same size.

    >>> import clearshot
    >>> model = clearshot.Model.builtin()
    >>> model.save("copy.clearshot")
    >>> clearshot.Model.load("copy.clearshot").name == model.name
    True
    """

    def __init__(self, restorer: _native.Restorer) -> None:
        self._native = restorer

    @classmethod
    def builtin(cls, device: str = "auto", threads: int | None = None) -> Model:
        """The built-in model."""
        return cls(_builtin(device, threads))

    @classmethod
    def load(cls, path: str | os.PathLike[str], device: str = "auto", threads: int | None = None) -> Model:
        """Reads a file NAME.clearshot, a folder (also of diffusers), an ONNX file or a BioImage Model Zoo package; `default` is the built-in model."""
        return cls(_native.Restorer.model(path, device, threads))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the model: one file if the name ends in `.clearshot`, otherwise a folder. Existing files are not replaced."""
        self._native.save(path)

    @property
    def name(self) -> str:
        """The model's name."""
        return self._native.name

    @property
    def about(self) -> dict[str, Any]:
        """The description of the model: its task, channels, axes, and the scale of its input."""
        found: dict[str, Any] = json.loads(self._native.about or "{}")
        return found

    def __repr__(self) -> str:
        return f"<clearshot.Model {self.name!r}>"


@lru_cache(maxsize=4)
def _builtin(device: str, threads: int | None) -> _native.Restorer:
    return _native.Restorer.model(None, device, threads)


def native(model: Model | str | os.PathLike[str] | None, device: str, threads: int | None) -> _native.Restorer:
    """The model that an argument refers to."""
    if model is None:
        return _builtin(device, threads)
    return (model if isinstance(model, Model) else Model.load(model, device, threads))._native


def learned_settings(
    *,
    camera: CameraLike = None,
    samples: int = 0,
    std: bool | None = None,
    chi2: bool = False,
    keep_samples: bool = False,
    psf: Any = None,
    planes: bool = False,
    context: Any = None,
    **others: Any,
) -> dict[str, Any]:
    """Settings of a model in the form of the extension module."""
    if samples == 0 and keep_samples:
        samples = 8
    return settings(
        camera=Camera.of(camera)._json(),
        samples=samples,
        std=samples >= 2 if std is None else std,
        chi2=chi2,
        save_samples=keep_samples,
        psf=point_spread(psf),
        stacks="planes" if planes else None,
        context=attended(context),
        **others,
    )


def attended(context: Any) -> Any:
    """A context in the form of the extension module: a path, or a shape and values."""
    if context is None or isinstance(context, (str, os.PathLike)):
        return context
    array = np.asarray(context, dtype=np.float32)
    if array.ndim != 2:
        raise SettingError(f"context: an array of [vectors, numbers] is needed, and it has the shape {array.shape}")
    return list(array.shape), array.reshape(-1).tolist()


def restore(
    image: Any,
    *,
    camera: CameraLike = None,
    samples: int = 0,
    model: Model | str | os.PathLike[str] | None = None,
    axes: str | None = None,
    pixel_size: PixelSize = None,
    unit: str = "um",
    std: bool | None = None,
    chi2: bool = False,
    keep_samples: bool = False,
    method: str = "auto",
    estimate: str | None = None,
    psf: Any = None,
    mask: Any = None,
    saturation: float | None = None,
    background: str | os.PathLike[str] | None = None,
    planes: bool = False,
    frames_alone: bool = False,
    colours_alone: bool = False,
    sampler: str = "dpmpp-2m",
    steps: int = 25,
    seed: int = 0,
    levels: str | None = None,
    begin: float | None = None,
    cascade: int = 1,
    inpaint: bool = False,
    classifier_free: float | None = None,
    class_name: str | int | None = None,
    context: Any = None,
    condition: Mapping[str, float] | None = None,
    gate: tuple[float, float] | None = None,
    guidance: str | None = None,
    law: str | None = None,
    clip: float | None = None,
    tile: int | None = None,
    batch: int | None = None,
    memory: int | None = None,
    max_memory: int | None = None,
    max_seconds: float | None = None,
    precision: str = "auto",
    scratch: str | os.PathLike[str] | None = None,
    out: Any = None,
    progress: Progress = False,
    callback: Callback | None = None,
    device: str = "auto",
    threads: int | None = None,
) -> Result:
    """Restores an image with a trained model and the physics of the camera.

    The values are bit-identical to those of `clearshot restore --float`. The interpreter's lock is released, and Ctrl-C stops the work.

    Args:
        image: numpy, xarray, dask, Zarr or HDF5 arrays of any type of numbers, an `Image`, or the path of a file. Arrays that are
            sliced when they are read are read by region.
        camera: A `Camera`, a result of `estimate_camera`, a dictionary (`gain` in electrons per count, `offset` in counts, `read_noise` in electrons,
            `background` in electrons), or the path of a file of `clearshot camera`. Default: estimated from the image.
        samples: Number of posterior samples; two or more give a standard deviation. Default: 0; 8 with `keep_samples`, and with `std` if
            the model does not state its error.
        model: A `Model`, or the path of one. Default: the built-in model.
        axes: A letter for each axis: `T` frames, `C` channels, `Z` planes, `Y` rows, `X` columns, `S` colours of a pixel. Default: `YX`
            for two axes, or as an xarray or a file names them.
        pixel_size: The pixel size: one number for Y and X, one for each axis in space, or a dictionary by letter. Default: unknown.
        unit: The unit of `pixel_size`: nm, um or mm. Default: um.
        std: Return the standard deviation of every pixel's error, as the model states it, or of the samples if there are any. Default:
            True with two or more samples.
        chi2: Return the map of chi2: about 1 where only noise was removed. Default: False.
        keep_samples: Return the samples, too. Default: False.
        method: `auto` mixes the model, BM3D, a Gaussian blur and the measurement by their errors, which are estimated from the image itself;
            `model`, `bm3d`, `gaussian` and `raw` use one of them. Default: auto.
        estimate: The model's `direct` estimate, or the mean of the `samples`. Default: direct.
        psf: The point-spread function to deconvolve: an array with its peak in the middle, standard deviations in pixels, a file, `gaussian:1.5px` or
            `airy:na=1.4,em=520nm` (with `pixel=65nm` if the image does not state it). Default: none.
        mask: An array, or the path of an image, that is not zero where pixels are invalid (dead, hot). Default: the mask of a masked array, otherwise none.
        saturation: Pixels at or above this value are saturated. Default: where values pile up at the top of the range.
        background: A file of frames without an object, in counts, whose mean is the background of each pixel; its uneven part is subtracted from the
            result. Default: the `background` of the camera.
        planes: Restore stacks plane by plane. Default: False.
        frames_alone: Restore each frame of a movie without its neighbours. Default: False.
        colours_alone: Restore the red, green and blue samples of colour images separately. Default: False.
        sampler: ddpm, ddim, dpmpp, dpmpp-2m, dpmpp-3m, dpmpp-2m-sde, euler or heun, with settings as in `ddim:eta=0.5`. Default: dpmpp-2m.
        steps: Steps of the sampler. Default: 25.
        seed: The seed of the samples. Default: 0.
        levels: The spacing of the noise levels of the steps: karras, trailing, ... Default: karras; trailing for models trained on timesteps.
        begin: Start samples from the measurement with this much noise added, in units in which the model's range is 2. Default: start from pure noise.
        cascade: Stages from coarse to fine: with 2, first samples of means over 2 x 2 pixels, then samples of the image, which
            start from them and keep these means. Default: 1.
        inpaint: Draw only invalid pixels, and keep the others. Default: False.
        classifier_free: The weight of classifier-free guidance, for models that were trained with `task.drop` or `task.drop_class`. Default: 1.
        class_name: The class of the image, by its name or number, for models that are conditioned on it (`clearshot info MODEL` lists them). Default:
            none, which models trained with `task.drop_class` can do without.
        context: The context that a model attends to: an array of [vectors, numbers], or the path of a `.npy` file. Default: none, as `class_name`.
        condition: Numbers of the camera that a model is conditioned on, in electrons, in place of the image's own: `scale`, `read_noise`,
            `background`. Default: those of the image.
        gate: Guide only while the noise of a sample, relative to the signal, lies between these. Default: always.
        guidance: Guide samples by this likelihood of the measurement: poisson-gaussian, shifted-poisson, gaussian, ... Default: none.
        law: Weight guidance by this law: proximal, sigma-squared, ... Default: proximal.
        clip: Limit each guidance correction to this root mean square, in units in which the model's range is 2. Default: no limit.
        tile: The side of a tile in pixels. The result does not depend on it. Default: chosen by memory.
        batch: Tiles at once. Default: as many as keep the device busy.
        memory: Bytes that the network may take on the device. Default: 512 MiB on a CPU, half of a GPU's memory.
        max_memory: Bytes of network and image together; what does not fit goes to temporary files. Default: 512 MiB for the network on a CPU, 768 MiB
            for the image.
        max_seconds: Take fewer steps than `steps` if the network would take longer than this; results then depend on the machine. Default: no limit.
        precision: fp32, tf32, bf16, fp16, fp8 (GPUs of compute capability 9.0), int8 (quantised models), or auto. Default: auto, which is fp32 on the CPU.
        scratch: A folder for temporary files of images that are larger than memory. Default: the system's.
        out: Write the restored image region by region to this array of floats (Zarr, HDF5, numpy.memmap), or a dictionary of
            such arrays with the keys `image`, `std`, `chi2`, `sample1`, ... Default: new arrays in memory.
        progress: Whether to show a progress bar (tqdm's if installed), or a function of the number of steps done and the total. Default: False.
        callback: A function of a kind of event (`progress`, `notice`, `plan`, `choice`) and a dictionary with details. An exception that it
            raises stops the work. Default: none.
        device: cpu, cuda, cuda:N, or auto (a GPU if there is one). Default: auto.
        threads: CPU threads. Default: one for each core.

    Raises:
        ImageError: If the image does not have the axes or numbers that are needed.
        SettingError: If an argument is invalid.
        EstimateError: If the camera is not given and cannot be estimated from the image.

    >>> import numpy as np, clearshot
    >>> counts = np.random.default_rng(0).poisson(30, (64, 64)).astype("uint16")
    >>> camera = clearshot.Camera(gain=1, offset=0, read_noise=0)
    >>> result = clearshot.restore(counts, camera=camera, samples=2, steps=4, chi2=True)
    >>> result.image.shape == result.std.shape == result.chi2.shape
    True
    """
    given = learned_settings(
        camera=camera,
        samples=samples,
        std=std,
        chi2=chi2,
        keep_samples=keep_samples,
        method=method,
        estimate=estimate,
        psf=psf,
        saturation=saturation,
        background=background,
        planes=planes,
        frames_alone=frames_alone,
        colours_alone=colours_alone,
        sampler=sampler,
        steps=steps,
        seed=seed,
        levels=levels,
        begin=begin,
        cascade=cascade,
        inpaint=inpaint,
        classifier_free=classifier_free,
        class_name=class_name,
        context=context,
        condition=None if condition is None else dict(condition),
        gate=gate,
        guidance=guidance,
        law=law,
        clip=clip,
        tile=tile,
        batch=batch,
        memory=memory,
        max_memory=max_memory,
        max_seconds=max_seconds,
        precision=precision,
        scratch=scratch,
    )
    return run(
        native(model, device, threads),
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
