"""Images that tests share, and where doctests write."""

import doctest
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import clearshot

CAMERA = {"gain": 0.5, "offset": 100, "read_noise": 1.5}


def noisy(shape, seed=5):
    """Discs on a slope under a camera's noise, in counts."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[: shape[-2], : shape[-1]]
    light = 20 + 0.2 * x + 60 * ((y % 40 - 20) ** 2 + (x % 50 - 25) ** 2 < 120)
    electrons = rng.poisson(np.broadcast_to(light, shape)) + rng.normal(0, 1.5, shape)
    return 100 + electrons / 0.5


@pytest.fixture(autouse=True, scope="session")
def ctrl_c():
    """Shells start what runs in the background with interrupts ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def counts():
    return noisy((48, 64)).round().astype("uint16")


@pytest.fixture
def camera():
    return dict(CAMERA)


@pytest.fixture(scope="session")
def data():
    """Real files, where there are some at hand."""
    folder = os.environ.get("CLEARSHOT_DATA")
    if not folder:
        pytest.skip("CLEARSHOT_DATA names no folder of real images")
    return Path(folder)


def program(*arguments):
    """Runs the program, as the wheel carries it."""
    done = subprocess.run([sys.executable, "-m", "clearshot", *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def doctests(module, folder):
    """Runs the examples of a module in a folder."""
    here = os.getcwd()
    os.chdir(folder)
    try:
        return doctest.testmod(module, extraglobs={"clearshot": clearshot})
    finally:
        os.chdir(here)
