"""`python -m stratad.daemon` is the command `stratad`."""

from __future__ import annotations

from stratad.daemon.main import main

if __name__ == "__main__":
    main()
