"""The program: `python -m clearshot` and the command `clearshot`."""

import sys

from ._native import program


def main() -> int:
    """Runs the program with the arguments of this process and returns its exit status."""
    return program(["clearshot", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
