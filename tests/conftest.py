"""Settings every test shares."""

from __future__ import annotations

import os

# ggml multiplies batches of eight and more rows an expert with a tiled kernel that sums in another order. With this
# switch, read by ggml once per process, its CPU backend and our pool use the same dot products at every batch size.
os.environ.setdefault("GGML_CPU_TILED_MM", "0")
