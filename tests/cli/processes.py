"""The command line as a process, as users have it: without the test tools.

kio and trio load hypothesis and pytest where they find them, which takes longer than all that the commands do.
"""

from __future__ import annotations

import sys

FAIRLOG = (
    sys.executable,
    "-c",
    "import sys; sys.modules['hypothesis'] = sys.modules['pytest'] = sys.modules['_pytest'] = None;"
    " from fairlog.cli import main; main()",
)
