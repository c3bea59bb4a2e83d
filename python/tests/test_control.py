"""Work in progress: what is heard of it, what stops it, and that nothing else has to wait for it."""

import os
import signal
import subprocess
import sys
import threading
import time
import warnings

import numpy as np
import pytest

import clearshot
from conftest import CAMERA, noisy


@pytest.fixture
def large():
    return noisy((256, 256)).astype("uint16")


def test_progress_and_events(counts, camera):
    steps, events = [], []
    result = clearshot.restore(
        counts, camera=camera, progress=lambda *at: steps.append(at), callback=lambda kind, what: events.append((kind, what))
    )
    assert steps and steps[-1][0] == steps[-1][1] and steps == sorted(steps)
    kinds = {kind for kind, _ in events}
    assert {"plan", "progress", "choice"} <= kinds
    assert result.report["plan"]["network"]["tiles"] >= 1
    assert result.report["restored_by"] and 0.5 < result.report["chi2"] < 1.5


def test_a_bar(counts, camera, capsys):
    clearshot.restore(counts, camera=camera, progress=True)
    assert "restoring" in capsys.readouterr().err


def test_notices_are_logged_and_reported(caplog):
    with caplog.at_level("INFO", "clearshot"):
        result = clearshot.restore(noisy((128, 128)).astype("uint16"))
    [estimated] = [notice for notice in result.report["notices"] if notice.startswith("camera estimated")]
    assert estimated in caplog.text


def test_what_is_wrong_is_warned_of(counts):
    with pytest.warns(clearshot.ClearshotWarning, match="chi2 is") as heard:
        clearshot.restore(counts, camera={"gain": 0.01, "offset": 100, "read_noise": 0})
    assert {warning.filename for warning in heard} == {__file__}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(clearshot.ClearshotWarning):
            clearshot.restore(counts, camera={"gain": 0.01, "offset": 100, "read_noise": 0})


@pytest.mark.parametrize("error", [clearshot.Cancelled, ZeroDivisionError])
def test_callbacks_stop_the_work(large, camera, error):
    def stop(done, total):
        raise error("enough")

    with pytest.raises(error, match="enough"):
        clearshot.restore(large, camera=camera, samples=50, progress=stop)
    clearshot.restore(large[:32, :32], camera=camera)


def test_errors_of_arrays_come_through(camera):
    class Broken:
        shape, dtype, chunks = (64, 64), np.dtype("uint16"), (32, 32)

        def __getitem__(self, key):
            raise PermissionError("the disk is gone")

    with pytest.raises(PermissionError, match="the disk is gone"):
        clearshot.restore(Broken(), camera=camera)

    class Place(np.ndarray):
        def __setitem__(self, key, value):
            raise BlockingIOError("no room")

    with pytest.raises(BlockingIOError, match="no room"):
        clearshot.denoise(np.zeros((32, 32)), "gaussian", out=np.zeros((32, 32), "float32").view(Place))


def test_ctrl_c_stops_and_nothing_is_broken(large, camera):
    timer = threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT])
    begin = time.monotonic()
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        clearshot.restore(large, camera=camera, samples=500)
    assert time.monotonic() - begin < 60
    result = clearshot.restore(large[:48, :48], camera=camera)
    assert np.isfinite(result.image).all()


def test_ctrl_c_in_a_script_leaves_no_file(tmp_path):
    clearshot.write(tmp_path / "a.tif", noisy((256, 256)).astype("uint16"))
    script = (
        "import clearshot\n"
        "say = lambda kind, what: print(kind, flush=True)\n"
        f"clearshot.restore_file('a.tif', 'b.tif', camera={CAMERA!r}, samples=500, std=True, callback=say)\n"
    )
    run = subprocess.Popen(
        [sys.executable, "-c", script], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    for line in run.stdout:
        if line.startswith("progress"):
            break
    run.send_signal(signal.SIGINT)
    _, said = run.communicate(timeout=120)
    assert "KeyboardInterrupt" in said and run.returncode != 0
    assert [path.name for path in tmp_path.iterdir()] == ["a.tif"]


def test_others_run_meanwhile(large, camera):
    """The interpreter's lock is released: another thread counts on while an image is restored."""
    counted, going = 0, True

    def count():
        nonlocal counted
        while going:
            counted += 1
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    try:
        before = counted
        clearshot.restore(large, camera=camera)
        meanwhile = counted - before
    finally:
        going = False
        thread.join()
    assert meanwhile > 20


def test_threads_restore_side_by_side(counts, camera):
    images = [counts + k for k in range(4)]
    wanted = [clearshot.restore(image, camera=camera).image for image in images]
    got = [None] * 4

    def restore(k):
        got[k] = clearshot.restore(images[k], camera=camera).image

    threads = [threading.Thread(target=restore, args=[k]) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(a, b)
