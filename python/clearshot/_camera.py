"""The camera of an image, which determines its noise."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from .errors import SettingError


@dataclass(frozen=True)
class Camera:
    """Known parameters of a camera. Those that are `None` are estimated from each image.

    >>> from clearshot import Camera
    >>> Camera(gain=0.46, offset=100).read_noise is None
    True
    """

    #: Electrons per count.
    gain: float | None = None
    #: Counts without light.
    offset: float | None = None
    #: The standard deviation of the read noise in electrons.
    read_noise: float | None = None
    #: Mean electrons where there is no object.
    background: float | None = None
    #: How the noise of neighbouring pixels is correlated, as `clearshot camera` writes it.
    correlation: Any = None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Camera:
        """Reads a file as `clearshot camera` writes it: `{"gain": 0.46, "offset": 100, "read_noise": 1.6}`."""
        return cls.of(json.loads(Path(path).read_text()))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a file that `load` and the program's `--camera` read. An existing file is not replaced."""
        known = {key: value for key, value in asdict(self).items() if value is not None}
        with open(path, "x") as file:
            file.write(json.dumps(known, indent=2) + "\n")

    @classmethod
    def of(cls, camera: CameraLike) -> Camera:
        """A camera from a dictionary, the path of a file, a result of `estimate_camera`, or `None`."""
        if isinstance(camera, Camera):
            return camera
        if isinstance(camera, CameraEstimate):
            return camera.camera
        if camera is None:
            return cls()
        if isinstance(camera, (str, os.PathLike)):
            return cls.load(camera)
        if not isinstance(camera, Mapping):
            raise SettingError(f"camera: a dictionary, a Camera or the path of a file is needed, not {camera!r}")
        names = [field.name for field in fields(cls)]
        # What `clearshot camera` measured beside the numbers is for people.
        unknown = sorted(set(camera) - {*names, "measured"})
        if unknown:
            raise SettingError(f"camera: no such key {unknown[0]!r}; there are {', '.join(names)}")
        return cls(**{name: camera[name] for name in names if name in camera})

    def _json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True, repr=False)
class CameraEstimate:
    """A camera estimated from images. Notebooks show its figure."""

    #: The camera, for `camera=` of other functions.
    camera: Camera
    #: Every number with how sure it is, as `clearshot camera --json` prints it.
    measured: dict[str, Any]
    #: Variance against brightness, the correlation of the noise and what is clipped.
    svg: str

    @property
    def text(self) -> str:
        """The result as text."""
        fit = self.measured["fit"]
        (low, high), error = fit["gain_range"], fit["gain_error"]
        gain = f"gain {fit['gain']:.4g} +- {error:.2g} electrons per count" if error is not None else (
            f"gain not seen; assumed: {fit['gain']:.4g} electrons per count ({low:.4g} to {high:.4g} fit as well)"
        )
        said = [
            gain,
            f"offset {self.camera.offset:.4g} counts",
            f"read noise {self.camera.read_noise:.3g} electrons",
        ]
        return "\n".join(said)

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return f"<clearshot.CameraEstimate: {self.text}>".replace("\n", ", ")


CameraLike = Camera | CameraEstimate | Mapping[str, Any] | str | os.PathLike[str] | None
