"""Run a node from this checkout, for development.

    python3 scripts/run_node.py                        on 127.0.0.1:9092, in a directory that is deleted at the end
    python3 scripts/run_node.py --data-dir data        in a directory that is kept
    python3 scripts/run_node.py --listen 127.0.0.1:0   any other flag of `fairlog serve`

The first run creates .venv. The log level is debug unless FAIRLOG_LOG_LEVEL says otherwise. Stop it with Ctrl-C.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

import environment


def main(arguments: list[str]) -> int:
    if "-h" in arguments or "--help" in arguments:
        print(__doc__)
        return 0
    python = environment.ensure("quickstart")
    os.environ.setdefault("FAIRLOG_LOG_LEVEL", "debug")
    command = [str(python), "-m", "fairlog.cli", "serve", *arguments]
    if "FAIRLOG_DATA_DIR" in os.environ or any(word.startswith(("--data-dir", "--config")) for word in arguments):
        os.execv(python, command)
    with tempfile.TemporaryDirectory(prefix="fairlog-") as directory:
        print(f"data directory, removed at the end: {directory}", flush=True)
        return _run([*command, "--data-dir", directory])


def _run(command: list[str]) -> int:
    with subprocess.Popen(command) as node:
        while True:
            try:
                return node.wait()
            except KeyboardInterrupt:
                # The terminal sent it to the node, too, which is stopping now.
                continue


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
