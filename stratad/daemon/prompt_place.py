"""Where prompts are saved over a restart, and the fingerprint that says for whom."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from planner import Effect, Reason
from stratad.config import Configuration, Environment
from stratad.engine.prompt_keeping import LoadedPrompts
from stratad.engine.saved_prompts import FILE_NAME, SavedPromptsPlace
from stratad.gguf.model import ModelFacts
from stratad.native.apply import chosen_kernels
from stratad.native.batch_limits import PoolLimits
from stratad.native.runner import build_digest

# Of each model file so much from both ends goes into the fingerprint, beside its size and time: the header with the
# vocabulary, and the last weights. All of it would take as long as loading.
_END_BYTES = 1 << 20


def saved_prompts_place(
    configuration: Configuration, environment: Environment, model: ModelFacts, limits: PoolLimits
) -> tuple[SavedPromptsPlace | None, Reason | None]:
    """Give the place for saved prompts when they are asked for, or the Reason why there is none."""
    if not configuration.model.save_slots:
        return None, None
    directory = configuration.server.state_directory or environment.state_directory
    if directory is None:
        return None, _not_possible("no state directory is known", None)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_writable = os.access(directory, os.W_OK | os.X_OK)
    except OSError as error:
        return None, _not_possible(str(error.strerror), directory)
    if not is_writable:
        return None, _not_possible("this user may not write there", directory)
    place = SavedPromptsPlace(
        directory, prompts_fingerprint(configuration, model, limits), configuration.model.save_slots_bytes
    )
    return place, None


def prompts_fingerprint(configuration: Configuration, model: ModelFacts, limits: PoolLimits) -> str:
    """Give a digest of everything that decides a saved prompt's bytes: model files, build, slots, kernels and the
    limits by which batches are multiplied in one way or another.

    Raises:
        OSError: A model file cannot be read.
    """
    parts = {
        "files": [_file_digest(path) for path in model.paths],
        "build": build_digest(),
        "slots": configuration.model.slots,
        "kernels": chosen_kernels(configuration.placement.kernels),
        "limits": limits.identity(),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def loaded_reason(loaded: LoadedPrompts, place: SavedPromptsPlace) -> Reason | None:
    """Give the Reason for what the start found; None when there was nothing."""
    path = str(place.directory / FILE_NAME)
    if loaded.problem is not None:
        return Reason(
            code="saved-prompts-ignored",
            effect=Effect.WARNS,
            message=f"{path} is not used, or not all of it: {loaded.problem}",
            evidence={"path": path, "restored_prompts": loaded.prompts},
            remedy="nothing to do: it is written anew when the daemon stops",
        )
    if not loaded.prompts:
        return None
    return Reason(
        code="saved-prompts-restored",
        effect=Effect.INFORMS,
        message=f"{loaded.prompts} prompts of {loaded.tokens} tokens are back from {path}",
        evidence={"path": path, "restored_prompts": loaded.prompts, "restored_tokens": loaded.tokens},
    )


def _not_possible(because: str, directory: Path | None) -> Reason:
    return Reason(
        code="saved-prompts-not-possible",
        effect=Effect.WARNS,
        message=f"prompts are not saved over a restart: {because}",
        evidence={"directory": None if directory is None else str(directory)},
        remedy="set server.state_directory to a folder that this user may write, or model.save_slots = false",
    )


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        digest = hashlib.sha256(f"{status.st_size} {status.st_mtime_ns}".encode())
        digest.update(file.read(_END_BYTES))
        file.seek(max(0, status.st_size - _END_BYTES))
        digest.update(file.read(_END_BYTES))
    return digest.hexdigest()
