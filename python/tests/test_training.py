"""Training from Python: the program's runs to the bit, heard of, stopped and resumed; models fitted to arrays."""

import json
import os
import signal
import threading

import numpy as np
import pytest

import clearshot
from conftest import noisy, program

SHORT = ["experiment=supervised", "trainer.device=cpu"]


def records(folder):
    """What a run measured, less what a clock did."""
    clocks = {"seconds", "images_per_second", "waiting"}
    lines = (folder / "records.jsonl").read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if key not in clocks} for line in lines]


def weights(folder, iteration):
    return (folder / f"checkpoints/iteration-{iteration:09}/model/diffusion_pytorch_model.safetensors").read_bytes()


def test_a_run_like_the_programs(tmp_path, counts, camera):
    overrides = [*SHORT, "trainer.iterations=2", "seed=3"]
    steps, kinds = [], set()
    run = clearshot.train(
        overrides, out=tmp_path / "a", progress=lambda *at: steps.append(at), callback=lambda kind, _: kinds.add(kind)
    )
    program("train", *overrides, "--out", tmp_path / "b")
    assert records(tmp_path / "a") == records(tmp_path / "b")
    assert weights(tmp_path / "a", 2) == weights(tmp_path / "b", 2)
    assert (run.folder, run.report["ending"], run.report["iterations"]) == (tmp_path / "a", "finished", 2)
    assert {"training", "record", "note"} <= kinds and steps == sorted(steps)
    run.model.save(tmp_path / "mine.clearshot")
    mine = clearshot.Model.load(tmp_path / "mine.clearshot")
    arguments = {"camera": camera, "method": "model"}
    np.testing.assert_array_equal(
        clearshot.restore(counts, model=mine, **arguments).image, clearshot.restore(counts, model=run.model, **arguments).image
    )
    with pytest.raises(clearshot.ClearshotError, match="contains a run already"):
        clearshot.train(overrides, out=tmp_path / "a")


def interrupt(*_):
    os.kill(os.getpid(), signal.SIGINT)


def give_up(*_):
    raise clearshot.Cancelled("enough")


@pytest.mark.parametrize(("stop", "error"), [(interrupt, KeyboardInterrupt), (give_up, clearshot.Cancelled)])
def test_a_run_that_is_stopped_is_resumed(tmp_path, stop, error):
    # Progress is told twenty times a second at most, so not every quick iteration is heard of: the run is stopped at the first that is, far from its end.
    overrides = [*SHORT, "trainer.crop=16", "trainer.batch=2", "trainer.iterations=400"]
    stopped = []

    def once(done, total):
        if done > 0 and not stopped:
            stopped.append(done)
            stop()

    with pytest.raises(error):
        clearshot.train(overrides, out=tmp_path / "a", progress=once)
    [checkpoint] = (tmp_path / "a/checkpoints").iterdir()
    at = int(checkpoint.name.removeprefix("iteration-"))
    assert stopped[0] <= at < 400
    resumed = clearshot.train(out=tmp_path / "a", resume=True)
    assert resumed.report["iterations"] == 400
    clearshot.train(overrides, out=tmp_path / "b")
    assert weights(tmp_path / "a", 400) == weights(tmp_path / "b", 400)


def test_settings_that_are_refused(tmp_path):
    with pytest.raises(clearshot.SettingError, match="trainer.iteration"):
        clearshot.train([*SHORT, "trainer.iteration=4"], out=tmp_path / "a")
    with pytest.raises(clearshot.ClearshotError, match="smaller than a crop"):
        clearshot.adapt(noisy((32, 32)).astype("uint16"), seconds=1, camera={"gain": 0.5, "offset": 100, "read_noise": 1.5})


def test_adapt_hears_and_stops(tmp_path, camera):
    image = noisy((160, 160)).round().astype("uint16")
    kinds = set()
    fitted = clearshot.adapt([image], seconds=2, camera=camera, callback=lambda kind, _: kinds.add(kind))
    assert fitted.text.startswith(("adapted from noise alone in", "not adapted")) and kinds
    assert fitted.kept == fitted.report["kept"]
    fitted.model.save(tmp_path / "mine.clearshot")
    assert clearshot.restore(image[:64, :64], model=tmp_path / "mine.clearshot", camera=camera).image.shape == (64, 64)
    threading.Timer(3, interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        clearshot.adapt([image], seconds=600, camera=camera, folder=tmp_path / "run")
    with pytest.raises(clearshot.Cancelled):
        clearshot.adapt([image], seconds=600, camera=camera, progress=give_up)


def test_adapt_learns_from_what_it_is_told(camera):
    movie = noisy((6, 160, 160)).round().astype("uint16")
    told = {"seconds": 1, "camera": camera, "anyway": True}
    for source in ("repeats", "noise"):
        assert clearshot.adapt(movie, axes="TYX", source=source, **told).report["from"] == source
    with pytest.raises(clearshot.ClearshotError, match="repeats are frames along T"):
        clearshot.adapt(movie[0], source="repeats", **told)
    with pytest.raises(clearshot.SettingError, match="source"):
        clearshot.adapt(movie[0], source="truth", **told)
