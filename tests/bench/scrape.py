"""What a scrape costs, and what it costs decoding: the demo model's daemon, with and without somebody who scrapes.

Decode rates are compared within one run, in rounds that alternate; times of scrapes are medians while it decodes and
while it is idle. Absolute times mean little on a shared machine: the ratio is what counts.

usage: python -m tests.bench.scrape [--rounds N] [--seconds N] [--scrapes-per-second N]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from threading import Event, Thread

import httpx

from stratad.daemon.main import demo_model_path
from stratad.metrics.registry import Metrics
from stratad.runner.protocol import NativeCounters, PlacementReport, SliceCounters, SlicePlacement
from stratad.runner.verify import check_placement
from stratad.service.samples import check_samples, counter_samples, state_samples
from tests.serving.support.daemon_process import started

# As large a machine as there is a reason to expect.
SLICES = 8
RENDERINGS = 200


def render_seconds() -> float:
    """Median time to read and write out the metrics of eight slices on eight nodes; the native side answers at once."""
    counters = NativeCounters(tuple(SliceCounters(1.5, 0.5, 12, 4096, 512, 16) for _ in range(SLICES)), 7, 0)
    slices = tuple(SlicePlacement(index, (index,), ((index, 4096),), 0) for index in range(SLICES))
    check = check_placement(
        PlacementReport(slices, tuple((one, 1 << 38) for one in range(SLICES)), 4096), 0.95
    )
    metrics = Metrics("m")
    metrics.add_source(lambda: counter_samples(counters))
    metrics.add_source(lambda: check_samples(check, 1.0))
    metrics.add_source(lambda: state_samples("ready"))
    return median(_timed(metrics.render) for _ in range(RENDERINGS))


def _timed(call: Callable[[], object]) -> float:
    begin_seconds = time.perf_counter()
    call()
    return time.perf_counter() - begin_seconds


@contextmanager
def decoding(endpoint: str) -> Iterator[None]:
    """One answer after the other until the context ends."""
    is_over = Event()

    def ask() -> None:
        with httpx.Client(base_url=endpoint, timeout=60) as client:
            while not is_over.is_set():
                client.post("/v1/completions", json={"prompt": "The next morning", "max_tokens": 200})

    thread = Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def cpu_seconds(process_id: int) -> float:
    """Processor time that a process has used, which other programs on the machine hardly change."""
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def steps_of(client: httpx.Client) -> int:
    steps = client.get("/status").json()["decode"]["decode_steps"]
    assert isinstance(steps, int)
    return steps


def decode_rate(
    client: httpx.Client, seconds: float, pause_seconds: float | None, times: list[float]
) -> float:
    """Steps a second over a while, with a scrape after every pause, or none."""
    begin_steps, begin_seconds = steps_of(client), time.perf_counter()
    while (left := begin_seconds + seconds - time.perf_counter()) > 0:
        if pause_seconds is not None:
            times.append(_timed(lambda: client.get("/metrics")))
        time.sleep(min(left, pause_seconds if pause_seconds is not None else seconds))
    return (steps_of(client) - begin_steps) / (time.perf_counter() - begin_seconds)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--scrapes-per-second", type=float, default=1.0)
    options = parser.parse_args()
    ratios: list[float] = []
    busy: list[float] = []
    with tempfile.TemporaryDirectory() as folder, started(Path(folder), demo_model_path()) as daemon:
        daemon.wait_for("READY=1")
        with httpx.Client(base_url=daemon.endpoint, timeout=60) as client:
            with decoding(daemon.endpoint):
                decode_rate(client, options.seconds, None, busy)
                for _ in range(options.rounds):
                    without = decode_rate(client, options.seconds, None, busy)
                    scraped = decode_rate(client, options.seconds, 1 / options.scrapes_per_second, busy)
                    ratios.append(scraped / without)
            before_seconds = cpu_seconds(daemon.process.pid)
            idle = [_timed(lambda: client.get("/metrics")) for _ in range(RENDERINGS)]
            each_seconds = (cpu_seconds(daemon.process.pid) - before_seconds) / RENDERINGS
        daemon.terminate()
    print(f"render, {SLICES} slices on {SLICES} nodes   {render_seconds() * 1000:.2f} ms")
    print(f"GET /metrics, idle              {median(idle) * 1000:.2f} ms")
    print(f"CPU time of the daemon for it   {each_seconds * 1000:.2f} ms")
    print(f"GET /metrics, decoding          {median(busy) * 1000:.2f} ms")
    print(
        f"decode rate with {options.scrapes_per_second:g} scrapes/s over without   "
        f"{median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
    )


if __name__ == "__main__":
    main()
