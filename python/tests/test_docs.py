"""Examples run: those of docstrings, and those of the pages, as they are written."""

import importlib
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import clearshot
from conftest import doctests, noisy

ROOT = Path(__file__).resolve().parents[2]
MODULES = ["clearshot"] + [f"clearshot.{module.name}" for module in pkgutil.iter_modules(clearshot.__path__)]


@pytest.mark.parametrize("name", [name for name in MODULES if name not in ("clearshot._native", "clearshot.__main__")])
def test_docstrings(name, tmp_path):
    assert doctests(importlib.import_module(name), tmp_path).failed == 0


def test_everything_public_has_a_docstring():
    for name in clearshot.__all__:
        assert name == "__version__" or getattr(clearshot, name).__doc__, name


@pytest.mark.parametrize("page", ["README.md", "python/README.md", "docs/python.md"])
def test_pages(page, tmp_path):
    """A page's blocks of Python, one after the other, in a folder with the files that it speaks of."""
    text = (ROOT / page).read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks
    # As small as `adapt` takes them.
    counts = noisy((128, 128)).round().astype("uint16")
    clearshot.write(tmp_path / "noisy.tif", counts, pixel_size=0.1)
    script = "import warnings\nwarnings.simplefilter('error', ResourceWarning)\n" + "\n".join(blocks)
    (tmp_path / "page.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "MPLBACKEND": "agg"}
    )
    assert done.returncode == 0, done.stderr
    assert np.isfinite(np.asarray(clearshot.read(tmp_path / "clean.tif"))).all()
