"""The widget that fine-tunes the model on a noisy image layer."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import clearshot
from qtpy.QtWidgets import QSpinBox

from . import _layers
from ._fields import SAVE, PathField
from ._work import Tell, Work


class Adapt(Work):
    """Fine-tunes the model on an image layer by splitting its electrons, and keeps it if its estimated gain is clear (experimental)."""

    verb = "Adapt"

    def fields(self) -> None:
        self.seconds = QSpinBox()
        self.seconds.setRange(1, 24 * 3600)
        self.seconds.setValue(300)
        self.seconds.setSuffix(" s")
        self.form.addRow("Time", self.seconds)
        self.output = PathField(self.form, "Write to", SAVE, "Models (*.clearshot)")
        self.output.line.setText("adapted.clearshot")

    def begin(self, layer: Any, letters: str) -> None:
        output = Path(self.output.value)
        if output.exists():
            return self.say(f"{output} exists already; choose another name", wrong=True)
        pixels, seconds, camera = _layers.pixels(layer), self.seconds.value(), self.camera.value

        def work(tell: Tell) -> Any:
            begin = time.monotonic()

            # The time is what a run goes by; how many iterations that is is known at its end.
            def heard(*_: Any) -> None:
                tell(min(int(time.monotonic() - begin), seconds), seconds)

            return clearshot.adapt(pixels, axes=letters, seconds=seconds, camera=camera, progress=heard, callback=heard)

        return self.run(work, lambda fitted: self._keep(fitted, output))

    def _keep(self, fitted: clearshot.Adapted, output: Path) -> None:
        if fitted.kept:
            fitted.model.save(output)
            self.say(f"{fitted.text}\nwrote {output}; choose it under Model of the widget Restore")
        else:
            self.say(f"{fitted.text}\nThe model that it began from is as good: nothing was written.")
