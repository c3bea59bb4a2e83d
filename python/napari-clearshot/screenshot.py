"""Makes docs/napari.png: the real image of `clearshot demo`, restored by the plugin with its uncertainty.

xvfb-run -s '-screen 0 1500x900x24' python screenshot.py
"""

import sys
import time
from pathlib import Path

import napari
from qtpy.QtWidgets import QApplication

ROOT = Path(__file__).resolve().parents[2]


def main(image: str, output: str) -> None:
    viewer = napari.Viewer()
    viewer.window.resize(1440, 860)
    viewer.open(image, plugin="napari-clearshot")
    _, widget = viewer.window.add_plugin_dock_widget("napari-clearshot", "Restore")
    widget.std.setChecked(True)
    widget.start.click()
    while widget.is_busy():
        QApplication.processEvents()
        time.sleep(0.02)
    layers = list(viewer.layers)
    for layer in layers:
        layer.visible = True
    viewer.grid.enabled = True
    viewer.grid.stride = 1
    viewer.reset_view()
    viewer.scale_bar.visible = True
    for _ in range(20):
        QApplication.processEvents()
        time.sleep(0.05)
    viewer.screenshot(output, canvas_only=False)
    viewer.close()


if __name__ == "__main__":
    main(*(sys.argv[1:] or [str(ROOT / "crates/cli/demo/short_exposure.tif"), str(ROOT / "docs/napari.png")]))
