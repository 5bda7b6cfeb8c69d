"""Writes docs/METRICS.md: `python -m stratad.metrics > docs/METRICS.md`."""

from __future__ import annotations

import sys

from stratad.metrics.registry import render_documentation

if __name__ == "__main__":
    sys.stdout.write(render_documentation())
