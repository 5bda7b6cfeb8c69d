"""The lab as part of .ci/run: every scenario but the lengthy ones, and those that failed once more.

An emulated processor on a busy host now and then loses a timer for good, in whatever the guest is doing: a machine
booted anew does not show it, and a fault of ours does. A scenario that fails twice fails the run. Where the host cannot
run the lab at all (not Debian 12, not root, no packages to be had), that is said and nothing is claimed.

usage: python -m tests.lab.ci
"""

from __future__ import annotations

import subprocess
import sys

from tests.lab.image import UNAVAILABLE_STATUS

_SCENARIOS = [
    "-m",
    "pytest",
    "-v",
    "-s",
    "-o",
    "python_files=scenario_*.py",
    "-m",
    "not lengthy",
    "tests/lab",
]


def main() -> int:
    """Exit status of the run that counts."""
    status = subprocess.run([sys.executable, *_SCENARIOS], check=False).returncode
    if status == UNAVAILABLE_STATUS:
        print("LEFT OUT: the lab; the line above says what this host lacks", flush=True)
        return 0
    if status != 0:
        print("the scenarios that failed, once more on machines booted anew", flush=True)
        status = subprocess.run([sys.executable, *_SCENARIOS, "--last-failed"], check=False).returncode
    return status


if __name__ == "__main__":
    sys.exit(main())
