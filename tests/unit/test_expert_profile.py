"""The saved profile of expert uses: what comes back, and what is not taken for one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stratad.gguf.model import ModelFacts, read_model_facts
from stratad.gpu.expert_profile import ProfileKeeper, read_profile, write_profile
from tests.support import gguf_models

SCORES = {0: [1.5, 0.0, 3.0], 7: [0.0, 0.25, 0.0]}


@pytest.fixture
def model(tmp_path: Path) -> ModelFacts:
    pytest.importorskip("stratad._native", reason="the native module is not built")
    return read_model_facts(gguf_models.write_model(tmp_path / "model.gguf"))


def test_what_was_written_comes_back(model: ModelFacts, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    write_profile(path, model, SCORES)
    assert read_profile(path, model) == (SCORES, None)
    assert [one.name for one in tmp_path.iterdir() if "profile" in one.name] == ["profile.json"]


def test_without_a_file_there_is_nothing_to_tell(model: ModelFacts, tmp_path: Path) -> None:
    assert read_profile(tmp_path / "none.json", model) == ({}, None)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": 2}, "format 2"),
        ({"model": {"architecture": "other"}}, "another model"),
        ({"scores": {"0": [-1.0]}}, "damaged"),
        ({"scores": {"0": [1e999]}}, "damaged"),
        ({"scores": {"zero": [1.0]}}, "damaged"),
        ({"scores": {"0": 3}}, "damaged"),
        ({"scores": []}, "damaged"),
    ],
)
def test_a_file_that_does_not_fit_is_a_reason(
    model: ModelFacts, tmp_path: Path, change: dict[str, object], words: str
) -> None:
    path = tmp_path / "profile.json"
    write_profile(path, model, SCORES)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    scores, reason = read_profile(path, model)
    assert scores == {}
    assert reason is not None
    assert reason.code == "expert-profile-ignored"
    assert words in reason.message


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b"null"])
def test_rubbish_is_a_reason(model: ModelFacts, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "profile.json"
    path.write_bytes(content)
    scores, reason = read_profile(path, model)
    assert scores == {}
    assert reason is not None


def test_a_failed_write_leaves_the_former_file_and_says_so_once(
    model: ModelFacts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "missing" / "profile.json"
    keeper = ProfileKeeper(path, model, lambda: SCORES, 0)
    keeper.look()
    keeper.look()
    assert not path.exists()
    assert capsys.readouterr().err.count("cannot be saved") <= 1
    kept = tmp_path / "profile.json"
    ProfileKeeper(kept, model, lambda: SCORES, 0).look()
    ProfileKeeper(kept, model, dict, 0).look()
    assert read_profile(kept, model)[0] == SCORES, "an empty profile says nothing and replaces nothing"
