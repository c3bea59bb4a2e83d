#!/usr/bin/env bash
# Builds the wheel, installs it into a virtual environment and tests it there.
#
#   python/test.sh                    in a fresh environment
#   python/test.sh --keep FOLDER      in this one, which is made where it is missing or has other requirements
#   python/test.sh --napari           the napari plugin too, under Xvfb
#   python/test.sh -m long -s         other arguments are pytest's: here the tests that take minutes
#
# CLEARSHOT_DATA names a folder of real images, if there is one at hand. Ends with 77 where pip cannot bring what is needed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
environment=$work/environment
napari=no
while true; do
    case "${1:-}" in
        --napari) napari=yes ;;
        --keep) environment=$(realpath -m "$2") && shift ;;
        *) break ;;
    esac
    shift
done
cannot() {
    echo "skipped: $1"
    exit 77
}

# install REQUIREMENTS: what a file asks for, once.
install() {
    local installed=$environment/$1.installed
    cmp -s "$here/$1" "$installed" && return
    pip install --quiet --requirement "$here/$1" || cannot "pip cannot install what $1 asks for"
    cp "$here/$1" "$installed"
}

python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || cannot 'no Python of 3.11 or newer'
[ -x "$environment/bin/pip" ] || python3 -m venv "$environment" || cannot 'python3 cannot make virtual environments'
export PATH="$environment/bin:$PATH" VIRTUAL_ENV="$environment" PIP_DISABLE_PIP_VERSION_CHECK=1
install requirements.txt
# Into the workspace's target folder, where the crates are built already.
(cd "$here" && maturin build --release --out "$work/dist" --quiet)
pip install --quiet --force-reinstall --no-deps "$work"/dist/clearshot-*.whl
# From elsewhere, so that the package is the wheel's and not the folder's.
cd "$work"
python -m pytest --rootdir "$here" -c "$here/pyproject.toml" -p no:cacheprovider -rs "$@" "$here/tests"
if [ $napari = yes ]; then
    command -v xvfb-run > /dev/null || cannot 'no xvfb-run, so the napari plugin is not tested'
    install requirements-napari.txt
    pip install --quiet --force-reinstall --no-deps "$here/napari-clearshot"
    npe2 validate napari-clearshot
    xvfb-run --auto-servernum python -m pytest -c "$here/napari-clearshot/pyproject.toml" -p no:cacheprovider "$here/napari-clearshot/tests"
fi
