"""The widget that restores an image layer."""

from __future__ import annotations

import warnings
from typing import Any

import clearshot
from qtpy.QtWidgets import QCheckBox, QComboBox, QLineEdit, QSpinBox

from . import _layers
from ._fields import OPEN, PathField
from ._work import Tell, Work


class Restore(Work):
    """Restores an image layer: its image, standard deviation and chi2 become layers."""

    verb = "Restore"

    def fields(self) -> None:
        self.method = QComboBox()
        self.method.addItems(["auto", "model", "bm3d", "gaussian"])
        self.method.setToolTip("What to restore by. Default: auto, by the errors that the image itself tells")
        self.form.addRow("Method", self.method)
        self.samples = QSpinBox()
        self.samples.setRange(0, 64)
        self.samples.setToolTip("Posterior samples; from two on the standard deviation is theirs and becomes a layer. Default: 0")
        self.form.addRow("Samples", self.samples)
        self.std = QCheckBox("add a layer")
        self.std.setToolTip("The standard deviation of every pixel's error: as the model states it, or of the samples")
        self.form.addRow("Uncertainty", self.std)
        self.chi2 = QCheckBox("add a layer")
        self.chi2.setToolTip("A map that is about 1 where only noise is left over")
        self.chi2.setChecked(True)
        self.form.addRow("Chi2", self.chi2)
        self.psf = QLineEdit()
        self.psf.setPlaceholderText("none")
        self.psf.setToolTip("The blur to take off: gaussian:1.5px, airy:na=1.4,em=520nm, or a file. Default: none")
        self.form.addRow("PSF", self.psf)
        self.model = PathField(self.form, "Model", OPEN, "Models (*.clearshot)")
        self.model.line.setPlaceholderText("built-in")

    def begin(self, layer: Any, letters: str) -> None:
        size, unit = _layers.pixel_size(layer, letters)
        samples, chi2 = self.samples.value(), self.chi2.isChecked()
        std = self.std.isChecked() or samples >= 2
        names = ["image"] + ["std"] * std + ["chi2"] * chi2
        arguments = {
            "camera": self.camera.value,
            "samples": samples,
            "std": std,
            "chi2": chi2,
            "method": self.method.currentText(),
            "psf": self.psf.text().strip() or None,
            "model": self.model.value or None,
            "axes": letters,
            "pixel_size": size,
            "unit": unit,
            "out": _layers.places(layer, names),
        }
        pixels = _layers.pixels(layer)

        def work(tell: Tell) -> Any:
            with warnings.catch_warnings():
                # They are among the notices, which are shown.
                warnings.simplefilter("ignore", clearshot.ClearshotWarning)
                return clearshot.restore(pixels, progress=tell, **arguments)

        self.run(work, lambda result: self._add(layer, result))

    def _add(self, layer: Any, result: Any) -> None:
        for values, options in _layers.results(layer, result):
            self.viewer.add_image(values, **options)
        report = result.report
        said = [f"{report['seconds']:.1f} s"]
        if report["chi2"] is not None:
            said.append(f"chi2 {report['chi2']:.2f}")
        if report["restored_by"]:
            said.append(f"restored by {report['restored_by']}")
        self.say("\n".join([", ".join(said), *report["notices"]]))
