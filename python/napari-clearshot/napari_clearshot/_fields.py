"""Fields of several widgets: a layer of the viewer, camera parameters, the path of a file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from magicgui.widgets import create_widget
from qtpy.QtWidgets import QDoubleSpinBox, QFileDialog, QFormLayout, QHBoxLayout, QLineEdit, QPushButton


class LayerChoice:
    """A list of the viewer's image layers."""

    def __init__(self, form: QFormLayout) -> None:
        self._widget: Any = create_widget(annotation="napari.layers.Image", label="layer")
        form.addRow("Layer", self._widget.native)

    def follow(self, viewer: Any) -> None:
        """Follows the viewer's layers, and selects the active one."""
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
    """Camera parameters; those that are left empty (at their minimum) are estimated."""

    NAMES = {
        "gain": ("Gain", " e-/count", "Electrons per count"),
        "offset": ("Offset", " counts", "Counts without light"),
        "read_noise": ("Read noise", " e-", "The standard deviation of the read noise in electrons"),
    }

    def __init__(self, form: QFormLayout) -> None:
        self.fields: dict[str, QDoubleSpinBox] = {}
        for name, (label, unit, tip) in self.NAMES.items():
            field = QDoubleSpinBox()
            field.setDecimals(4)
            field.setRange(-1e-4 if name != "offset" else -1e6, 1e6)
            field.setSuffix(unit)
            field.setSpecialValueText("estimated")
            field.setToolTip(f"{tip}. Default: estimated from the image")
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


class PathField:
    """The path of a file, typed or chosen in a dialog."""

    def __init__(self, form: QFormLayout, label: str, ask: Callable[..., tuple[str, str]], kinds: str) -> None:
        self.line = QLineEdit()
        self.button = QPushButton("...")
        self.button.setFixedWidth(36)
        self.button.clicked.connect(self._choose)
        self._label, self._ask, self._kinds = label, ask, kinds
        row = QHBoxLayout()
        row.addWidget(self.line)
        row.addWidget(self.button)
        form.addRow(label, row)

    @property
    def value(self) -> str:
        """The path, or an empty text."""
        return self.line.text().strip()

    def _choose(self) -> None:
        path, _ = self._ask(self.line.window(), self._label, self.value, self._kinds)
        if path:
            self.line.setText(path)


#: Dialogs of `PathField`: for a file that is there, and for one to be made.
OPEN, SAVE = QFileDialog.getOpenFileName, QFileDialog.getSaveFileName
