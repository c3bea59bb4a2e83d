"""The widget that estimates a camera's noise from an image layer, with its plot."""

from __future__ import annotations

from typing import Any

import clearshot
from qtpy.QtCore import QByteArray
from qtpy.QtSvgWidgets import QSvgWidget
from qtpy.QtWidgets import QComboBox, QFileDialog, QLineEdit, QPushButton

from . import _layers
from ._work import CameraForm, LayerChoice, Work

#: How frames of a layer belong together, in words.
_KINDS = {"one image": "single", "repeats of one scene (along T)": "repeats", "a movie (along T)": "movie"}


class EstimateCamera(Work):
    """Estimates gain, offset and read noise from an image layer and draws variance against brightness."""

    verb = "Estimate"

    def __init__(self, napari_viewer: Any) -> None:
        super().__init__(napari_viewer)
        self.layer = LayerChoice(self.form)
        self.axes = QLineEdit()
        self.form.addRow("Axes", self.axes)
        self.kind = QComboBox()
        self.kind.addItems(list(_KINDS))
        self.form.addRow("The layer is", self.kind)
        self.known = CameraForm(self.form)
        self.plot = QSvgWidget()
        self.plot.setVisible(False)
        self.save = QPushButton("Save as a camera file ...")
        self.save.setEnabled(False)
        self.save.clicked.connect(self._save)
        self.below.insertWidget(self.below.count() - 1, self.plot)
        self.below.insertWidget(self.below.count() - 1, self.save)
        self.found: Any = None
        self.layer.changed.connect(self._look)
        self.layer.follow(napari_viewer)
        self._look()

    def _look(self, *_: Any) -> None:
        if self.layer.value is not None:
            self.axes.setText(_layers.axes(self.layer.value))

    def begin(self) -> None:
        layer = self.layer.value
        if layer is None:
            return self.say("open an image first", wrong=True)
        pixels, letters = _layers.pixels(layer), self.axes.text().strip().upper()
        kind, known = _KINDS[self.kind.currentText()], self.known.value

        def work(tell: Any) -> Any:
            return clearshot.estimate_camera(pixels, kind=kind, axes=letters, camera=known)

        return self.run(work, self._finish)

    def _finish(self, found: Any) -> None:
        self.found = found
        self.plot.load(QByteArray(found.svg.encode()))
        width = max(self.width() - 20, 240)
        size = self.plot.renderer().defaultSize()
        self.plot.setFixedSize(width, width * size.height() // max(size.width(), 1))
        self.plot.setVisible(True)
        self.save.setEnabled(True)
        self.say(found.text)

    def _save(self) -> None:
        path, _ = QFileDialog.getSaveFileName(self, "A camera", "camera.json", "Cameras (*.json)")
        if path:
            self.found.camera.save(path)
