"""Progress of work: a bar, a function of the caller, notices for the log."""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections.abc import Callable
from typing import Any

from .errors import ClearshotWarning

#: What `progress` may be: a bar or none, or a function of how many steps of how many are done.
Progress = bool | Callable[[int, int], object]
#: What `callback` may be: a function of a kind of event and what there is to say of it.
Callback = Callable[[str, dict[str, Any]], object]

log = logging.getLogger("clearshot")


class Listener:
    """Receives the events of the extension module. Exceptions of the functions that it calls stop the work."""

    def __init__(self, label: str, progress: Progress = False, callback: Callback | None = None) -> None:
        self.notices: list[str] = []
        self.plan: dict[str, Any] | None = None
        self._callback = callback
        self._bar = _bar(label) if progress is True else None
        self._progress = progress if callable(progress) else None

    def __call__(self, kind: str, text: str) -> None:
        what = json.loads(text)
        if kind == "progress":
            done, total = what
            if self._bar is not None:
                self._bar(done, total)
            if self._progress is not None:
                self._progress(done, total)
            what = {"done": done, "total": total}
        elif kind == "notice":
            self.notices.append(what["text"])
            if what["warning"]:
                warnings.warn(what["text"], ClearshotWarning, stacklevel=_callers())
            else:
                log.info("%s", what["text"])
        elif kind == "plan":
            self.plan = what
        if self._callback is not None:
            self._callback(kind, what)

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar(None, None)


def _callers() -> int:
    """The stack level of the user's call into the package, so that a warning names that line."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__package__") == __package__:
        level, frame = level + 1, frame.f_back
    return level


def _bar(label: str) -> Callable[[int | None, int | None], None]:
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return _line(label)
    bar = tqdm(desc=label, leave=False)

    def show(done: int | None, total: int | None) -> None:
        if done is None or total is None:
            bar.close()
            return
        bar.total = total
        bar.update(done - bar.n)

    return show


def _line(label: str) -> Callable[[int | None, int | None], None]:
    def show(done: int | None, total: int | None) -> None:
        end = "\r\033[K" if done is None or total is None else f"\r{label}: {100 * done // max(total, 1)} %"
        print(end, end="", file=sys.stderr, flush=True)

    return show
