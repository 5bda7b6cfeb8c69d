"""Runs a toy model on the CPUs and hybrid on a device, every path once, and prints one line of JSON about it."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from stratad import _native as native
from stratad.config import GpuSection
from stratad.errors import StratadError, render_error
from stratad.gpu.runtime import open_gpus, pin_arenas
from stratad.plan.facts import machine_facts
from tests.support import gguf_models
from tests.support.native import all_logits, load_plain, make_pool

PROMPT = tuple((17 * index + 5) % 320 for index in range(24))
DECODED = tuple((31 * index + 7) % 320 for index in range(12))
# A device multiplies by its own kernels, with activations in 16 bits. Of the largest logit, 0.01 was measured at most
# positions. Where two experts score nearly alike another one may be chosen, and that position is then further off.
TOLERANCE = 0.03
MOST_BEYOND = 0.1
# A choice is clear when its logit leads by this share of the largest.
CLEAR_LEAD = 0.06
SLICES = 2
# A backend has kernels of its own for quantised blocks, for halves and for whole floats.
EXPERT_TYPES = ("Q4_K", "Q8_0", "F16", "BF16", "F32")


def compared(logits: np.ndarray, reference: np.ndarray) -> dict[str, Any]:
    """How far apart two runs are, and whether they choose alike where the choice is clear."""
    scale = float(np.abs(reference).max())
    ordered = np.sort(reference, axis=1)
    is_clear = ordered[:, -1] - ordered[:, -2] > CLEAR_LEAD * scale
    differs = logits.argmax(axis=1) != reference.argmax(axis=1)
    by_position = np.abs(logits - reference).max(axis=1) / scale
    return {
        "median_difference": float(np.median(by_position)),
        "differences": [float(difference) for difference in by_position],
        "clear_choices": int(is_clear.sum()),
        "clear_choices_that_differ": int((is_clear & differs).sum()),
    }


def paths_of(path: Path, device: str, reference: np.ndarray) -> tuple[dict[str, Any], native.Model]:
    """Each way through the proxy device: cold experts on the pool, hot ones in VRAM, a batch on the device."""
    gpu = native.GpuOffload([device])
    model = native.Model.load([str(path)], make_pool(2, SLICES), gpu=gpu)
    found: dict[str, Any] = {}
    for name, pool_tokens, cache_bytes in (("pool", 64, 0), ("cache", 64, None), ("staged", 8, 0)):
        gpu.set_pool_tokens(pool_tokens)
        before = gpu.counters()[0][1]
        gpu.open_memory(reserve_bytes=0, cache_bytes=cache_bytes)
        logits = all_logits(model, PROMPT, DECODED)
        after = gpu.counters()[0][1]
        found[name] = {
            **compared(logits, reference),
            "pool_chains": after.pool_chains - before.pool_chains,
            "staged_products": after.staged_products - before.staged_products,
            "hits": after.cache.hits,
        }
    return found, model


def main() -> None:
    """Prints the report; ends with status 1 and the error where no GPU can be used."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--module", type=Path, required=True)
    try:
        findings = open_gpus(GpuSection(mode="on", backend_path=parser.parse_args().module), machine_facts())
    except StratadError as error:
        sys.exit(render_error(error))
    gpu = findings.gpus[0]
    paths = {}
    with tempfile.TemporaryDirectory() as folder:
        for expert_type in EXPERT_TYPES:
            path = gguf_models.write_model(Path(folder) / f"{expert_type}.gguf", "qwen3moe", expert_type)
            reference = all_logits(load_plain(path), PROMPT, DECODED)
            paths[expert_type], model = paths_of(path, gpu.name, reference)
        arena = model.arenas[0]
        report = {
            "backend": gpu.backend,
            "device": gpu.name,
            "description": gpu.description,
            "pci_address": gpu.pci_address,
            "location": next(reason.message for reason in findings.reasons if reason.code == "gpu-used"),
            "paths": paths,
            "pinning": [reason.code for reason in pin_arenas(model.arenas, [gpu.backend]).reasons],
            "copy_rates": [native.measure_copy_rate(arena, index, gpu.name) for index in range(SLICES)],
        }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
