"""`make soak`: the soak for as long as asked; exit status 1 when anything is not as it must be.

usage: python -m tests.soak [SECONDS]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.soak.run import soak


def main() -> int:
    """Runs it, prints the report and gives the exit status."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 300.0
    with tempfile.TemporaryDirectory(prefix="stratad-soak-") as folder:
        report = soak(Path(folder), seconds)
    print(report.text())
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
