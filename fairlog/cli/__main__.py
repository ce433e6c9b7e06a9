"""`python -m fairlog.cli` is `fairlog`."""

from __future__ import annotations

from fairlog.cli import main

if __name__ == "__main__":
    main()
