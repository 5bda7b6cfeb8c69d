"""The real daemon with a stand-in GPU: answers, metrics, the saved profile, and what happens when the GPU fails."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.serving.support.daemon_process import LIMIT_SECONDS, DaemonProcess, started
from tests.serving.support.served import wait_until

pytest.importorskip("stratad._native", reason="the native module is not built")

from stratad.daemon.main import demo_model_path
from tests.gpu.fake_gpu import driverless_path
from tests.support import gguf_models, standin

MIB = 1 << 20
PROMPTS = ("The next morning, Elizabeth", "Mr. Darcy had never been so", "She was " + "very happy and " * 20)


@contextmanager
def daemon(
    folder: Path,
    settings: str = "",
    *,
    gpu: bool = True,
    variables: dict[str, str] | None = None,
    model: Path | None = None,
) -> Iterator[DaemonProcess]:
    """A daemon on the demo model or another, whose state lies in a folder beside `folder`."""
    state = folder.parent / "state"
    state.mkdir(parents=True, exist_ok=True)
    section = (
        f'[gpu]\nbackend_path = "{standin.module_path()}"\ndevices = ["STANDIN0"]\nvram_reserve_bytes = 0\n'
        if gpu
        else '[gpu]\nmode = "off"\n'
    )
    text = f'[placement]\nkernels = "ggml"\n{section}{settings}'
    environment = {
        "STATE_DIRECTORY": str(state),
        "GGML_CPU_TILED_MM": "0",
        **(variables or {}),
    }
    with started(folder, model or demo_model_path(), settings=text, variables=environment) as process:
        yield process


def complete(daemon: DaemonProcess, prompt: str, max_tokens: int = 16) -> httpx.Response:
    body = {"model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
    return httpx.post(f"{daemon.endpoint}/v1/completions", json=body, timeout=LIMIT_SECONDS)


def texts(daemon: DaemonProcess) -> list[str]:
    return [complete(daemon, prompt).json()["choices"][0]["text"] for prompt in PROMPTS]


def metric(daemon: DaemonProcess, name: str) -> float:
    lines = httpx.get(f"{daemon.endpoint}/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))


def reasons(daemon: DaemonProcess) -> set[str]:
    document = httpx.get(f"{daemon.endpoint}/status").json()
    return {reason["code"] for reason in document["reasons"]}


def test_answers_are_those_of_the_cpu_and_the_gpu_is_measured(tmp_path: Path) -> None:
    with daemon(tmp_path / "cpu", gpu=False) as cpu:
        cpu.wait_for("READY=1")
        expected = texts(cpu)
        assert metric(cpu, "stratad_gpu_steps_total") == 0
    settings = 'cache = "off"\nprefill_threshold = 16\n'
    with daemon(tmp_path / "gpu", settings) as hybrid:
        hybrid.wait_for("READY=1")
        assert texts(hybrid) == expected
        assert {"gpu-used"} <= reasons(hybrid)
        assert metric(hybrid, "stratad_gpu_steps_total") > 40
        assert metric(hybrid, "stratad_gpu_prefill_bytes_total") > 0
        for part in ("wait", "pool", "copy", "upload"):
            assert metric(hybrid, f"stratad_gpu_{part}_seconds_total") > 0, part
        assert metric(hybrid, "stratad_expert_cache_slots") == 0


def test_the_profile_is_saved_and_fills_the_cache_of_the_next_run(tmp_path: Path) -> None:
    settings = f"cache = {MIB}\nprefill_threshold = 64\n"
    with daemon(tmp_path / "first", settings) as first:
        first.wait_for("READY=1")
        assert metric(first, "stratad_expert_cache_resident") < metric(first, "stratad_expert_cache_slots")
        texts(first)
        assert metric(first, "stratad_expert_cache_hits_total") > 0
        assert metric(first, "stratad_expert_cache_swaps_total") > 0
        assert first.terminate() == 0
    profile = tmp_path / "state" / "expert-profile.json"
    document = json.loads(profile.read_text())
    assert document["format"] == 1
    assert max(max(scores) for scores in document["scores"].values()) > 1
    with daemon(tmp_path / "second", settings) as second:
        second.wait_for("READY=1")
        assert metric(second, "stratad_expert_cache_resident") == metric(second, "stratad_expert_cache_slots")
        assert "expert-profile-ignored" not in reasons(second)
        second.terminate()
    document["model"]["expert_bytes"] += 1
    profile.write_text(json.dumps(document))
    with daemon(tmp_path / "third", settings) as third:
        third.wait_for("READY=1")
        assert "expert-profile-ignored" in reasons(third)


def test_the_threshold_is_measured_when_none_is_set(tmp_path: Path) -> None:
    with daemon(tmp_path / "run", 'cache = "off"\n') as hybrid:
        hybrid.wait_for("READY=1")
        assert "gpu-prefill-threshold" in reasons(hybrid)
        assert complete(hybrid, PROMPTS[2]).status_code == 200


# Loading and the first answer take fewer graphs than this, each of a decode step has several.
LATE_GRAPH = "400"


@pytest.mark.parametrize("how", ["1", "2"])
def test_a_failing_gpu_ends_the_daemon_for_its_supervisor(tmp_path: Path, how: str) -> None:
    variables = {"STANDIN_FAIL_GRAPH": LATE_GRAPH, "STANDIN_FAIL_HOW": how}
    with daemon(tmp_path / "run", f"cache = {MIB}\nprefill_threshold = 16\n", variables=variables) as hybrid:
        hybrid.wait_for("READY=1")
        answer = complete(hybrid, PROMPTS[0], max_tokens=1000)
        assert answer.status_code == 500, "the request ends, with an error"
        assert hybrid.exit_status() == 1
        assert "error: a GPU has failed" in hybrid.log
        assert "because: STRATAD-STANDIN0:" in hybrid.log
        assert "Traceback" not in hybrid.log.split("error: a GPU has failed")[1]
    assert not (tmp_path / "state" / "expert-profile.json").exists()


def test_a_backend_that_ends_the_process_leaves_a_clear_error(tmp_path: Path) -> None:
    variables = {"STANDIN_FAIL_GRAPH": LATE_GRAPH, "STANDIN_FAIL_HOW": "4"}
    with daemon(tmp_path / "run", f"cache = {MIB}\nprefill_threshold = 16\n", variables=variables) as hybrid:
        hybrid.wait_for("READY=1")
        with pytest.raises(httpx.RemoteProtocolError):
            complete(hybrid, PROMPTS[0], max_tokens=1000)
        assert hybrid.exit_status() == 1
        assert "error: a GPU has failed" in hybrid.log
        assert "an illegal memory access" in hybrid.log


def test_a_failing_gpu_is_replaced_by_the_cpus_when_configured(tmp_path: Path) -> None:
    with daemon(tmp_path / "cpu", gpu=False) as cpu:
        cpu.wait_for("READY=1")
        expected = texts(cpu)
    variables = {"STANDIN_FAIL_GRAPH": LATE_GRAPH, "STANDIN_FAIL_HOW": "2", "WATCHDOG_USEC": "10000000"}
    settings = f'cache = {MIB}\nprefill_threshold = 16\non_failure = "cpu"\n'
    with daemon(tmp_path / "gpu", settings, variables=variables) as hybrid:
        hybrid.wait_for("READY=1")
        assert complete(hybrid, PROMPTS[0], max_tokens=1000).status_code == 500
        wait_until(lambda: httpx.get(f"{hybrid.endpoint}/health").status_code == 200)
        wait_until(lambda: "gpu-failed" in reasons(hybrid))
        assert texts(hybrid) == expected
        assert httpx.get(f"{hybrid.endpoint}/health").json()["status"] == "degraded"
        assert not {"gpu-used", "gpu-cache"} & reasons(hybrid)
        assert hybrid.terminate() == 0


def test_a_gpu_that_fails_before_the_first_answer_is_an_error_or_replaced(tmp_path: Path) -> None:
    variables = {"STANDIN_FAIL_GRAPH": "2", "STANDIN_FAIL_HOW": "1"}
    with daemon(tmp_path / "exit", "prefill_threshold = 16\n", variables=variables) as ended:
        assert ended.exit_status() == 1
        assert "error: a GPU has failed" in ended.log
    with daemon(
        tmp_path / "cpu", 'prefill_threshold = 16\non_failure = "cpu"\n', variables=variables
    ) as served:
        served.wait_for("READY=1")
        assert "gpu-failed" in reasons(served)
        assert complete(served, PROMPTS[0]).status_code == 200


def test_a_model_without_experts_is_all_the_gpus(tmp_path: Path) -> None:
    model = gguf_models.write_model(tmp_path / "dense.gguf", "dense", vocabulary="bytes")
    with daemon(tmp_path / "run", model=model) as served:
        served.wait_for("READY=1")
        assert complete(served, PROMPTS[0]).status_code == 200
        assert metric(served, "stratad_gpu_steps_total") > 0
        assert not {"gpu-cache-off", "gpu-prefill-off", "gpu-prefill-threshold"} & reasons(served)


def test_a_gpu_without_room_for_the_model_is_an_error_with_a_way_out(tmp_path: Path) -> None:
    with daemon(tmp_path / "run", variables={"STANDIN_MEMORY_BYTES": "65536"}) as refused:
        assert refused.exit_status() == 1
        assert "lower gpu.layers" in refused.log


def test_a_gpu_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    with started(
        tmp_path,
        demo_model_path(),
        settings=f'[gpu]\nbackend_path = "{standin.module_path()}"\ndevices = ["CUDA0"]\n',
    ) as refused:
        assert refused.exit_status() == 2
        assert "STANDIN0" in refused.log


def test_a_module_whose_driver_is_absent_is_told_and_the_cpus_answer(tmp_path: Path) -> None:
    with daemon(tmp_path / "cpu", gpu=False) as cpu:
        cpu.wait_for("READY=1")
        expected = texts(cpu)
    section = f'[gpu]\nbackend_path = "{driverless_path()}"\n'
    with started(
        tmp_path / "auto", demo_model_path(), settings=f'[placement]\nkernels = "ggml"\n{section}'
    ) as served:
        served.wait_for("READY=1")
        assert texts(served) == expected
        document = httpx.get(f"{served.endpoint}/status").json()
        (told,) = [reason for reason in document["reasons"] if reason["code"] == "gpu-module-unusable"]
        assert "libdriverless-gpu.so cannot be loaded: libabsent-driver.so" in told["message"]
        assert "install the GPU's driver" in told["remedy"]
        assert "libabsent-driver.so" in served.log
        assert "Traceback" not in served.log
    with started(tmp_path / "on", demo_model_path(), settings=f'{section}mode = "on"\n') as refused:
        assert refused.exit_status() == 2
        assert "because: libdriverless-gpu.so cannot be loaded: libabsent-driver.so" in refused.log
        assert "remedy:  install the GPU's driver" in refused.log
