#!/usr/bin/env bash
# Builds the wheel into a fresh virtual environment and tests it there: `python/test.sh`, or `python/test.sh -m long` for the tests that take
# minutes. With --napari the napari plugin is tested too, under Xvfb. Other arguments are pytest's. CLEARSHOT_DATA names a folder of real images,
# if there is one at hand. Ends with 77 where pip cannot bring what is needed.
set -euo pipefail
cd "$(dirname "$0")"
here=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
napari=no
if [ "${1:-}" = --napari ]; then
    napari=yes
    shift
fi
cannot() {
    echo "skipped: $1"
    exit 77
}
python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || cannot 'no Python of 3.11 or newer'
python3 -m venv "$work/venv" || cannot 'python3 cannot make virtual environments'
export PATH="$work/venv/bin:$PATH" VIRTUAL_ENV="$work/venv" PIP_DISABLE_PIP_VERSION_CHECK=1
pip install --quiet 'maturin>=1.9,<2' || cannot 'pip cannot install maturin'
maturin build --release --out "$work/dist" --quiet
wheel=("$work"/dist/clearshot-*.whl)
pip install --quiet "${wheel[0]}[test]"
# From elsewhere, so that the package is the wheel's and not the folder's.
cd "$work"
python -m pytest --rootdir "$here" -c "$here/pyproject.toml" -p no:cacheprovider -rs "$@" "$here/tests"
if [ $napari = yes ]; then
    pip install --quiet "$here/napari-clearshot[test]"
    npe2 validate napari-clearshot
    xvfb-run --auto-servernum python -m pytest -c "$here/napari-clearshot/pyproject.toml" -p no:cacheprovider "$here/napari-clearshot/tests"
fi
