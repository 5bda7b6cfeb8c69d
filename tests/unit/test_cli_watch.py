"""What `stratactl watch` makes of looks at the daemon: frames that fit, lines, documents."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest

from stratad.cli.watch_look import Difference, Look, read_samples
from stratad.cli.watch_view import Terminal, document, frame, plain_line

SIZES = [(80, 24), (120, 40), (30, 4), (44, 10), (200, 60)]


def reason(code: str, effect: str, remedy: str | None = None) -> dict[str, object]:
    message = (
        f"{code} was found and this sentence says with numbers such as 1234567 what was compared with what"
    )
    return {"code": code, "effect": effect, "message": message, "remedy": remedy}


def status(state: str = "ready", **changes: object) -> dict[str, Any]:
    ready: dict[str, Any] = {
        "state": state,
        "stage": "loading experts",
        "loaded_ratio": 1.0,
        "model": "demo",
        "version": "0",
        "plan": {"policy": "split", "fingerprint": "9c41e2aa00ff"},
        "reasons": [
            reason("estimated-gain", "chooses"),
            reason("headroom-tight", "warns", "stop other programs that use memory there"),
        ],
        "placement": {
            "verdict": "met",
            "limit_ratio": 0.95,
            "worst_ratio": 0.998,
            "age_seconds": 12.0,
            "slices": [
                {"slice": 0, "home_nodes": [0], "local_ratio": 1.0},
                {"slice": 1, "home_nodes": [1], "local_ratio": 0.998},
            ],
        },
        "decode": {
            "requests_running": 2,
            "requests_waiting": 1,
            "slots": 4,
            "last_timings": {"predicted_per_second": 54.0},
        },
    }
    return {**ready, **changes}


def look(
    at_seconds: float, *, steps: float = 0, slices: int = 2, cache_slots: int | None = None, **changes: object
) -> Look:
    """A look after so many steps of 20 ms, of which each gave two tokens; with a GPU where it has `cache_slots`.

    It answered 10 choices before the first step and 6 of 8 in each since.
    """
    lines = [
        f'stratad_generation_tokens_total{{model_name="m"}} {2 * steps}',
        f'stratad_prompt_tokens_total{{model_name="m"}} {steps}',
        f'stratad_prompt_tokens_cached_total{{model_name="m"}} {3 * steps}',
        f"stratad_decode_steps_total {steps}",
        f"stratad_decode_seconds_total {0.02 * steps}",
        f"stratad_prefill_seconds_total {0.01 * steps}",
        f"stratad_engine_seconds_total {0.03 * steps}",
        'stratad_queue_capacity{model_name="m"} 32',
        'stratad_kv_cache_usage_ratio{model_name="m"} 0.125',
    ]
    for index in range(slices):
        lines += [
            f'stratad_pool_tasks_total{{slice="{index}"}} {steps}',
            f'stratad_pool_workers{{slice="{index}"}} 8',
            f'stratad_pool_barrier_wait_seconds_total{{slice="{index}"}} {0.003 * steps}',
            f'stratad_pool_drain_seconds_total{{slice="{index}"}} {0.0006 * steps}',
            f'stratad_expert_bytes_total{{slice="{index}"}} {(3 << 30) * 0.03 * steps}',
            f'stratad_dense_bytes_total{{slice="{index}"}} {(1 << 30) * 0.03 * steps}',
            f'stratad_arena_bytes{{node="{index}"}} {210 << 30}',
            f'stratad_node_memory_available_bytes{{node="{index}"}} {12 << 30}',
            f'stratad_node_memory_total_bytes{{node="{index}"}} {256 << 30}',
        ]
    if cache_slots is not None:
        lines += [
            f'stratad_gpu_steps_total{{gpu="CUDA0"}} {steps}',
            f'stratad_gpu_wait_seconds_total{{gpu="CUDA0"}} {0.006 * steps}',
            f'stratad_gpu_pool_seconds_total{{gpu="CUDA0"}} {0.015 * steps}',
            f'stratad_expert_cache_hits_total{{gpu="CUDA0"}} {6 * steps + 10 if cache_slots else 0}',
            f'stratad_expert_cache_misses_total{{gpu="CUDA0"}} {2 * steps if cache_slots else 0}',
            f'stratad_expert_cache_slots{{gpu="CUDA0"}} {cache_slots}',
            f'stratad_expert_cache_resident{{gpu="CUDA0"}} {cache_slots // 2}',
        ]
    document = changes.pop("document", None) or status()
    assert isinstance(document, Mapping)
    return Look(at_seconds, document, read_samples("\n".join(lines) + "\n"))


def shown(looks: list[Look], terminal: Terminal, error: str | None = None) -> list[str]:
    return frame(looks, error, "14:02:11", "http://127.0.0.1:8090", terminal)


def test_rates_are_what_happened_between_two_looks() -> None:
    difference = Difference(look(10.0, steps=100), look(12.0, steps=150))
    progress = difference.progress()
    assert progress.tokens_rate == 50
    assert progress.steps_rate == 25
    assert progress.step_seconds == pytest.approx(0.02)
    assert progress.reused_ratio == 0.75
    assert progress.decode_share == pytest.approx(0.5)
    first, second = difference.slices()
    assert (first.nodes, second.nodes, second.local_ratio) == ("0", "1", 0.998)
    assert first.wait_ratio == pytest.approx(0.1)
    assert first.drain_ratio == pytest.approx(0.02)
    assert first.read_bytes_per_second == pytest.approx(4 << 30)


@pytest.mark.parametrize("earlier", [None, look(10.0, steps=500)])
def test_without_an_earlier_look_or_after_a_restart_there_are_no_rates(earlier: Look | None) -> None:
    difference = Difference(earlier, look(12.0, steps=150))
    assert difference.progress().tokens_rate is None
    assert all(row.wait_ratio is None for row in difference.slices())


def test_the_view_has_what_an_operator_looks_for() -> None:
    lines = shown([look(10.0, steps=100), look(12.0, steps=150)], Terminal(80, 24))
    text = "\n".join(lines)
    for part in (
        "demo: ready",
        "split  (fingerprint 9c41e2aa00ff)",
        "50.0 tokens/s, 25.0 steps/s, 20.0 ms a step",
        "75% of prompts reused",
        "██░░ 2 of 4 running, 1 of 32 waiting, KV memory 12.5 %",
        "1         1     99.8 %   10.0 %  2.0 %  4.0 GiB  8",
        "0         210.0 GiB  12.0 GiB   256.0 GiB",
        "checked   12 s ago: met, worst 99.8%, limit 95.0%",
        "remedy: stop other programs",
    ):
        assert part in text, part
    assert text.index("headroom-tight") < text.index("estimated-gain")
    # The worst first, and what there is no room for is counted.
    text = "\n".join(shown([look(10.0, steps=100), look(12.0, steps=150)], Terminal(80, 21)))
    assert "remedy: stop other programs" in text
    assert text.endswith("1 more: `stratactl status`")
    text = "\n".join(shown([look(10.0, steps=100), look(12.0, steps=150)], Terminal(80, 20)))
    assert "headroom-tight" in text and "remedy" not in text
    assert text.endswith("2 more: `stratactl status`")


def test_hits_in_vram_are_told_since_the_last_look_and_in_all() -> None:
    looks = [look(10.0, steps=100, cache_slots=96), look(12.0, steps=150, cache_slots=96)]
    (row,) = Difference(*looks).gpus()
    assert (row.gpu, row.resident_experts, row.slots) == ("CUDA0", 48, 96)
    assert row.hit_ratio == 0.75
    assert row.total_hit_ratio == pytest.approx(910 / 1210)
    assert row.wait_ratio == pytest.approx(0.2)
    assert row.pool_ratio == pytest.approx(0.5)
    text = "\n".join(shown(looks, Terminal(120, 40)))
    assert "CUDA0     75.0 %     75.2 %  48 of 96  20.0 %  50.0 %" in text
    assert " CUDA0-hits=75.0% " in plain_line(looks, None, "14:02:11")
    assert document(looks, "")["gpus"][0]["hit_ratio"] == 0.75  # type: ignore[index]


def test_without_a_cache_or_a_gpu_there_are_no_hits() -> None:
    looks = [look(10.0, steps=100, cache_slots=0), look(12.0, steps=150, cache_slots=0)]
    (row,) = Difference(*looks).gpus()
    assert (row.hit_ratio, row.total_hit_ratio, row.slots) == (None, None, 0)
    assert " CUDA0-hits=- " in plain_line(looks, None, "14:02:11")
    plain = [look(10.0, steps=100), look(12.0, steps=150)]
    assert list(Difference(*plain).gpus()) == []
    assert "VRAM hits" not in "\n".join(shown(plain, Terminal(120, 40)))


@pytest.mark.parametrize(("columns", "rows"), SIZES)
@pytest.mark.parametrize("slices", [1, 2, 64])
@pytest.mark.parametrize("state", ["ready", "loading", "gone"])
def test_a_frame_fits_its_terminal(columns: int, rows: int, slices: int, state: str) -> None:
    loading = status("loading", decode=None, placement=None, loaded_ratio=0.5)
    looks = [
        look(
            moment,
            steps=40 * moment * moment,
            slices=slices,
            document=loading if state == "loading" else None,
        )
        for moment in range(30)
    ]
    error = "Connection refused, and a long story about it " * 4 if state == "gone" else None
    for terminal in (Terminal(columns, rows), Terminal(columns, rows, has_colour=True)):
        lines = [re.sub(r"\x1b\[\d+m", "", line) for line in shown(looks, terminal, error)]
        assert 1 <= len(lines) <= rows
        assert max(map(len, lines)) <= columns
        assert not any("\n" in line for line in lines)


def test_a_terminal_without_unicode_gets_none() -> None:
    looks = [look(float(moment), steps=40 * moment * moment) for moment in range(20)]
    for terminal in (Terminal(80, 24, has_unicode=False), Terminal(40, 24, has_unicode=False)):
        assert "\n".join(shown(looks, terminal)).isascii()


def test_colours_are_there_only_where_they_are_wanted() -> None:
    looks = [look(1.0), look(2.0, steps=3)]
    assert "\x1b" not in "".join(shown(looks, Terminal(80, 24)))
    coloured = shown(looks, Terminal(80, 24, has_colour=True))
    assert "\x1b[32mready\x1b[0m" in coloured[0]
    assert any(line.startswith("\x1b[33mwarns") for line in coloured)


def test_loading_shows_how_far_it_is_and_how_long_it_takes() -> None:
    def loading(done: float) -> dict[str, Any]:
        return status("loading", decode=None, placement=None, loaded_ratio=done)

    looks = [look(10.0, document=loading(0.5)), look(20.0, document=loading(0.6))]
    assert "loading   ████████████░░░░░░░░ 60%  loading experts, about 40 s left" in shown(
        looks, Terminal(80, 24)
    )
    other_stage = {**loading(0.9), "stage": "loading weights"}
    looks = [look(10.0, document=other_stage), look(20.0, document=loading(0.1))]
    assert "left" not in "\n".join(shown(looks, Terminal(80, 24)))


def test_a_daemon_that_is_gone_is_told_with_what_it_was_before() -> None:
    text = "\n".join(shown([look(1.0)], Terminal(80, 24), "Connection refused"))
    assert "not reachable" in text
    assert "Connection refused" in text
    assert "demo: ready" in text
    assert "Connection refused" in "\n".join(shown([], Terminal(80, 24), "Connection refused"))


def test_an_idle_daemon_tells_how_fast_its_last_answer_was() -> None:
    assert "idle; the last answer came at 54.0 tokens/s" in "\n".join(
        shown([look(1.0, steps=9), look(2.0, steps=9)], Terminal(80, 24))
    )


def test_a_line_for_a_log_has_no_blank_inside_a_value() -> None:
    looks = [look(10.0, steps=100), look(12.0, steps=150)]
    assert plain_line(looks, None, "14:02:11") == (
        "14:02:11 ready tokens/s=50.0 prompt-tokens/s=25.0 running=2/4 waiting=1 kv=12.5% wait=10.0% drain=2.0% "
        "local=99.8% warnings=headroom-tight"
    )
    loading = status("loading", decode=None, placement=None, loaded_ratio=0.25, reasons=[])
    assert plain_line([look(1.0, document=loading)], None, "14:02:11") == (
        "14:02:11 loading stage=loading-experts loaded=25%"
    )
    assert plain_line([], "refused", "14:02:11") == "14:02:11 unreachable refused"


def test_the_document_has_the_status_and_what_happened_since_the_look_before() -> None:
    looks = [look(10.0, steps=100), look(12.0, steps=150)]
    found = json.loads(json.dumps(document(looks, "now")))
    assert (found["time"], found["elapsed_seconds"]) == ("now", 2.0)
    assert found["progress"]["tokens_rate"] == 50
    assert [row["workers"] for row in found["slices"]] == [8, 8]
    assert found["status"]["plan"]["policy"] == "split"
    assert json.loads(json.dumps(document(looks[:1], "now")))["progress"]["tokens_rate"] is None


def test_nodes_and_slices_are_in_the_order_of_their_numbers() -> None:
    difference = Difference(None, look(1.0, slices=12))
    assert [row.slice_index for row in difference.slices()] == [str(index) for index in range(12)]
    assert [row.node_id for row in difference.nodes()] == [str(index) for index in range(12)]
