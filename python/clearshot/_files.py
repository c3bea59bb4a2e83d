"""Image files of any supported format: read by region, with axes and pixel size, and written."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from . import _native
from ._progress import Listener, Progress
from .errors import SettingError

if TYPE_CHECKING:
    from ._arrays import PixelSize


class Image:
    """An image in a file, which is read only when indexed: `image[0, :512, :512]` reads that region.

    It is made by `read`. `numpy.asarray(image)` reads all of it, and every function of the package takes it as it is.
    """

    def __init__(self, file: _native.File, path: str, level: int = 0) -> None:
        about = json.loads(file.about())
        self._file = file
        self._level = level
        #: The path or address.
        self.path = path
        #: The format's name.
        self.format: str = about["format"]
        #: Letters of the axes: `T` frames, `C` channels, `Z` planes, `Y` rows, `X` columns, `S` colours of a pixel.
        self.axes = "".join(dim["axis"] for dim in about["dims"])
        #: Lengths of the axes.
        self.shape: tuple[int, ...] = tuple(about["levels"][level])
        #: The type of the values; floats where the file says by what stored ones are scaled.
        self.dtype: np.dtype[Any] = np.dtype("float64" if about["scaled"] else about["dtype"])
        fine = about["levels"][0]
        #: Distances of pixels by the axes' letters, as far as the file says, in the units of `units`.
        self.pixel_size: dict[str, float] = {
            dim["axis"]: dim["step"] * full / max(here, 1)
            for dim, full, here in zip(about["dims"], fine, self.shape, strict=True)
            if dim["step"] is not None
        }
        #: Units of `pixel_size`.
        self.units: dict[str, str] = {dim["axis"]: dim["unit"] for dim in about["dims"] if dim["step"] is not None}
        #: Names of the channels, as far as the file has them.
        self.channels: list[str | None] = [channel["name"] for channel in about["channels"]]
        #: What the file says of the channels: `name`, `color` (red, green, blue) and `emission_nm`.
        self.channel_metadata: list[dict[str, Any]] = about["channels"]
        #: Names of the images of the file; `read(path, item=name)` reads another.
        self.items: list[str] = about["items"]
        #: Which of them this is.
        self.item: int = about["item"]
        #: Shapes of all resolutions, the full one first.
        self.levels: list[tuple[int, ...]] = [tuple(shape) for shape in about["levels"]]
        #: What else a person would want to read.
        self.tags: dict[str, str] = dict(about["tags"])
        #: What there is to know about the file before it is used.
        self.warnings: list[str] = about["warnings"]
        #: How the file was made, if this program made it.
        self.provenance: dict[str, Any] | None = about["provenance"]

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of values."""
        return int(np.prod(self.shape))

    @property
    def chunks(self) -> tuple[int, ...]:
        """The preferred block size for reading."""
        return tuple(min(chunk, n) for chunk, n in zip(self._file.chunk, self.shape, strict=True))

    @property
    def pyramid(self) -> list[Image]:
        """The image at all of its resolutions, the full one first."""
        return [Image(self._file, self.path, level) for level in range(len(self.levels))]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> npt.NDArray[Any]:
        keys = list(key) if isinstance(key, tuple) else [key]
        if any(not isinstance(k, (slice, int, np.integer)) and k is not Ellipsis for k in keys):
            raise TypeError("an image is indexed by numbers and slices; for other indices take numpy.asarray(image)")
        missing = self.ndim - sum(k is not Ellipsis for k in keys)
        if missing < 0:
            raise IndexError(f"{len(keys)} indices for an image of {self.ndim} axes")
        at = keys.index(Ellipsis) if Ellipsis in keys else len(keys)
        keys[at : at + 1] = [slice(None)] * missing
        start: list[int] = []
        stop: list[int] = []
        within: list[slice | int] = []
        for k, n in zip(keys, self.shape, strict=True):
            if isinstance(k, slice):
                places = range(n)[k]
                first, last = (min(places[0], places[-1]), max(places[0], places[-1])) if places else (0, -1)
                start.append(first)
                stop.append(last + 1)
                within.append(slice(None, None, places.step) if places else slice(0, 0))
            else:
                index = range(n)[k]
                start.append(index)
                stop.append(index + 1)
                within.append(0)
        values = self._file.read(start, stop, self._level).view(self.dtype)
        return values.reshape([b - a for a, b in zip(start, stop, strict=True)])[tuple(within)]

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        values = self[...]
        return values if dtype is None else values.astype(dtype, copy=False)

    def to_dask(self) -> Any:
        """The image as a dask array of the file's chunks."""
        import dask.array

        from_array: Any = dask.array.from_array
        return from_array(self, chunks=self.chunks, name=False, meta=np.empty((0,) * self.ndim, self.dtype))

    def to_xarray(self) -> Any:
        """The image as an xarray of dask chunks, with the axes' letters in lower case, coordinates in units and channel names."""
        import xarray

        coords: dict[str, Any] = {}
        for letter, n in zip(self.axes, self.shape, strict=True):
            if letter in self.pixel_size:
                attributes = {"units": self.units[letter]}
                coords[letter.lower()] = (letter.lower(), np.arange(n) * self.pixel_size[letter], attributes)
        if "C" in self.axes and len(self.channels) == self.shape[self.axes.index("C")] and all(self.channels):
            coords["c"] = ("c", self.channels)
        return xarray.DataArray(self.to_dask(), dims=list(self.axes.lower()), coords=coords, name=os.path.basename(self.path))

    def __repr__(self) -> str:
        sizes = " x ".join(map(str, self.shape))
        return f"<clearshot.Image {self.path!r}: {self.axes} {sizes}, {self.dtype}>"


def read(path: str | os.PathLike[str], item: str | int | None = None) -> Image:
    """Opens an image file, or a Zarr at an address (`s3://`, `https://`), without reading its pixels.

    Args:
        path: The file: TIFF (OME, ImageJ), OME-Zarr, NPY, PNG, NIfTI, FITS, DICOM or JPEG.
        item: Which image of a file that has several, by name or number. Default: the first.

    >>> import numpy as np, clearshot
    >>> clearshot.write("stack.tif", np.zeros((3, 20, 30), "uint16"), axes="ZYX", pixel_size=(0.3, 0.1, 0.1))
    >>> image = clearshot.read("stack.tif")
    >>> image.axes, image.shape, image.pixel_size["Z"], image.units["Z"]
    ('ZYX', (3, 20, 30), 0.3, 'um')
    >>> image[1, :5, :5].shape                                # reads this region only
    (5, 5)
    """
    return Image(_native.File(path, None if item is None else str(item)), os.fspath(path))


def write(
    path: str | os.PathLike[str],
    image: Any,
    *,
    axes: str | None = None,
    pixel_size: PixelSize = None,
    unit: str = "um",
    channels: Sequence[str] = (),
    like: Image | None = None,
    replace: bool = False,
    progress: Progress = False,
) -> None:
    """Writes an image to a file whose extension sets the format (`.tif`, `.ome.tif`, `.ome.zarr`, `.npy`, `.fits`, ...).

    dask, Zarr and other arrays that are read by region are written by region.

    Args:
        path: The file. It appears when it is complete.
        image: The values.
        axes: A letter for each axis, `TCZYX` for example. Default: `YX`, or as the array or `like` says.
        pixel_size: The distance of pixels: one for Y and X, one for each axis in space, or by letter. Default: not said.
        unit: The unit of `pixel_size`. Default: um.
        channels: Names of the channels. Default: none.
        like: Another image of the same shape, whose pixel size, channels and other metadata the file gets. Default: none.
        replace: Whether a file that is there is replaced. Default: False.
        progress: Whether a bar is shown, or a function of steps done and steps in all. Default: False.

    >>> import numpy as np, clearshot
    >>> clearshot.write("cells.ome.tif", np.ones((2, 16, 16), "float32"), axes="CYX", channels=["DNA", "actin"])
    >>> clearshot.read("cells.ome.tif").channels
    ['DNA', 'actin']
    """
    from ._arrays import subject

    if like is not None and axes is None:
        axes = like.axes
    if like is not None and (pixel_size is not None or channels):
        raise SettingError("like: brings pixel size and channels; leave pixel_size and channels out")
    what = subject(image, axes, pixel_size, unit)
    with Listener("writing", progress) as listener:
        _native.write(path, what.native, what.about, list(channels), None if like is None else like._file, replace, listener)
