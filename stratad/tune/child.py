"""The daemon as a child that does not outlive `stratactl tune`: `python -m stratad.tune.child PARENT --config FILE`.

A judge that is killed cannot end its children; the kernel does, with the signal that has the daemon stop in order.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ties this process's life to its parent's, then is the daemon."""
    parent_id = int(sys.argv.pop(1))
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGTERM)) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent_id:
        # It ended before it could be watched.
        sys.exit(1)
    from stratad.daemon.main import main as daemon_main

    daemon_main()


if __name__ == "__main__":
    main()
