"""The widget that estimates a camera's noise from an image layer, with its plot."""

from __future__ import annotations

from typing import Any

import clearshot
from qtpy.QtCore import QByteArray
from qtpy.QtSvgWidgets import QSvgWidget
from qtpy.QtWidgets import QComboBox, QPushButton

from . import _fields, _layers
from ._work import Tell, Work

#: How frames of a layer belong together, in words.
_KINDS = {"one image": "single", "repeats of one scene (along T)": "repeats", "a movie (along T)": "movie"}


class EstimateCamera(Work):
    """Estimates gain, offset and read noise from an image layer and draws variance against brightness."""

    verb = "Estimate"

    def __init__(self, napari_viewer: Any) -> None:
        super().__init__(napari_viewer)
        self.found: clearshot.CameraEstimate | None = None
        self.plot = QSvgWidget()
        self.plot.setVisible(False)
        self.save = QPushButton("Save as a camera file ...")
        self.save.setEnabled(False)
        self.save.clicked.connect(self._save)
        for widget in (self.plot, self.save):
            self.below.insertWidget(self.below.count() - 1, widget)

    def fields(self) -> None:
        self.kind = QComboBox()
        self.kind.addItems(list(_KINDS))
        self.form.addRow("The layer is", self.kind)

    def begin(self, layer: Any, letters: str) -> None:
        pixels, kind, known = _layers.pixels(layer), _KINDS[self.kind.currentText()], self.camera.value

        def work(tell: Tell) -> Any:
            return clearshot.estimate_camera(pixels, kind=kind, axes=letters, camera=known)

        self.run(work, self._draw)

    def _draw(self, found: clearshot.CameraEstimate) -> None:
        self.found = found
        self.plot.load(QByteArray(found.svg.encode()))
        width = max(self.width() - 20, 240)
        size = self.plot.renderer().defaultSize()
        self.plot.setFixedSize(width, width * size.height() // max(size.width(), 1))
        self.plot.setVisible(True)
        self.save.setEnabled(True)
        self.say(found.text)

    def _save(self) -> None:
        path, _ = _fields.SAVE(self, "A camera", "camera.json", "Cameras (*.json)")
        if not path or self.found is None:
            return
        try:
            self.found.camera.save(path)
            self.say(f"{self.found.text}\nwrote {path}")
        except OSError as error:
            self.say(str(error), wrong=True)
