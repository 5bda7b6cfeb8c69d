"""Which experts were used most, kept between runs: expert-profile.json in the state directory.

    {"format": 1, "model": {"architecture": ..., "expert_bytes": ..., "tensor_bytes": ...},
     "scores": {"0": [12.5, 0.0, ...], ...}}

Scores are decayed counts of uses, by layer and expert. The file is written beside and renamed, so that a reader
never sees half of it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from planner import Effect, Reason
from stratad import journal
from stratad.gguf.model import ModelFacts
from stratad.replaced_file import replaced_file
from stratad.watch import Watch

FILE_NAME = "expert-profile.json"
FORMAT = 1
SAVE_PAUSE_SECONDS = 600.0

Scores = Mapping[int, Sequence[float]]


def read_profile(path: Path, model: ModelFacts) -> tuple[Scores, Reason | None]:
    """The scores of an earlier run of this model, and why they cannot be used where that is so.

    Without a file there are none, and nothing to tell.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}, None
    except (OSError, UnicodeDecodeError) as error:
        return {}, _ignored(path, str(error))
    try:
        document = json.loads(text)
        if document["format"] != FORMAT:
            return {}, _ignored(path, f"it has format {document['format']}, this version reads {FORMAT}")
        if document["model"] != _model_key(model):
            return {}, _ignored(path, "it was recorded for another model")
        scores = {int(layer): _layer_scores(values) for layer, values in document["scores"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return {}, _ignored(path, f"it is damaged ({type(error).__name__}: {error})")
    return scores, None


def write_profile(path: Path, model: ModelFacts, scores: Scores) -> None:
    """Replaces the file. Raises OSError when that cannot be done; the former one is whole then."""
    document = {
        "format": FORMAT,
        "model": _model_key(model),
        "scores": {
            str(layer): [round(float(score), 4) for score in scores[layer]] for layer in sorted(scores)
        },
    }
    with replaced_file(path, 0o600) as file:
        file.write(json.dumps(document).encode())


class ProfileKeeper(Watch):
    """Saves the profile now and then, and at the end. Where it cannot be written it says so once."""

    def __init__(
        self, path: Path, model: ModelFacts, profile: Callable[[], Scores], pause_seconds: float
    ) -> None:
        super().__init__("profile", pause_seconds)
        self._path, self._model, self._profile = path, model, profile
        self._has_complained = False

    def look(self) -> None:
        """Saves what the cache has counted; nothing without a cache."""
        scores = self._profile()
        if not scores:
            return
        try:
            write_profile(self._path, self._model, scores)
        except OSError as error:
            if not self._has_complained:
                journal.warn("expert profile", "cannot be saved", path=str(self._path), reason=str(error))
            self._has_complained = True


def _model_key(model: ModelFacts) -> dict[str, object]:
    return {
        "architecture": model.architecture,
        "expert_bytes": model.expert_bytes,
        "tensor_bytes": model.tensor_bytes_total,
    }


def _layer_scores(values: object) -> list[float]:
    if not isinstance(values, list):
        raise ValueError("a layer's scores are no list")
    scores = [float(value) for value in values]
    if not all(math.isfinite(score) and score >= 0 for score in scores):
        raise ValueError("a score is no count")
    return scores


def _ignored(path: Path, why: str) -> Reason:
    return Reason(
        "expert-profile-ignored",
        Effect.INFORMS,
        f"{path.name} is not used: {why}; the cache learns anew",
        {"path": str(path)},
    )
