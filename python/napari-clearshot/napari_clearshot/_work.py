"""Work in a thread with its button, progress and cancel: what all widgets of this plugin are made of. napari is never blocked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import clearshot
from magicgui.widgets import create_widget
from napari.qt.threading import create_worker
from qtpy.QtCore import QTimer
from qtpy.QtWidgets import QDoubleSpinBox, QFormLayout, QLabel, QProgressBar, QPushButton, QSizePolicy, QVBoxLayout, QWidget


class Work(QWidget):
    """A form above, and below it buttons, progress and what there is to say."""

    #: What the button says.
    verb = "Run"

    def __init__(self, viewer: Any) -> None:
        super().__init__()
        self.viewer = viewer
        self.form = QFormLayout()
        self.start = QPushButton(self.verb)
        self.cancel = QPushButton("Cancel")
        self.bar = QProgressBar()
        self.message = QLabel()
        self.message.setWordWrap(True)
        self.cancel.setEnabled(False)
        self.start.clicked.connect(self.begin)
        self.cancel.clicked.connect(self._stop)
        layout = QVBoxLayout(self)
        layout.addLayout(self.form)
        for widget in (self.start, self.cancel, self.bar, self.message):
            layout.addWidget(widget)
        self.below = layout
        layout.addStretch()
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Preferred)
        self._worker: Any = None
        self._wanted = True
        self._at = (0, 0)
        # The thread says where it is, and the window looks now and then.
        self._clock = QTimer(self)
        self._clock.setInterval(100)
        self._clock.timeout.connect(self._show)

    def begin(self) -> None:
        """Starts the work; what a subclass does."""
        raise NotImplementedError

    def run(self, work: Callable[[Callable[[int, int], None]], Any], finish: Callable[[Any], None]) -> None:
        """Calls `work` in a thread with what it is to tell its progress by, and `finish` with what came of it."""
        self._wanted, self._at = True, (0, 0)
        self._busy(True)
        self.say("")
        self._worker = create_worker(work, self._tell)
        self._worker.returned.connect(finish)
        self._worker.errored.connect(self._failed)
        self._worker.finished.connect(lambda: self._busy(False))
        self._worker.start()

    def say(self, text: str, wrong: bool = False) -> None:
        """Shows a text under the buttons."""
        self.message.setStyleSheet("color: #e06c5a" if wrong else "")
        self.message.setText(text)

    def is_busy(self) -> bool:
        """Whether work is going on."""
        return self.cancel.isEnabled()

    def _tell(self, done: int, total: int) -> None:
        self._at = (done, total)
        if not self._wanted:
            raise clearshot.Cancelled("cancelled")

    def _show(self) -> None:
        done, total = self._at
        self.bar.setRange(0, total)
        self.bar.setValue(done)

    def _stop(self) -> None:
        self._wanted = False
        self.say("stopping ...")

    def _failed(self, error: Exception) -> None:
        if isinstance(error, clearshot.Cancelled):
            self.say("cancelled; nothing was changed")
        else:
            self.say(str(error), wrong=True)

    def _busy(self, busy: bool) -> None:
        self.start.setEnabled(not busy)
        self.cancel.setEnabled(busy)
        if busy:
            self._clock.start()
        else:
            self._clock.stop()
            self.bar.setRange(0, 1)
            self.bar.setValue(0)


class LayerChoice:
    """A list of the viewer's image layers."""

    def __init__(self, form: QFormLayout) -> None:
        self._widget: Any = create_widget(annotation="napari.layers.Image", label="layer")
        form.addRow("Layer", self._widget.native)

    def follow(self, viewer: Any) -> None:
        """Keeps up with the viewer's layers, and chooses the one that is selected."""
        self._widget.choices = lambda _: [layer for layer in viewer.layers if layer._type_string == "image"]
        for event in (viewer.layers.events.inserted, viewer.layers.events.removed, viewer.layers.events.reordered):
            event.connect(self._widget.reset_choices)
        self._widget.reset_choices()
        active = viewer.layers.selection.active
        if active in self._widget.choices:
            self._widget.value = active

    @property
    def value(self) -> Any:
        """The layer, or `None` if there is none."""
        return self._widget.value

    @property
    def changed(self) -> Any:
        """The signal that another layer was chosen."""
        return self._widget.changed


class CameraForm:
    """A camera's numbers; what is left empty (at its least) is estimated."""

    NAMES = {"gain": "Gain (electrons per count)", "offset": "Offset (counts)", "read_noise": "Read noise (electrons)"}

    def __init__(self, form: QFormLayout) -> None:
        self.fields: dict[str, QDoubleSpinBox] = {}
        for name, label in self.NAMES.items():
            field = QDoubleSpinBox()
            field.setDecimals(4)
            field.setRange(-1e-4 if name != "offset" else -1e6, 1e6)
            field.setSpecialValueText("estimated")
            field.setValue(field.minimum())
            form.addRow(label, field)
            self.fields[name] = field

    @property
    def value(self) -> dict[str, float]:
        """What is known."""
        return {name: field.value() for name, field in self.fields.items() if field.value() > field.minimum()}

    @value.setter
    def value(self, camera: dict[str, float]) -> None:
        for name, field in self.fields.items():
            field.setValue(camera.get(name, field.minimum()))
