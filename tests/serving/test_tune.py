"""`stratactl tune` for real: fresh daemons on a tiny model, judged, and nothing left of them. No claim about speed."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from planner import Policy, tuning_from_json
from planner.sysfs import Tree
from tests.serving.support.served import wait_until

pytest.importorskip("stratad._native", reason="the native module is not built")

from stratad.cli.tune import Contest, _contest
from stratad.cli.watch_look import read_samples
from stratad.client import Request, ask_json
from stratad.config import load_configuration
from stratad.errors import DaemonError
from stratad.gguf.model import read_model_facts
from stratad.gpu.expert_profile import FILE_NAME, write_profile
from stratad.plan.facts import machine_facts
from stratad.state.recorded import BENCH_FILE_NAME
from stratad.tune import ArmFailed
from stratad.tune.child_daemon import signals_deferred
from stratad.tune.daemon_engine import (
    START_LIMIT_SECONDS,
    DaemonEngine,
    PageCache,
    Setting,
    prepare_page_cache,
    recorded_bench,
    recorded_profile,
    started_daemon,
)
from stratad.tune.prompts import Questions
from stratad.tune.service_pause import service_paused
from tests.support import standin
from tests.support.gguf_models import write_model

LIMIT_SECONDS = 300.0
ARMS = "off:1,off:2"
SHORT = Questions(("The ship came", "It was late and"), answer_tokens=8)

pytestmark = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="two arms need two CPUs: one worker against two"
)


@pytest.fixture(scope="module")
def configuration_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tune")
    model = write_model(folder / "tiny.gguf", vocabulary="bytes")
    path = folder / "stratad.toml"
    path.write_text(
        f'[model]\npath = "{model}"\ncontext_tokens = 1024\nthreads = 1\nslots = 4\n[placement]\ntest_slices = 2\n'
    )
    return path


@pytest.fixture(scope="module")
def contest(configuration_path: Path) -> Contest:
    configuration = load_configuration(configuration_path)
    model = read_model_facts(configuration.model.path)
    setting = Setting(configuration, model, SHORT, PageCache.WARM)
    return _contest(setting, ARMS, machine_facts())


def children_of(process_id: int) -> list[int]:
    """Processes whose parent this is."""
    found = []
    for name in Tree(Path("/")).names("/proc") or ():
        if name.isdigit():
            words = (Tree(Path("/")).text(f"/proc/{name}/stat") or "").rpartition(")")[2].split()
            if len(words) > 1 and int(words[1]) == process_id and words[0] != "Z":
                found.append(int(name))
    return found


def is_alive(process_id: int) -> bool:
    words = (Tree(Path("/")).text(f"/proc/{process_id}/stat") or "").rpartition(")")[2].split()
    return bool(words) and words[0] != "Z"


@contextmanager
def running_tune(configuration: Path, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A tuning that would go on for long; its temporary files lie in `folder`/tmp."""
    (folder / "tmp").mkdir()
    command = [sys.executable, "-m", "stratad.cli.main", "tune", "--config", str(configuration), "--force"]
    command += ["--arms", ARMS, "--rounds", "100", "--tokens", "500", "--output", str(folder / "tune.json")]
    environment = {**os.environ, "TMPDIR": str(folder / "tmp")}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_until(lambda: bool(children_of(process.pid)) or process.poll() is not None)
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_tuning_ends_with_a_document_that_the_planner_reads(
    configuration_path: Path, tmp_path: Path
) -> None:
    output = tmp_path / "tune.json"
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("The ship came\n---\nIt was late and\n")
    command = [sys.executable, "-m", "stratad.cli.main", "tune", "--config", str(configuration_path)]
    command += ["--arms", ARMS, "--rounds", "1", "--tokens", "8", "--prompt-file", str(prompts)]
    done = subprocess.run(
        [*command, "--force", "--output", str(output), "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads(output.read_text())
    tuning = tuning_from_json(output.read_text())
    assert [(result.policy, result.worker_count) for result in tuning.results] == [
        (Policy.OFF, 1),
        (Policy.OFF, 2),
    ]
    assert all(len(result.tokens_per_second) == 2 for result in tuning.results)
    assert tuning.verdict is None  # one block
    details = json.loads(output.read_text())["details"]
    assert details["answers_agree"]
    trials = [trial for arm in details["arms"] for trial in arm["trials"]]
    assert all(trial["cached_tokens"] == 0 for trial in trials), "a prompt was answered out of memory"


def test_every_trial_is_a_start_of_its_own_and_leaves_nothing(
    contest: Contest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    engine = DaemonEngine(contest.setting, contest.arms)
    first, second = engine.try_arm("off:1"), engine.try_arm("off:2")
    assert first.answer_digest == second.answer_digest
    assert first.decode_tokens_per_second > 0
    assert first.prompt_tokens_per_second > 0
    # The first token of an answer is no step, and the warm-up's sixteen tokens are not counted.
    assert 0 < (first.decode_steps or 0) <= len(SHORT.prompts) * (SHORT.answer_tokens - 1)
    assert children_of(os.getpid()) == []
    assert list(tmp_path.iterdir()) == []


def test_an_arm_that_cannot_start_fails_with_the_daemons_own_words(contest: Contest) -> None:
    other = replace(contest.arms[0], plan=replace(contest.arms[0].plan, machine_fingerprint="000000000000"))
    with pytest.raises(ArmFailed, match="another machine"):
        DaemonEngine(contest.setting, (other,)).try_arm(other.name)
    assert children_of(os.getpid()) == []


def gpu_contest(contest: Contest, expert_profile: bytes | None) -> Contest:
    """The same arms with a stand-in GPU that has room for some of the experts."""
    configuration = contest.setting.configuration
    gpu = replace(
        configuration.gpu,
        mode="on",
        backend_path=standin.module_path(),
        devices=("STANDIN0",),
        vram_reserve_bytes=0,
        cache=1 << 20,
        prefill_threshold=64,
    )
    setting = replace(
        contest.setting, configuration=replace(configuration, gpu=gpu), expert_profile=expert_profile
    )
    return _contest(setting, ARMS, machine_facts())


def cache_after_an_answer(contest: Contest, folder: Path) -> dict[str, float]:
    """What a start's expert cache has counted, after one answer."""
    folder.mkdir()
    with started_daemon(folder, contest.arms[0], contest.setting) as child:
        endpoint = child.wait_until_ready(START_LIMIT_SECONDS)
        body = {"prompt": SHORT.prompts[0], "max_tokens": 24, "temperature": 0}
        ask_json(endpoint, Request("POST", "/v1/completions", body))
        samples = read_samples(httpx.get(f"{endpoint}/metrics").text)
    prefix = "stratad_expert_cache_"
    return {
        name.removeprefix(prefix): series[0][1] for name, series in samples.items() if name.startswith(prefix)
    }


def test_a_start_has_the_recorded_experts_in_a_gpus_cache_and_keeps_them(
    contest: Contest, tmp_path: Path
) -> None:
    model = contest.setting.model
    state = tmp_path / "service"
    state.mkdir()
    assert recorded_profile(state, model) is None
    (state / FILE_NAME).write_text('{"format": 0}')
    assert recorded_profile(state, model) is None, "a frozen cache would be filled by chance"
    # The experts that come last are recorded as the most used ones.
    write_profile(
        state / FILE_NAME, model, {layer: [float(expert) for expert in range(8)] for layer in (0, 1)}
    )
    recorded = recorded_profile(state, model)
    assert recorded == (state / FILE_NAME).read_bytes()
    frozen = cache_after_an_answer(gpu_contest(contest, recorded), tmp_path / "frozen")
    assert 0 < frozen["resident"] == frozen["slots"]
    assert frozen["hits_total"] > 0
    assert frozen["swaps_total"] == 0
    assert json.loads((tmp_path / "frozen" / "state" / FILE_NAME).read_text())["scores"]
    assert (state / FILE_NAME).read_bytes() == recorded
    learning = cache_after_an_answer(gpu_contest(contest, None), tmp_path / "learning")
    assert learning["swaps_total"] > 0


def test_a_start_takes_the_services_limits_of_batches(contest: Contest, tmp_path: Path) -> None:
    assert recorded_bench(tmp_path) is None
    # It says that it is another machine's, so that the start names it.
    bench = {"schema_version": 1, "machine_fingerprint": "x", "batches": {"kernels": "avx2", "limits": []}}
    (tmp_path / BENCH_FILE_NAME).write_text(json.dumps(bench))
    setting = replace(contest.setting, bench_record=recorded_bench(tmp_path))
    folder = tmp_path / "start"
    folder.mkdir()
    with started_daemon(folder, _contest(setting, ARMS, machine_facts()).arms[0], setting) as child:
        status = ask_json(child.wait_until_ready(START_LIMIT_SECONDS), Request("GET", "/status"))
    reasons = {reason["code"]: reason for reason in status["reasons"]}
    assert "of machine x" in reasons["batch-limits-ignored"]["message"]


@pytest.mark.parametrize("state", list(PageCache))
def test_before_a_start_the_files_cache_is_in_the_state_asked_for(tmp_path: Path, state: PageCache) -> None:
    kind = subprocess.run(
        ["stat", "-f", "-c", "%T", str(tmp_path)], capture_output=True, text=True, check=True
    )
    if kind.stdout.strip() in {"tmpfs", "ramfs"}:
        pytest.skip("temporary files lie in memory here, whatever is dropped")
    path = tmp_path / "model"
    with path.open("wb") as file:
        file.write(bytes(4 << 20))
        file.flush()
        os.fsync(file.fileno())
    other = PageCache.DROP if state is PageCache.WARM else PageCache.WARM
    for wanted in (other, state):
        prepare_page_cache((path,), wanted)
        assert cached_share(path) == (1.0 if wanted is PageCache.WARM else 0.0)


def cached_share(path: Path) -> float:
    """The part of a file's pages that lie in the page cache. Source: mincore(2)."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
        pages = (ctypes.c_ubyte * (len(mapping) // mmap.PAGESIZE))()
        start = ctypes.c_char.from_buffer(mapping)
        size = ctypes.c_size_t(len(mapping))
        assert ctypes.CDLL(None).mincore(ctypes.byref(start), size, pages) == 0
        del start
        return sum(page & 1 for page in pages) / len(pages)


def test_prompts_that_do_not_fit_fail_with_the_servers_words(contest: Contest) -> None:
    long = replace(contest.setting, questions=Questions(("x" * 2000,), 8))
    with pytest.raises(ArmFailed, match="the context holds"):
        DaemonEngine(long, contest.arms).try_arm("off:1")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_ends_its_child_and_leaves_no_file(
    configuration_path: Path, tmp_path: Path, number: signal.Signals
) -> None:
    with running_tune(configuration_path, tmp_path) as process:
        (child,) = children_of(process.pid)
        process.send_signal(number)
        _, errors = process.communicate(timeout=LIMIT_SECONDS)
        assert process.returncode == 130, errors
        assert "Traceback" not in errors
        assert not is_alive(child)
    assert list((tmp_path / "tmp").iterdir()) == []
    assert not (tmp_path / "tune.json").exists()


def test_killed_it_takes_its_child_along(configuration_path: Path, tmp_path: Path) -> None:
    with running_tune(configuration_path, tmp_path) as process:
        (child,) = children_of(process.pid)
        process.kill()
        process.wait(LIMIT_SECONDS)
        wait_until(lambda: not is_alive(child))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_a_child_is_made_waits_for_the_child(number: signal.Signals) -> None:
    """Another thread may take it, as numpy's do: the handler runs on this one all the same."""
    made = []
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), signals_deferred():
        thread = threading.Thread(target=os.kill, args=(os.getpid(), number))
        thread.start()
        thread.join()
        made.append("child")
    assert made == ["child"]
    assert signal.getsignal(number) is before


class RememberedService:
    """A service that runs, and a list of what was done to it."""

    def __init__(self, *, is_running: bool) -> None:
        self.is_running, self.done = is_running, list[str]()

    def is_active(self, unit: str) -> bool:
        return self.is_running

    def stop(self, unit: str) -> None:
        self.done.append(f"stop {unit}")
        self.is_running = False

    def start(self, unit: str) -> None:
        self.done.append(f"start {unit}")
        self.is_running = True


def test_a_running_service_is_refused_unless_somebody_says_so() -> None:
    service = RememberedService(is_running=True)
    with pytest.raises(DaemonError) as caught, service_paused(service, may_stop=False):
        raise AssertionError("it must not get here")
    assert "--stop-service" in caught.value.remedy
    assert service.done == []


def test_a_stopped_service_is_started_again_whatever_happens() -> None:
    service = RememberedService(is_running=True)
    with pytest.raises(KeyboardInterrupt), service_paused(service, may_stop=True):
        assert not service.is_running
        raise KeyboardInterrupt
    assert service.done == ["stop stratad.service", "start stratad.service"]


def test_a_service_that_does_not_run_is_left_alone() -> None:
    service = RememberedService(is_running=False)
    with service_paused(service, may_stop=True):
        pass
    assert service.done == []
