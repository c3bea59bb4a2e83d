"""An environment of their own for the scripts here, which compare with packages that this project does not need otherwise."""
import importlib.util
import os
import pathlib
import subprocess
import sys


def enter(venv, packages, modules):
    """Re-runs the script in an environment that has the modules: this one, or one in `venv` with the packages installed. Says so
    and ends where they cannot be had."""
    if all(importlib.util.find_spec(module) for module in modules):
        return
    if os.environ.get("CLEARSHOT_CONFORMANCE_VENV"):
        sys.exit("the packages cannot be imported in " + sys.prefix)
    python = pathlib.Path(venv) / "bin" / "python"
    if not python.exists():
        subprocess.check_call([sys.executable, "-m", "venv", venv])
    if subprocess.call([str(python), "-m", "pip", "install", "-q", *packages]) != 0:
        print("skipped: no network to install " + ", ".join(packages) + " from")
        sys.exit(0)
    os.environ["CLEARSHOT_CONFORMANCE_VENV"] = "1"
    os.execv(str(python), [str(python), *sys.argv])
