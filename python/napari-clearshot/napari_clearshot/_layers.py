"""Layers of napari as images, and results as layers with the same position, scale and unit."""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np

#: What napari calls units of length, as PSFs name them.
_UNITS = {"nanometer": "nm", "micrometer": "um", "millimeter": "mm"}
#: Bytes of a result from which on it is kept in a file in place of memory.
LARGE = 1 << 28


def pixels(layer: Any) -> Any:
    """The layer's values at full resolution, which may be read by region."""
    return layer.data[0] if layer.multiscale else layer.data


def axes(layer: Any) -> str:
    """Letters of the layer's axes: from its labels, otherwise the most probable."""
    ndim = pixels(layer).ndim - bool(layer.rgb)
    labels = "".join(str(label).upper() for label in layer.axis_labels)
    known = len(labels) == ndim and len(set(labels)) == ndim and set("YX") <= set(labels) <= set("TCZYX")
    return (labels if known else "TCZYX"[5 - ndim :] if ndim != 4 else "TZYX") + ("S" if layer.rgb else "")


def pixel_size(layer: Any, letters: str) -> tuple[dict[str, float] | None, str]:
    """Pixel sizes along the axes in space and their unit, if the layer has a unit of length."""
    size = {}
    unit = None
    for letter, step, name in zip(letters, layer.scale, layer.units, strict=False):
        if letter in "ZYX" and str(name) in _UNITS:
            size[letter], unit = float(step), _UNITS[str(name)]
    return (size, unit) if unit else (None, "um")


def places(layer: Any, names: list[str]) -> dict[str, Any] | None:
    """Temporary files for the results of a large layer. They are deleted with the arrays."""
    shape = tuple(pixels(layer).shape)
    if int(np.prod(shape)) * 4 < LARGE:
        return None
    made = {}
    for name in names:
        with tempfile.TemporaryFile(prefix="napari-clearshot-") as file:
            made[name] = np.memmap(file, "float32", "w+", shape=shape)
    return made


def results(layer: Any, result: Any) -> list[tuple[Any, dict[str, Any]]]:
    """A result's image and maps as layers: values and the arguments of `add_image`."""
    made = []
    for name, values, look in [
        ("restored", result.image, {"colormap": layer.colormap, "contrast_limits": _limits(result.image), "rgb": layer.rgb}),
        ("std", result.std, {"colormap": "inferno", "visible": False, "contrast_limits": _limits(result.std)}),
        ("chi2", result.chi2, {"colormap": "PiYG", "visible": False, "contrast_limits": (0.0, 2.0)}),
    ]:
        if values is not None:
            colours = layer.rgb and name != "restored"
            if colours:
                values = np.moveaxis(values, -1, 0)
            metadata = {"clearshot": result.report}
            made.append((values, {**_place(layer, colours), **look, "name": f"{layer.name} {name}", "metadata": metadata}))
    return made


def _place(layer: Any, colours: bool) -> dict[str, Any]:
    """Where a layer is, for another one like it, or for one with the colours of its pixels as an axis before the others."""
    if not colours:
        return {key: getattr(layer, key) for key in ("scale", "translate", "rotate", "shear", "affine", "units", "axis_labels")}
    return {
        "scale": (1.0, *layer.scale),
        "translate": (0.0, *layer.translate),
        "units": ("pixel", *map(str, layer.units)),
        "axis_labels": ("s", *layer.axis_labels),
    }


def _limits(values: Any) -> tuple[float, float] | None:
    if values is None:
        return None
    # Of a large image a part says enough.
    thin = values[tuple(slice(None, None, max(1, n // 512)) for n in values.shape)]
    low, high = np.nanpercentile(thin, [0.1, 99.9])
    return (float(low), float(max(high, low + 1e-6)))
