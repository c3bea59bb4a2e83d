"""Arrays of any kind as the extension module reads them, and results as arrays of the same kind.

numpy's memory is read where it lies, whatever its strides. Objects that are sliced when they are read (dask, Zarr, HDF5) are read by
region and never whole. xarray's dimensions name the axes, and results keep its names, coordinates and attributes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ._files import Image, read
from ._native import File, LazyArray, MemoryArray
from .errors import ImageError, SettingError

#: Sizes of pixels: one for Y and X, one for each axis of Z, Y and X that there is, or by the axes' letters.
PixelSize = float | Sequence[float] | Mapping[str, float] | None

_LETTERS = {
    "T": ("t", "time", "frame", "frames"),
    "C": ("c", "ch", "channel", "channels", "band", "wavelength"),
    "Z": ("z", "depth", "plane", "slice"),
    "Y": ("y", "row", "rows"),
    "X": ("x", "col", "column", "columns"),
    "S": ("s", "rgb", "rgba", "sample", "samples", "color", "colour"),
}


@dataclass(frozen=True)
class About:
    """The metadata of an array; the extension module reads these names."""

    axes: str
    steps: list[float | None]
    unit: str
    name: str = "array"


@dataclass(frozen=True)
class Subject:
    """An image to be restored or written."""

    native: MemoryArray | LazyArray | File
    about: About
    shape: tuple[int, ...]
    #: Pixels without a measurement, of a masked array.
    mask: npt.NDArray[np.bool_] | None
    #: Gives values of a shape as an array of the kind that came in.
    wrap: Callable[[npt.NDArray[Any]], Any]
    #: Where the axes that are restored lie in what came in; `None` if they come in their order.
    order: list[int] | None = None


def subject(array: Any, axes: str | None = None, pixel_size: PixelSize = None, unit: str = "um") -> Subject:
    """Converts any supported object to an image."""
    if isinstance(array, (str, os.PathLike)):
        array = read(array)
    if isinstance(array, Image):
        if axes is not None and axes.upper() != array.axes:
            raise SettingError(f"axes: the file says {array.axes}; read it with numpy.asarray to call its axes otherwise")
        return Subject(array._file, About(array.axes, [None] * array.ndim, unit), array.shape, None, _plain)
    wrap: Callable[[npt.NDArray[Any]], Any] = _plain
    steps: dict[str, float] = {}
    if hasattr(array, "dims") and hasattr(array, "coords") and hasattr(array, "data"):
        axes = axes or _axes_of(array.dims)
        steps, found = _steps_of(array, axes)
        unit = found or unit
        wrap = _named(array)
        array = array.data
    mask = None
    if isinstance(array, np.ma.MaskedArray):
        mask, array = np.ma.getmaskarray(array), array.data
    if not hasattr(array, "shape"):
        array = np.asarray(array)
    shape = tuple(array.shape)
    axes = _axes(axes, shape)
    steps |= _sizes(pixel_size, axes)
    order = _order(axes) if len(axes) == len(shape) else None
    if order is not None:
        array, axes = Turned(array, order), "".join(axes[i] for i in order)
    about = About(axes, [steps.get(letter) for letter in axes], unit)
    return Subject(_readable(array), about, shape, mask, wrap, order)


def _order(axes: str) -> list[int] | None:
    """The axes with Z, Y and X in this order, each where one of them was; `None` if they are."""
    places = [i for i, letter in enumerate(axes) if letter in "ZYX"]
    order = list(range(len(axes)))
    for place, index in zip(places, sorted(places, key=lambda i: "ZYX".index(axes[i])), strict=True):
        order[place] = index
    return None if order == sorted(order) else order


class Turned:
    """An array with its axes in another order, which reads and writes regions of it."""

    def __init__(self, array: Any, order: list[int]) -> None:
        self._array, self._order = array, order
        self.dtype = array.dtype
        self.shape = tuple(array.shape[i] for i in order)
        self.chunks = tuple(chunks(array)[i] for i in order)

    def _key(self, key: tuple[slice, ...]) -> tuple[slice, ...]:
        return tuple(key[self._order.index(i)] for i in range(len(key)))

    def __getitem__(self, key: tuple[slice, ...]) -> npt.NDArray[Any]:
        return np.asarray(self._array[self._key(key)]).transpose(self._order)

    def __setitem__(self, key: tuple[slice, ...], values: npt.NDArray[Any]) -> None:
        self._array[self._key(key)] = back(values, self._order)


def back(values: npt.NDArray[Any], order: list[int] | None) -> npt.NDArray[Any]:
    """Values with their axes in the original order."""
    return values if order is None else values.transpose(np.argsort(order))


def _plain(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return values


def _named(array: Any) -> Callable[[npt.NDArray[Any]], Any]:
    def wrap(values: npt.NDArray[Any]) -> Any:
        # A model may make other channels than there were, and then coordinates do not fit.
        return array.copy(data=values) if values.shape == array.shape else values

    return wrap


def _readable(array: Any) -> MemoryArray | LazyArray:
    if not isinstance(array, np.ndarray):
        try:
            lazy = all(hasattr(array, name) for name in ("shape", "dtype", "__getitem__")) and np.dtype(array.dtype)
        except TypeError:
            lazy = False
        if lazy:
            return _lazy(array, np.dtype(array.dtype))
        array = np.asarray(array)
    if array.dtype == bool:
        array = array.view(np.uint8)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return MemoryArray(array)


def _lazy(array: Any, dtype: np.dtype[Any]) -> LazyArray:
    dtype = np.dtype(np.uint8) if dtype == bool else dtype.newbyteorder("=")

    def fetch(start: list[int], stop: list[int]) -> npt.NDArray[Any]:
        region = array[tuple(slice(a, b) for a, b in zip(start, stop, strict=True))]
        return np.ascontiguousarray(np.asarray(region), dtype=dtype)

    return LazyArray(fetch, array.shape, chunks(array), dtype.name)


def chunks(array: Any) -> list[int]:
    """The preferred block size for reading or writing an array."""
    # dask has one size for each chunk in `chunks`, and the largest of each axis in `chunksize`.
    found = getattr(array, "chunksize", None) or getattr(array, "chunks", None)
    if found is not None and len(found) == len(array.shape) and all(isinstance(n, (int, np.integer)) for n in found):
        return [int(n) for n in found]
    # Rows of a plane at a time, about a megabyte.
    sizes, left = [1] * len(array.shape), max(1, (1 << 20) // max(1, np.dtype(array.dtype).itemsize))
    for axis in reversed(range(len(array.shape))):
        sizes[axis] = max(1, min(array.shape[axis], left))
        left //= sizes[axis]
        if sizes[axis] < array.shape[axis]:
            break
    return sizes


def _axes(axes: str | None, shape: tuple[int, ...]) -> str:
    if axes is not None:
        return axes.upper()
    if len(shape) == 2:
        return "YX"
    raise ImageError(
        f"an array of shape {shape}: say what its axes are, axes='ZYX' (a stack), 'TYX' (a movie), 'CYX' (channels) or "
        "'YXS' (colours of a pixel), for example"
    )


def _axes_of(dims: Sequence[Any]) -> str:
    by_name = {name: letter for letter, names in _LETTERS.items() for name in names}
    letters = [by_name.get(str(dim).lower()) for dim in dims]
    if None in letters:
        unknown = dims[letters.index(None)]
        raise ImageError(f"dimension {unknown!r}: name its axes by a letter each, axes='TCZYX' for example")
    return "".join(letter for letter in letters if letter)


def _steps_of(array: Any, axes: str) -> tuple[dict[str, float], str | None]:
    """Pixel sizes from the coordinates of an xarray if these are evenly spaced, and their unit."""
    steps: dict[str, float] = {}
    unit = None
    for dim, letter in zip(array.dims, axes.upper(), strict=False):
        if dim in array.coords and letter in "ZYX" and array.sizes[dim] > 1:
            place = np.asarray(array.coords[dim].values)
            if place.dtype.kind in "iuf":
                apart = np.diff(place.astype(float))
                if apart[0] > 0 and np.allclose(apart, apart[0], rtol=1e-3) and "units" in array.coords[dim].attrs:
                    steps[letter] = float(np.mean(apart))
                    unit = str(array.coords[dim].attrs["units"])
    return steps, unit


def _sizes(pixel_size: PixelSize, axes: str) -> dict[str, float]:
    if pixel_size is None:
        return {}
    if isinstance(pixel_size, Mapping):
        sizes = {str(letter).upper(): float(size) for letter, size in pixel_size.items()}
        missing = sorted(set(sizes) - set(axes))
        if missing:
            raise SettingError(f"pixel_size: an image of axes {axes} has no axis {missing[0]}")
        return sizes
    if isinstance(pixel_size, (int, float)):
        return {"Y": float(pixel_size), "X": float(pixel_size)}
    space = [letter for letter in axes if letter in "ZYX"]
    if len(pixel_size) != len(space):
        raise SettingError(f"pixel_size: {len(pixel_size)} numbers for the axes {', '.join(space)}")
    return dict(zip(space, map(float, pixel_size), strict=True))
