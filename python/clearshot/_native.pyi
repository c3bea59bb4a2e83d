"""The extension module; see python/src. Use the package's functions."""

from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Protocol, final

import numpy as np
import numpy.typing as npt

VERSION: str
EXTENSIONS: tuple[str, ...]

class _About(Protocol):
    @property
    def axes(self) -> str: ...
    @property
    def steps(self) -> Sequence[float | None]: ...
    @property
    def unit(self) -> str: ...
    @property
    def name(self) -> str: ...

_Hear = Callable[[str, str], object]
_Subject = MemoryArray | LazyArray | File
_Path = str | PathLike[str]

@final
class MemoryArray:
    def __new__(cls, array: npt.NDArray[Any]) -> MemoryArray: ...

@final
class LazyArray:
    def __new__(
        cls,
        read: Callable[[list[int], list[int]], npt.NDArray[Any]],
        shape: Sequence[int],
        chunk: Sequence[int],
        dtype: str,
    ) -> LazyArray: ...

@final
class File:
    def __new__(cls, path: _Path, item: str | None) -> File: ...
    def about(self) -> str: ...
    def read(self, from_: Sequence[int], to: Sequence[int], level: int) -> npt.NDArray[np.uint8]: ...
    def statistics(self) -> str: ...
    @property
    def shape(self) -> list[int]: ...
    @property
    def chunk(self) -> list[int]: ...

@final
class Restorer:
    @staticmethod
    def model(path: _Path | None, device_name: str, threads: int | None) -> Restorer: ...
    @staticmethod
    def denoiser(name: str, changes: Sequence[tuple[str, str]]) -> Restorer: ...
    @staticmethod
    def richardson_lucy(background: float, total_variation: float, steps: int | None) -> Restorer: ...
    @staticmethod
    def wiener(balance: float) -> Restorer: ...
    @property
    def name(self) -> str: ...
    @property
    def about(self) -> str | None: ...
    def save(self, path: _Path) -> None: ...
    def restore(
        self,
        subject: _Subject,
        about: _About,
        mask: npt.NDArray[np.bool_] | None,
        given: dict[str, Any],
        places: dict[str, Any],
        hear: _Hear,
    ) -> tuple[dict[str, npt.NDArray[np.float32]], list[int], str, str]: ...

def restore_file(
    restorer: Restorer, input: _Path, output: _Path, given: dict[str, Any], hear: _Hear
) -> str: ...
def write(
    path: _Path,
    subject: _Subject,
    about: _About,
    channels: Sequence[str],
    like: File | None,
    replace: bool,
    hear: _Hear,
) -> None: ...
def train(
    overrides: Sequence[str],
    out: _Path | None,
    resume: bool,
    configs: _Path | None,
    stop_at: int | None,
    hear: _Hear,
) -> tuple[Path, Path | None, str]: ...
def adapt(
    images: Sequence[_Path],
    start: Restorer,
    seconds: float | None,
    known: str,
    device_name: str,
    overrides: Sequence[str],
    folder: _Path | None,
    anyway: bool,
    source: str,
    hear: _Hear,
) -> tuple[Restorer, bool, str, str]: ...
def measure(images: str, given: dict[str, Any], hear: _Hear) -> str: ...
def estimate_camera(
    images: Sequence[str],
    kind: str,
    axis: str | None,
    known: str,
    saturation: float | None,
    item: str | None,
    darks: Sequence[str],
    hear: _Hear,
) -> tuple[str, str]: ...
def program(arguments: Sequence[str]) -> int: ...
