"""Files of every format that Clearshot reads, as layers of which only the displayed part is read."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import clearshot

LayerData = tuple[Any, dict[str, Any], str]


def reader(path: str | list[str]) -> Callable[[str | list[str]], list[LayerData]] | None:
    """A function that reads these files, or nothing if one of them is not an image."""
    try:
        for one in _paths(path):
            clearshot.read(one)
    except clearshot.ClearshotError:
        return None
    return read


def read(path: str | list[str]) -> list[LayerData]:
    """All images of files as layers, one for each channel."""
    made = []
    for one in _paths(path):
        for item in range(len(clearshot.read(one).items)):
            made.append(layer(clearshot.read(one, item=f"#{item}")))
    return made


def _paths(path: str | list[str]) -> list[str]:
    return [path] if isinstance(path, str) else list(path)


def layer(image: clearshot.Image) -> LayerData:
    """An image as a layer, with its axes, the size of its pixels, and its channels' names and colours."""
    levels = [level.to_dask() for level in image.pyramid]
    letters = image.axes
    options: dict[str, Any] = {"name": _name(image)}
    if letters.endswith("S") and image.shape[-1] in (3, 4):
        options["rgb"] = True
        letters = letters[:-1]
    if "C" in letters:
        options["channel_axis"] = letters.index("C")
        letters = letters.replace("C", "")
        count = image.shape[options["channel_axis"]]
        about = image.channel_metadata
        if len(about) == count and all(channel["name"] for channel in about):
            options["name"] = [channel["name"] for channel in about]
        if len(about) == count and all(channel["color"] for channel in about):
            options["colormap"] = [_ramp(channel["color"]) for channel in about]
    options["axis_labels"] = tuple(letters.lower())
    options["scale"] = [image.pixel_size.get(letter, 1.0) for letter in letters]
    options["units"] = [_unit(image.units.get(letter)) for letter in letters]
    options["metadata"] = {"clearshot": {"path": image.path, "tags": image.tags}}
    options["multiscale"] = len(levels) > 1
    return (levels if len(levels) > 1 else levels[0], options, "image")


def _name(image: clearshot.Image) -> str:
    name = os.path.basename(image.path.rstrip("/"))
    return f"{name} {image.items[image.item]}".strip() if len(image.items) > 1 else name


def _unit(unit: str | None) -> str:
    known = {"um": "micrometer", "µm": "micrometer", "nm": "nanometer", "mm": "millimeter", "s": "second", "ms": "millisecond"}
    full = {"micrometer", "nanometer", "millimeter", "meter", "second", "millisecond", "minute"}
    return known.get(unit or "", unit if unit in full else "pixel")


def _ramp(color: list[int]) -> Any:
    from napari.utils.colormaps import Colormap

    red, green, blue = (value / 255 for value in color)
    return Colormap([[0, 0, 0, 1], [red, green, blue, 1]], name=f"rgb {color}")
