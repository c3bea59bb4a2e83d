"""Arrays as temporary files, for functions that take file names."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ._files import Image, write


class Stage:
    """A folder for the temporary files of arrays."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._count = 0

    def name(self, image: Any, axes: str | None) -> str:
        """The path of a file unchanged; for an array, that of a new file."""
        if isinstance(image, (str, os.PathLike)):
            return os.fspath(image)
        if isinstance(image, Image) and image.item == 0:
            return image.path
        self._count += 1
        # Images that belong together are paired by name.
        folder = os.path.join(self._folder, str(self._count))
        os.mkdir(folder)
        path = os.path.join(folder, "array.tif")
        write(path, image, axes=axes)
        return path


    def names(self, images: Any, axes: str | None) -> list[str]:
        """The paths of one or several images."""
        several = images if isinstance(images, (list, tuple)) else [images]
        return [self.name(image, axes) for image in several]

    def maybe(self, image: Any, axes: str | None) -> str | None:
        """The path of an image, if there is one."""
        return None if image is None else self.name(image, axes)


@contextmanager
def stage() -> Iterator[Stage]:
    """A folder that is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="clearshot-") as folder:
        yield Stage(folder)
