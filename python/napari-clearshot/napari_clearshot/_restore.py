"""The widget that restores an image layer."""

from __future__ import annotations

import warnings
from typing import Any

import clearshot
from qtpy.QtWidgets import QCheckBox, QComboBox, QFileDialog, QHBoxLayout, QLineEdit, QPushButton, QSpinBox

from . import _layers
from ._work import CameraForm, LayerChoice, Work


class Restore(Work):
    """Restores an image layer: its image, standard deviation and chi2 become layers."""

    verb = "Restore"

    def __init__(self, napari_viewer: Any) -> None:
        super().__init__(napari_viewer)
        self.layer = LayerChoice(self.form)
        self.axes = QLineEdit()
        self.axes.setToolTip("T frames, C channels, Z planes, Y rows, X columns, S colours of a pixel")
        self.form.addRow("Axes", self.axes)
        self.method = QComboBox()
        self.method.addItems(["auto", "model", "bm3d", "gaussian"])
        self.form.addRow("Method", self.method)
        self.camera = CameraForm(self.form)
        self.samples = QSpinBox()
        self.samples.setRange(0, 64)
        self.samples.setToolTip("Posterior samples; from two on the standard deviation becomes a layer")
        self.form.addRow("Samples", self.samples)
        self.chi2 = QCheckBox("map of chi2 (1: only noise is left over)")
        self.chi2.setChecked(True)
        self.form.addRow("", self.chi2)
        self.psf = QLineEdit()
        self.psf.setPlaceholderText("none, gaussian:1.5px, airy:na=1.4,em=520nm")
        self.form.addRow("PSF", self.psf)
        self.model = QLineEdit()
        self.model.setPlaceholderText("built-in")
        choose = QPushButton("...")
        choose.clicked.connect(self._choose)
        row = QHBoxLayout()
        row.addWidget(self.model)
        row.addWidget(choose)
        self.form.addRow("Model", row)
        self.layer.changed.connect(self._look)
        self.layer.follow(napari_viewer)
        self._look()

    def _look(self, *_: Any) -> None:
        if self.layer.value is not None:
            self.axes.setText(_layers.axes(self.layer.value))

    def _choose(self) -> None:
        path, _ = QFileDialog.getOpenFileName(self, "A model", "", "Models (*.clearshot)")
        if path:
            self.model.setText(path)

    def begin(self) -> None:
        layer = self.layer.value
        if layer is None:
            return self.say("open an image first", wrong=True)
        letters = self.axes.text().strip().upper()
        size, unit = _layers.pixel_size(layer, letters)
        samples, chi2 = self.samples.value(), self.chi2.isChecked()
        names = ["image"] + ["std"] * (samples >= 2) + ["chi2"] * chi2
        arguments = {
            "camera": self.camera.value,
            "samples": samples,
            "chi2": chi2,
            "method": self.method.currentText(),
            "psf": self.psf.text().strip() or None,
            "model": self.model.text().strip() or None,
            "axes": letters,
            "pixel_size": size,
            "unit": unit,
            "out": _layers.places(layer, names),
        }
        pixels = _layers.pixels(layer)

        def work(tell: Any) -> Any:
            with warnings.catch_warnings():
                # They are among the notices, which are shown.
                warnings.simplefilter("ignore", clearshot.ClearshotWarning)
                return clearshot.restore(pixels, progress=tell, **arguments)

        return self.run(work, lambda result: self._finish(layer, result))

    def _finish(self, layer: Any, result: Any) -> None:
        for values, options, _ in _layers.results(layer, result):
            self.viewer.add_image(values, **options)
        report = result.report
        said = [f"{report['seconds']:.1f} s"]
        if report["chi2"] is not None:
            said.append(f"chi2 {report['chi2']:.2f}")
        if report["restored_by"]:
            said.append(f"restored by {report['restored_by']}")
        self.say("\n".join([", ".join(said), *report["notices"]]))
