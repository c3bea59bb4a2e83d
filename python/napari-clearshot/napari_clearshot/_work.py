"""The base of all widgets of this plugin: a layer with its axes and camera, and work on it in a thread with progress and cancel.

napari is never blocked. A subclass adds its own fields in `fields` and does its work in `begin`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import clearshot
from napari.qt.threading import create_worker
from qtpy.QtCore import QTimer
from qtpy.QtWidgets import QFormLayout, QHBoxLayout, QLabel, QLineEdit, QProgressBar, QPushButton, QVBoxLayout, QWidget

from . import _layers
from ._fields import CameraForm, LayerChoice

#: Tells how many steps of how many are done; raises where the work was cancelled.
Tell = Callable[[int, int], None]


class Work(QWidget):
    """A form, with buttons, progress and messages below it."""

    #: What the button says.
    verb = "Run"

    def __init__(self, napari_viewer: Any) -> None:
        super().__init__()
        self.viewer = napari_viewer
        self._running = False
        self._wanted = True
        self._at = (0, 0)
        self._lay_out()
        # The thread says where it is, and the window looks now and then.
        self._clock = QTimer(self)
        self._clock.setInterval(100)
        self._clock.timeout.connect(self._show)
        self.layer.changed.connect(self._look)
        self.layer.follow(napari_viewer)
        self._look()

    def _lay_out(self) -> None:
        self.form = QFormLayout()
        self.form.setFieldGrowthPolicy(QFormLayout.FieldGrowthPolicy.ExpandingFieldsGrow)
        self.layer = LayerChoice(self.form)
        self.axes = QLineEdit()
        self.axes.setToolTip("T frames, C channels, Z planes, Y rows, X columns, S colours of a pixel")
        self.form.addRow("Axes", self.axes)
        self.camera = CameraForm(self.form)
        self.fields()
        self.start = QPushButton(self.verb)
        self.start.clicked.connect(self._begin)
        self.cancel = QPushButton("Cancel")
        self.cancel.clicked.connect(self._stop)
        self.cancel.setEnabled(False)
        buttons = QHBoxLayout()
        buttons.addWidget(self.start)
        buttons.addWidget(self.cancel)
        self.bar = QProgressBar()
        self.bar.setVisible(False)
        self.message = QLabel()
        self.message.setWordWrap(True)
        self.below = QVBoxLayout(self)
        self.below.addLayout(self.form)
        self.below.addLayout(buttons)
        self.below.addWidget(self.bar)
        self.below.addWidget(self.message)
        self.below.addStretch()

    def fields(self) -> None:
        """Adds the fields of this widget other than the layer, its axes and its camera to `form`."""

    def begin(self, layer: Any, letters: str) -> None:
        """Starts the work on a layer whose axes have these letters, by `run`."""
        raise NotImplementedError

    def run(self, work: Callable[[Tell], Any], finish: Callable[[Any], None]) -> None:
        """Calls `work` in a thread with a function for its progress, and `finish` in the window with the result."""
        self._wanted, self._at = True, (0, 0)
        self._busy(True)
        self.say("")

        # What is to be said to the user comes back as a value: an exception of a worker is raised in the window as well, and napari
        # shows it as a fault. That is right for those which nobody foresaw alone.
        def attempt() -> Callable[[], None]:
            try:
                made = work(self._tell)
                self._tell(*self._at)
            except clearshot.ClearshotError as error:
                return partial(self._failed, error)
            return partial(finish, made)

        worker = create_worker(attempt)
        worker.returned.connect(self._finish)
        worker.errored.connect(self._failed)
        worker.finished.connect(lambda: self._busy(False))
        worker.start()

    def say(self, text: str, wrong: bool = False) -> None:
        """Shows a text under the buttons."""
        self.message.setStyleSheet("color: #e06c5a" if wrong else "")
        self.message.setText(text)

    def is_busy(self) -> bool:
        """Whether work is in progress."""
        return self._running

    def _look(self, *_: Any) -> None:
        if self.layer.value is not None:
            self.axes.setText(_layers.axes(self.layer.value))

    def _begin(self) -> None:
        if self.layer.value is None:
            self.say("open an image first", wrong=True)
        else:
            self.begin(self.layer.value, self.axes.text().strip().upper())

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
        self.cancel.setEnabled(False)
        self.say("stopping ...")

    def _finish(self, last: Callable[[], None]) -> None:
        try:
            last()
        except (clearshot.ClearshotError, OSError) as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        if isinstance(error, clearshot.Cancelled):
            self.say("cancelled; nothing was changed")
        else:
            self.say(str(error), wrong=True)

    def _busy(self, busy: bool) -> None:
        self._running = busy
        self.start.setEnabled(not busy)
        self.cancel.setEnabled(busy)
        self.bar.setVisible(busy)
        if busy:
            self._show()
            self._clock.start()
        else:
            self._clock.stop()
