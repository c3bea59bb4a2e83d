"""Training: runs from a configuration, and models fine-tuned on noisy images."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from . import _native
from ._camera import Camera, CameraLike
from ._learned import Model, native
from ._progress import Callback, Listener, Progress
from ._staged import stage


@dataclass(frozen=True)
class Training:
    """The result of a training run."""

    #: The run's folder: configuration, checkpoints, records.
    folder: Path
    #: The file of the model with the best validation, where there was one.
    model_path: Path | None
    #: Why it ended (`finished`, `early stop`, `interrupted`), iterations, seconds, scores in dB.
    report: dict[str, Any]

    @property
    def model(self) -> Model | None:
        """The model with the best validation."""
        return None if self.model_path is None else Model.load(self.model_path)


def train(
    overrides: Sequence[str] = (),
    *,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    configs: str | os.PathLike[str] | None = None,
    stop_at: int | None = None,
    progress: Progress = False,
    callback: Callback | None = None,
) -> Training:
    """Trains a model from a configuration, like `clearshot train`, or resumes a run.

    Ctrl-C, or an exception of a callback, ends the run at its next iteration with a checkpoint, from which `resume=True` continues.

    Args:
        overrides: The configuration: `experiment=NAME`, `GROUP=OPTION`, `KEY=VALUE` or the path of a YAML file, one after another. See
            docs/guide-training.md and docs/reference/config.md.
        out: The run's folder. Default: `runs` and the model's name.
        resume: Resume the run in `out` with its own configuration and the overrides. Default: False.
        configs: A folder of configuration groups that takes precedence over the built-in ones. Default: none.
        stop_at: Stop after this many iterations in total, to be resumed later. Default: none.
        progress: As in `restore`; steps are iterations, and their total is 0 while it is unknown. Default: False.
        callback: As in `restore`; events are `training` (how it goes), `note`, `warning` and `record`. Default: none.
    """
    with Listener("training", progress, callback) as listener:
        folder, model, report = _native.train(list(overrides), out, resume, configs, stop_at, listener)
    return Training(folder, model, json.loads(report))


@dataclass(frozen=True)
class Adapted:
    """The result of fine-tuning a model."""

    #: The model to restore with: the fine-tuned one if it was kept, otherwise the initial one.
    model: Model
    #: Whether the gain of the fine-tuned model is clear.
    kept: bool
    #: The result as text.
    text: str
    #: The same as numbers: the estimated gain in dB and its error, iterations, seconds, why it was refused.
    report: dict[str, Any]


def adapt(
    images: Any,
    *,
    model: Model | str | os.PathLike[str] | None = None,
    seconds: float | None = None,
    axes: str | None = None,
    camera: CameraLike = None,
    overrides: Sequence[str] = (),
    folder: str | os.PathLike[str] | None = None,
    anyway: bool = False,
    source: Literal["auto", "repeats", "noise"] = "auto",
    device: str = "auto",
    progress: Progress = False,
    callback: Callback | None = None,
) -> Adapted:
    """Fine-tunes a model on noisy images without ground truth, and keeps it only if its estimated gain is clear (experimental).

    Args:
        images: An image (an array, an `Image`, or the path of a file), or a list of them.
        model: The initial model. Default: the built-in model.
        seconds: Seconds of training. Default: 300 on the CPU, 60 on a GPU.
        axes: A letter for each axis of arrays, as in `restore`. Default: `YX`, or as an array or file says.
        camera: The camera, as far as known. Default: estimated from each image.
        overrides: Keys of the training, as in `train`. Default: none.
        folder: Keep the run's folder here. Default: it is removed at the end.
        anyway: Train even if the gain cannot be estimated. Default: False.
        source: What to learn from, as `--from` of the program: `repeats`, several exposures of the same fields (frames along T, or files whose names
            differ in their last number); `noise`, single images, by splitting their electrons; or `auto`, repeats if most of the images are such,
            otherwise noise. Default: `auto`.
        device, progress, callback: As in `restore` and `train`.
    """
    known = Camera.of(camera)._json()
    with stage() as staged, Listener("adapting", progress, callback) as listener:
        names = staged.names(images, axes)
        fitted, kept, report, text = _native.adapt(
            names, native(model, device, None), seconds, known, device, list(overrides), folder, anyway, source, listener
        )
    return Adapted(Model(fitted), kept, text, json.loads(report))
