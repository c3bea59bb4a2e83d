"""Types: the package is checked strictly, and the extension module has what its stub says."""

import subprocess
import sys


def check(*arguments, cwd):
    done = subprocess.run([sys.executable, "-m", *arguments], capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_package_is_typed(tmp_path):
    use = tmp_path / "use.py"
    use.write_text(
        "import clearshot, numpy as np\n"
        "result: clearshot.Result = clearshot.restore(np.zeros((8, 8)), camera={'gain': 1}, samples=2)\n"
        "image: clearshot.Image = clearshot.read('a.tif')\n"
    )
    check("mypy", "--strict", str(use), cwd=tmp_path)
    # xarray, dask and tqdm are optional, and not all of them have types.
    check("mypy", "--strict", "--ignore-missing-imports", "--package", "clearshot", cwd=tmp_path)


def test_the_stub_is_true(tmp_path):
    check("mypy.stubtest", "clearshot._native", "--ignore-missing-stub", cwd=tmp_path)
