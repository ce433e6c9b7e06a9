"""The command `fairlog`, run in the process of a test."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fairlog.cli import main

FairlogCommand = Callable[..., tuple[int, str, str]]
"""Called with the arguments behind `fairlog`; answers exit code, standard output, and standard error."""


def fairlog_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> FairlogCommand:
    """Runs the command line in this process, for one test."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["fairlog", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            main()
        captured = capsys.readouterr()
        assert isinstance(exit_.value.code, int)
        return exit_.value.code, captured.out, captured.err

    return run
