"""Clearshot in napari: widgets that restore layers, estimate cameras and fine-tune models, and a reader."""

from ._adapt import Adapt
from ._camera import EstimateCamera
from ._reader import reader
from ._restore import Restore

__all__ = ["Adapt", "EstimateCamera", "Restore", "reader"]
