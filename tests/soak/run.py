"""The soak: a live daemon, 64 clients in processes that are killed now and then, and what must hold at the end."""

from __future__ import annotations

import json
import os
import queue
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from stratad.daemon.main import demo_model_path
from tests.serving.support.daemon_process import DaemonProcess, started
from tests.serving.support.served import wait_until
from tests.soak.answers import SoloAnswer, SoloToken
from tests.soak.client import write_answers

PROCESSES, CLIENTS_EACH = 8, 8
KILL_PAUSE_SECONDS = 2.0
SETTINGS = """slots = 8
chunk_tokens = 32
prompt_cache_bytes = 8388608
[server]
port = 0
max_queue = 48
max_body_bytes = 1048576
request_timeout_seconds = 100.0
"""

# Resident memory after the warm-up may grow by this much. Measured: 2 MB in five minutes (7000 actions), 4 MB in 40 s,
# for the allocators' free lists. A leak of some kilobytes for each action is more in five minutes.
RSS_GROWTH_LIMIT_BYTES = 16 << 20
# Most threads of asyncio's default executor: concurrent.futures' own rule.
EXECUTOR_THREADS = min(32, (os.cpu_count() or 1) + 4)
# Of all complete answers so many have to be the same to the end, or comparing proves little. Which of the prompts come
# to a near tie is luck of the bits, and each is a twelfth of all: with one build's kernels 1 to 9 % parted, with
# another's 16 %, all at such places.
SAME_SHARE_MINIMUM = 0.5

BEGINNINGS = (
    "It is a truth universally acknowledged",
    "The next morning, Elizabeth",
    "Mr. Darcy had never been so",
    "She was " + "very happy and " * 40,
    "When they",
    "The whole party",
    "I am afraid, sir, that",
    "London in the winter " + "was cold and dark, " * 20,
    "Captain Wentworth was not the man",
    "My dear Jane,",
    "The same conversation, " * 12 + "and one end of it",
    "The same conversation, " * 12 + "or quite another",
)


@dataclass(slots=True)
class Report:
    """What came of it; `problems` is empty when all is well."""

    seconds: float
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    wrong: list[dict[str, Any]] = field(default_factory=list)
    gaps_nats: list[float] = field(default_factory=list)
    kills: int = 0
    rss_bytes: list[tuple[float, int]] = field(default_factory=list)
    rss_growth_bytes: int = 0
    files: tuple[int, int] = (0, 0)
    threads: tuple[int, int] = (0, 0)
    problems: list[str] = field(default_factory=list)

    def count(self, *outcomes: str) -> int:
        """Actions that ended so."""
        return sum(count for (_, outcome), count in self.outcomes.items() if outcome in outcomes)

    def text(self) -> str:
        """The report for a person."""
        lines = [
            f"{kind:20} {outcome:12} {count}" for (kind, outcome), count in sorted(self.outcomes.items())
        ]
        answers = self.count("same", "near tie", "wrong")
        lines += [
            f"actions: {sum(self.outcomes.values())} in {self.seconds:.0f} s; answers compared: {answers}, "
            f"of these parted at a near tie: {self.count('near tie')} "
            f"(largest gap {max(self.gaps_nats, default=0.0):.3f} nats)",
            f"client processes killed: {self.kills}",
            f"resident memory after the warm-up: {self.rss_growth_bytes / 1e6:+.1f} MB "
            f"(limit {RSS_GROWTH_LIMIT_BYTES / 1e6:.0f}); file descriptors {self.files[0]} -> {self.files[1]}, "
            f"threads {self.threads[0]} -> {self.threads[1]}",
            *(f"PROBLEM: {problem}" for problem in self.problems),
        ]
        return "\n".join(lines)


def soak(folder: Path, seconds: float) -> Report:
    """Runs the daemon under load for so long, and judges what came of it."""
    report = Report(seconds)
    with started(folder, demo_model_path(), settings=SETTINGS) as daemon:
        daemon.wait_for("READY=1")
        answers = solo_answers(daemon.endpoint)
        write_answers(folder / "answers.json", answers)
        before = open_files(daemon), thread_count(daemon)
        with client_processes(daemon.endpoint, folder / "answers.json", report) as lines:
            _watch(daemon, seconds, lines, report)
        _judge_end(daemon, answers, before, report)
        if daemon.terminate() != 0:
            report.problems.append("the daemon did not end well")
    _judge_answers(report)
    return report


def solo_answers(endpoint: str) -> list[SoloAnswer]:
    """The greedy answers to all beginnings, in several lengths, one after the other."""
    return [_solo_answer(endpoint, prompt, 6 + 7 * (index % 6)) for index, prompt in enumerate(BEGINNINGS)]


def _solo_answer(endpoint: str, prompt: str, max_tokens: int) -> SoloAnswer:
    body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "logprobs": 2}
    response = httpx.post(endpoint + "/v1/completions", json=body, timeout=60)
    response.raise_for_status()
    columns = response.json()["choices"][0]["logprobs"]
    tokens = []
    for text, likelihood, likeliest in zip(
        columns["tokens"], columns["token_logprobs"], columns["top_logprobs"], strict=True
    ):
        others = [(value, other) for other, value in likeliest.items() if other != text]
        value, other_text = max(others, default=(float("-inf"), ""))
        tokens.append(SoloToken(text, other_text, likelihood - value))
    return SoloAnswer(prompt, max_tokens, tuple(tokens))


class _ClientProcess:
    def __init__(self, endpoint: str, answers: Path, seed: int, lines: queue.Queue[str]) -> None:
        command = [
            sys.executable,
            "-m",
            "tests.soak.client",
            endpoint,
            str(answers),
            str(CLIENTS_EACH),
            str(seed),
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read, args=(lines,))
        self._reader.start()

    def kill(self) -> None:
        """As `kill -9`: no connection is closed by the client itself."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self._reader.join()

    def _read(self, lines: queue.Queue[str]) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            for line in output:
                lines.put(line)


@contextmanager
def client_processes(endpoint: str, answers: Path, report: Report) -> Iterator[queue.Queue[str]]:
    """Keeps the processes running while one of them is killed again and again; gives the lines they write."""
    lines: queue.Queue[str] = queue.Queue()
    processes = [_ClientProcess(endpoint, answers, seed, lines) for seed in range(PROCESSES)]
    stop = threading.Event()

    def replace_one_after_the_other() -> None:
        choices = random.Random(1)
        while not stop.wait(KILL_PAUSE_SECONDS):
            index = choices.randrange(PROCESSES)
            processes[index].kill()
            report.kills += 1
            processes[index] = _ClientProcess(endpoint, answers, PROCESSES + report.kills, lines)

    killer = threading.Thread(target=replace_one_after_the_other)
    killer.start()
    try:
        yield lines
    finally:
        stop.set()
        killer.join()
        for process in processes:
            process.kill()


def _watch(daemon: DaemonProcess, seconds: float, lines: queue.Queue[str], report: Report) -> None:
    """Collects what the clients tell, and the daemon's resident memory once a second, until the time is over."""
    start_seconds = time.monotonic()
    next_sample = 0.0
    while (elapsed := time.monotonic() - start_seconds) < seconds:
        if daemon.process.poll() is not None:
            report.problems.append(f"the daemon has ended: {daemon.log[-2000:]}")
            return
        if elapsed >= next_sample:
            report.rss_bytes.append((elapsed, resident_bytes(daemon)))
            next_sample += 1.0
        try:
            _note(json.loads(lines.get(timeout=0.2)), report)
        except (queue.Empty, ValueError):
            # A killed process may leave half a line.
            continue


def _note(action: dict[str, Any], report: Report) -> None:
    report.outcomes[action["kind"], action["outcome"]] += 1
    if action["outcome"] in ("wrong", "failed", "hang"):
        report.wrong.append(action)
    if action["outcome"] == "near tie":
        report.gaps_nats.append(action["gap_nats"])


def _judge_end(
    daemon: DaemonProcess, answers: list[SoloAnswer], before: tuple[int, int], report: Report
) -> None:
    """All slots free, file descriptors back, and the same answers as at the start."""
    if daemon.process.poll() is not None:
        return
    wait_until(lambda: in_flight(daemon) == 0)
    wait_until(lambda: open_files(daemon) <= before[0])
    for answer, again in zip(answers, solo_answers(daemon.endpoint), strict=True):
        if answer.compare(again.text)[0].value == "wrong":
            report.problems.append(
                f"another answer than at the start: {again.text!r} to {answer.prompt[:40]!r}"
            )
    report.files = before[0], open_files(daemon)
    report.threads = before[1], thread_count(daemon)
    # asyncio keeps the threads of its executor, which starts one whenever none is idle.
    if report.threads[1] > before[1] + EXECUTOR_THREADS:
        report.problems.append(f"threads {report.threads[0]} -> {report.threads[1]}")
    _judge_memory(report)


def _judge_memory(report: Report) -> None:
    """The median of the last fifth against that of a fifth after the first two."""
    fifth = report.seconds / 5
    warm = [size for elapsed, size in report.rss_bytes if 2 * fifth <= elapsed < 3 * fifth]
    last = [size for elapsed, size in report.rss_bytes if 4 * fifth <= elapsed]
    report.rss_growth_bytes = round(statistics.median(last) - statistics.median(warm))
    if report.rss_growth_bytes > RSS_GROWTH_LIMIT_BYTES:
        report.problems.append(
            f"resident memory grew by {report.rss_growth_bytes} bytes after the warm-up, "
            f"the limit is {RSS_GROWTH_LIMIT_BYTES}"
        )


def _judge_answers(report: Report) -> None:
    report.problems += [f"{action}" for action in report.wrong[:20]]
    answers = report.count("same", "near tie")
    if not answers:
        report.problems.append("no answer was complete")
    elif report.count("same") < SAME_SHARE_MINIMUM * answers:
        report.problems.append(f"{report.count('near tie')} of {answers} answers part at a near tie")


def resident_bytes(daemon: DaemonProcess) -> int:
    """The daemon's resident memory."""
    pages = int(Path(f"/proc/{daemon.process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def open_files(daemon: DaemonProcess) -> int:
    """Its open file descriptors."""
    return len(list(Path(f"/proc/{daemon.process.pid}/fd").iterdir()))


def thread_count(daemon: DaemonProcess) -> int:
    """Its threads."""
    return len(list(Path(f"/proc/{daemon.process.pid}/task").iterdir()))


def in_flight(daemon: DaemonProcess) -> int:
    """Requests that run or wait."""
    decode = httpx.get(daemon.endpoint + "/status", timeout=30).json()["decode"]
    return int(decode["requests_running"] + decode["requests_waiting"])
