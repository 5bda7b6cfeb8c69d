"""Metrics: one table, and what is made from it. `python -m stratad.metrics > docs/METRICS.md` writes its page."""
