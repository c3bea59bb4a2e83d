"""The plugin in a real napari: its widgets are opened from the menu and clicked."""

import subprocess
import sys
import time

import clearshot
import dask.array
import numpy as np
import pytest
from clearshot._native import EXTENSIONS
from napari_clearshot import _fields, _layers, reader
from npe2 import PluginManifest
from qtpy.QtCore import Qt, QTimer

CAMERA = {"gain": 0.5, "offset": 100.0, "read_noise": 1.5}


def noisy(shape, seed=5):
    """Discs on a slope under a camera's noise, in counts."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[: shape[-2], : shape[-1]]
    light = 20 + 0.2 * x + 60 * ((y % 40 - 20) ** 2 + (x % 50 - 25) ** 2 < 120)
    electrons = rng.poisson(np.broadcast_to(light, shape)) + rng.normal(0, 1.5, shape)
    return (100 + electrons / 0.5).round().astype("uint16")


def click(qtbot, button):
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)


def done(qtbot, widget, seconds=600):
    qtbot.waitUntil(lambda: not widget.is_busy(), timeout=1000 * seconds)


@pytest.fixture
def opened(make_napari_viewer):
    """A viewer with an image layer, and a widget of the plugin by its name in the menu."""

    def make(values, name, **options):
        viewer = make_napari_viewer()
        layer = viewer.add_image(values, name="cells", **options)
        _, widget = viewer.window.add_plugin_dock_widget("napari-clearshot", name)
        return viewer, layer, widget

    return make


def test_the_manifest_is_valid():
    done = subprocess.run([sys.executable, "-m", "npe2", "validate", "napari-clearshot"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_manifest_names_every_format():
    manifest = PluginManifest.from_distribution("napari-clearshot")
    [read] = manifest.contributions.readers
    assert sorted(read.filename_patterns) == sorted(f"*.{ending}" for ending in EXTENSIONS)


def test_restore(opened, qtbot):
    values = noisy((48, 64))
    options = {"scale": (0.2, 0.1), "units": ("micrometer", "micrometer"), "translate": (3, 4)}
    viewer, layer, widget = opened(values, "Restore", **options)
    assert widget.axes.text() == "YX" and widget.layer.value is layer
    widget.camera.value = CAMERA
    widget.samples.setValue(2)
    click(qtbot, widget.start)
    assert widget.is_busy() and not widget.start.isEnabled()
    done(qtbot, widget)
    assert [made.name for made in viewer.layers] == ["cells", "cells restored", "cells std", "cells chi2"], widget.message.text()
    wanted = clearshot.restore(values, camera=CAMERA, samples=2, chi2=True)
    for made, map in zip(list(viewer.layers)[1:], [wanted.image, wanted.std, wanted.chi2], strict=True):
        np.testing.assert_array_equal(made.data, map)
        np.testing.assert_allclose(made.scale, [0.2, 0.1])
        np.testing.assert_allclose(made.translate, [3, 4])
        assert made.units == layer.units
    assert "chi2" in widget.message.text() and widget.start.isEnabled()


def test_the_window_is_alive_and_cancel_stops(opened, qtbot):
    viewer, _, widget = opened(noisy((256, 256)), "Restore")
    widget.camera.value = CAMERA
    widget.samples.setValue(64)
    ticks = []
    timer = QTimer()
    timer.timeout.connect(lambda: ticks.append(time.monotonic()))
    timer.start(20)
    click(qtbot, widget.start)
    qtbot.waitUntil(lambda: widget.bar.maximum() > 1 and widget.bar.value() > 0, timeout=300_000)
    assert len(ticks) > 5
    click(qtbot, widget.cancel)
    done(qtbot, widget)
    timer.stop()
    assert len(viewer.layers) == 1 and "cancelled" in widget.message.text()


def test_what_is_wrong_is_said(opened, qtbot):
    viewer, _, widget = opened(noisy((48, 64)), "Restore")
    widget.axes.setText("ZYX")
    click(qtbot, widget.start)
    done(qtbot, widget)
    assert "one letter for each axis" in widget.message.text() and len(viewer.layers) == 1
    viewer.layers.clear()
    click(qtbot, widget.start)
    assert "open an image first" in widget.message.text()


def test_large_layers_are_read_by_region_and_kept_in_files(opened, qtbot, monkeypatch):
    monkeypatch.setattr(_layers, "LARGE", 0)
    values = noisy((3, 64, 64))
    most = []

    def block(part):
        most.append(part.size)
        return part

    lazy = dask.array.from_array(values, chunks=(1, 64, 64)).map_blocks(block, meta=values[:0, :0, :0])
    viewer, layer, widget = opened(lazy, "Restore", contrast_limits=(100, 400))
    assert widget.axes.text() == "ZYX"
    widget.method.setCurrentText("bm3d")
    widget.chi2.setChecked(False)
    widget.camera.value = CAMERA
    most.clear()
    click(qtbot, widget.start)
    done(qtbot, widget)
    made = viewer.layers["cells restored"].data
    assert isinstance(made, np.memmap) and max(most) == 64 * 64
    np.testing.assert_array_equal(made, clearshot.restore(values, camera=CAMERA, method="bm3d", axes="ZYX").image)


def test_pyramids_are_restored_at_full_resolution(opened, qtbot):
    values = noisy((64, 96))
    viewer, _, widget = opened([values, values[::2, ::2]], "Restore", multiscale=True)
    widget.method.setCurrentText("gaussian")
    widget.chi2.setChecked(False)
    widget.camera.value = CAMERA
    click(qtbot, widget.start)
    done(qtbot, widget)
    assert viewer.layers["cells restored"].data.shape == (64, 96)


def test_a_camera_and_its_plot(opened, qtbot, tmp_path, monkeypatch):
    _, _, widget = opened(noisy((192, 192)), "Estimate camera")
    click(qtbot, widget.start)
    done(qtbot, widget)
    assert widget.found is not None, widget.message.text()
    assert 0.4 < widget.found.camera.gain < 0.6
    assert widget.plot.renderer().isValid() and not widget.plot.isHidden()
    assert "gain" in widget.message.text()
    path = tmp_path / "camera.json"
    monkeypatch.setattr(_fields, "SAVE", lambda *_: (str(path), ""))
    click(qtbot, widget.save)
    assert clearshot.Camera.load(path) == widget.found.camera
    click(qtbot, widget.save)
    assert "exists" in widget.message.text()


def test_a_camera_that_is_cancelled_is_not_shown(opened, qtbot):
    _, _, widget = opened(noisy((192, 192)), "Estimate camera")
    click(qtbot, widget.start)
    click(qtbot, widget.cancel)
    done(qtbot, widget)
    assert widget.found is None and "cancelled" in widget.message.text()


def test_adapt(opened, qtbot, tmp_path):
    _, _, widget = opened(noisy((256, 256)), "Adapt model")
    widget.camera.value = CAMERA
    widget.seconds.setValue(3)
    widget.output.line.setText(str(tmp_path / "mine.clearshot"))
    click(qtbot, widget.start)
    done(qtbot, widget)
    said = widget.message.text()
    assert said.startswith(("adapted from", "not adapted")), said
    assert (tmp_path / "mine.clearshot").exists() == ("wrote" in said)


def test_adapt_is_cancelled_and_replaces_nothing(opened, qtbot, tmp_path):
    _, _, widget = opened(noisy((256, 256)), "Adapt model")
    path = tmp_path / "mine.clearshot"
    path.write_text("another")
    widget.output.line.setText(str(path))
    click(qtbot, widget.start)
    assert "exists already" in widget.message.text() and not widget.is_busy()
    path.unlink()
    widget.camera.value = CAMERA
    click(qtbot, widget.start)
    qtbot.waitUntil(lambda: widget.bar.maximum() == 300, timeout=300_000)
    click(qtbot, widget.cancel)
    done(qtbot, widget)
    assert "cancelled" in widget.message.text() and not path.exists()


def test_colours_of_pixels(opened, qtbot):
    values = noisy((3, 32, 40)).clip(0, 255).astype("uint8").transpose(1, 2, 0)
    viewer, layer, widget = opened(values, "Restore", rgb=True, scale=(0.2, 0.1))
    assert widget.axes.text() == "YXS"
    widget.camera.value = {"gain": 1.0, "offset": 0.0, "read_noise": 1.0}
    widget.method.setCurrentText("gaussian")
    click(qtbot, widget.start)
    done(qtbot, widget)
    assert viewer.layers["cells restored"].rgb, widget.message.text()
    chi2 = viewer.layers["cells chi2"]
    assert chi2.data.shape == (3, 32, 40)
    np.testing.assert_allclose(chi2.scale, [1, 0.2, 0.1])


def test_the_reader(make_napari_viewer, tmp_path):
    values = noisy((2, 3, 40, 48))
    path = str(tmp_path / "cells.ome.tif")
    clearshot.write(path, values, axes="CZYX", pixel_size=(0.5, 0.1, 0.1), channels=["DNA", "actin"])
    viewer = make_napari_viewer()
    viewer.open(path, plugin="napari-clearshot")
    assert [layer.name for layer in viewer.layers] == ["DNA", "actin"]
    layer = viewer.layers["actin"]
    assert isinstance(layer.data, dask.array.Array) and tuple(layer.axis_labels) == ("z", "y", "x")
    np.testing.assert_array_equal(layer.data.compute(), values[1])
    np.testing.assert_allclose(layer.scale, [0.5, 0.1, 0.1], rtol=1e-5)
    assert [str(unit) for unit in layer.units] == ["micrometer"] * 3
    assert _layers.axes(layer) == "ZYX"


def test_the_reader_refuses_what_is_not_an_image(tmp_path):
    (tmp_path / "a.tif").write_text("not an image")
    assert reader(str(tmp_path / "a.tif")) is None
    assert reader(str(tmp_path / "missing.tif")) is None


def test_pyramids_and_colours_are_read(tmp_path):
    clearshot.write(tmp_path / "large.ome.zarr", noisy((1500, 1200)))
    image = clearshot.read(tmp_path / "large.ome.zarr")
    read = reader(str(tmp_path / "large.ome.zarr"))
    [(levels, options, _)] = read(str(tmp_path / "large.ome.zarr"))
    assert options["multiscale"] == (len(image.levels) > 1)
    first = levels[0] if options["multiscale"] else levels
    np.testing.assert_array_equal(first[700:720, 900:930].compute(), noisy((1500, 1200))[700:720, 900:930])
    clearshot.write(tmp_path / "colours.png", noisy((20, 30, 3)).astype("uint8"), axes="YXS")
    [(_, options, _)] = reader(str(tmp_path / "colours.png"))(str(tmp_path / "colours.png"))
    assert options["rgb"] is True
