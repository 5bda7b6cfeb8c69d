"""Documents made from the code itself: the configuration reference, the man pages, the pictures of plans.

`pytest tests/golden --update-golden` writes those of the repository anew. Nothing of the daemon imports this.
"""
