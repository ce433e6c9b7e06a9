"""The child of client.py: `python -m benchmarks.worker MODULE:CLASS ARGUMENTS`.

Creates one object of the class with ARGUMENTS (JSON), then reads calls, a line of JSON each, and answers each with a
line. Nothing else may write to standard output; the class may write to standard error. Ends when its input ends.
"""

from __future__ import annotations

import importlib
import json
import sys
import traceback
from collections.abc import Callable
from typing import Any


def _answer(call: Callable[[], Any]) -> Any:
    """The answer to this call. A failure is sent as well: it is raised in the caller."""
    try:
        message = {"answer": call()}
    except Exception:  # noqa: BLE001
        message = {"failed": traceback.format_exc()}
    print(json.dumps(message), flush=True)
    return message.get("answer")


def main(target: str, arguments: str) -> None:
    module, _, name = target.partition(":")
    made: list[Any] = []
    _answer(lambda: made.append(getattr(importlib.import_module(module), name)(**json.loads(arguments))))
    for line in sys.stdin:
        if not made:
            return
        request = json.loads(line)
        _answer(lambda request=request: getattr(made[0], request["method"])(**request["arguments"]))


if __name__ == "__main__":
    main(*sys.argv[1:])
