"""The widget that fits the model to the noisy image layers themselves."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import clearshot
import numpy as np
from qtpy.QtWidgets import QFileDialog, QHBoxLayout, QLineEdit, QPushButton, QSpinBox

from . import _layers
from ._work import CameraForm, LayerChoice, Work


class Adapt(Work):
    """Fits the model to an image layer by splitting its electrons, and keeps it where its estimated gain is clear (an experiment)."""

    verb = "Adapt"

    def __init__(self, napari_viewer: Any) -> None:
        super().__init__(napari_viewer)
        self.layer = LayerChoice(self.form)
        self.axes = QLineEdit()
        self.form.addRow("Axes", self.axes)
        self.seconds = QSpinBox()
        self.seconds.setRange(1, 24 * 3600)
        self.seconds.setValue(300)
        self.form.addRow("Seconds", self.seconds)
        self.camera = CameraForm(self.form)
        self.output = QLineEdit("adapted.clearshot")
        choose = QPushButton("...")
        choose.clicked.connect(self._choose)
        row = QHBoxLayout()
        row.addWidget(self.output)
        row.addWidget(choose)
        self.form.addRow("Write to", row)
        self.layer.changed.connect(self._look)
        self.layer.follow(napari_viewer)
        self._look()

    def _look(self, *_: Any) -> None:
        if self.layer.value is not None:
            self.axes.setText(_layers.axes(self.layer.value))

    def _choose(self) -> None:
        path, _ = QFileDialog.getSaveFileName(self, "A model", self.output.text(), "Models (*.clearshot)")
        if path:
            self.output.setText(path)

    def begin(self) -> None:
        layer, output = self.layer.value, Path(self.output.text().strip())
        if layer is None:
            return self.say("open an image first", wrong=True)
        if output.exists():
            return self.say(f"{output} exists already; choose another name", wrong=True)
        pixels, letters = _layers.pixels(layer), self.axes.text().strip().upper()
        seconds, camera = self.seconds.value(), self.camera.value

        def work(tell: Any) -> Any:
            begin = time.monotonic()

            # The time is what a run goes by; how many iterations that is is known at its end.
            def heard(kind: str, what: dict[str, Any]) -> None:
                tell(min(int(time.monotonic() - begin), seconds), seconds)

            return clearshot.adapt(np.asarray(pixels), axes=letters, seconds=seconds, camera=camera, callback=heard)

        return self.run(work, lambda fitted: self._finish(fitted, output))

    def _finish(self, fitted: Any, output: Path) -> None:
        if fitted.kept:
            fitted.model.save(output)
            self.say(f"{fitted.text}\nwrote {output}; choose it under Model of the widget Restore")
        else:
            self.say(f"{fitted.text}\nThe model that it began from is as good: nothing was written.")
