"""The native probes of `stratactl bench`: what they read, what they refuse, and that Ctrl-C ends them."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from stratad import _native as native

MIB = 1 << 20
CPUS = sorted(os.sched_getaffinity(0))


def pool_of(worker_count: int, slice_count: int = 1, spin_seconds: float = 50e-6) -> native.Pool:
    workers = [native.WorkerSeat(None, index % slice_count) for index in range(worker_count)]
    return native.Pool([native.SliceSeat() for _ in range(slice_count)], workers, spin_seconds)


def memory(size_bytes: int = 4 * MIB) -> native.Arena:
    return native.place_probe_memory(size_bytes, pool_of(1))


@pytest.mark.parametrize(
    "pattern", [native.ReadPattern.STREAM, native.ReadPattern.EXPERTS, native.ReadPattern.PRODUCTS]
)
def test_every_pattern_reads_whole_rounds_and_takes_its_time(pattern: native.ReadPattern) -> None:
    probe = native.ReadProbe([memory()], pool_of(2), pattern)
    size_bytes, seconds = probe.sample(0.02)
    # At least as long as asked for, in whole pieces of a mebibyte or whole matrices.
    unit = MIB if pattern == native.ReadPattern.STREAM else 768 * 2048 // 256 * 144
    assert seconds >= 0.02
    assert size_bytes > 0
    assert size_bytes % unit == 0


def test_slices_read_their_own_parts_at_once() -> None:
    parts = [memory(), memory(8 * MIB)]
    probe = native.ReadProbe(parts, pool_of(2, slice_count=2), native.ReadPattern.PRODUCTS)
    size_bytes, _ = probe.sample(0.0)
    matrix_bytes = 768 * 2048 // 256 * 144
    # One round: sixteen matrices for each worker.
    assert size_bytes == 2 * 16 * matrix_bytes


def test_memory_is_rounded_up_to_whole_matrices() -> None:
    assert memory(1).size_bytes == 768 * 2048 // 256 * 144


def test_parts_and_slices_must_match() -> None:
    with pytest.raises(ValueError, match="one part of memory for each slice"):
        native.ReadProbe([memory()], pool_of(2, slice_count=2), native.ReadPattern.STREAM)


def test_a_part_must_hold_one_piece() -> None:
    with pytest.raises(ValueError, match="less than one piece"):
        native.ReadProbe([memory(1)], pool_of(1), native.ReadPattern.STREAM)


def test_the_calling_thread_is_where_it_was() -> None:
    before = os.sched_getaffinity(0)
    pool = native.Pool([native.SliceSeat()], [native.WorkerSeat(CPUS[0])])
    native.ReadProbe([memory()], pool, native.ReadPattern.STREAM).sample(0.0)
    native.measure_layers(pool, layer_count=2, limit_seconds=1)
    assert os.sched_getaffinity(0) == before


def test_layers_are_counted_and_cost_something_beyond_their_work() -> None:
    costs = native.measure_layers(pool_of(1), layer_count=50, limit_seconds=10, task_seconds=2e-6)
    assert len(costs) == 50
    # Alone, a worker does all tasks one after the other: nothing can be quicker than the work.
    assert costs.min() >= 0


def test_a_limit_ends_layers_early_and_one_is_always_measured() -> None:
    costs = native.measure_layers(pool_of(1), layer_count=100_000, limit_seconds=0.0)
    assert len(costs) == 1


def test_everybody_meets_in_every_phase() -> None:
    costs = native.measure_layers(
        pool_of(3, slice_count=3), layer_count=3, limit_seconds=10, phase_count=5, meets=True
    )
    assert len(costs) == 3
    assert (costs > 0).all()


def test_those_who_have_no_worker_cannot_meet() -> None:
    with pytest.raises(ValueError, match="every slice has its own"):
        native.measure_layers(pool_of(1, slice_count=2), layer_count=1, limit_seconds=1, meets=True)


@pytest.mark.parametrize(
    "shape",
    [
        {"phase_count": 0},
        {"phase_count": 256},
        {"tasks_per_worker": 0},
        {"task_seconds": 1.0},
        {"gap_seconds": -1.0},
    ],
)
def test_impossible_layers_are_refused(shape: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"layer|second"):
        native.measure_layers(pool_of(1), layer_count=1, limit_seconds=1, **shape)  # type: ignore[arg-type]


def test_other_threads_of_python_run_meanwhile() -> None:
    probe = native.ReadProbe([memory()], pool_of(1), native.ReadPattern.STREAM)
    ended = threading.Event()

    def read() -> None:
        probe.sample(0.2)
        ended.set()

    thread = threading.Thread(target=read)
    thread.start()
    steps = 0
    while not ended.is_set():
        steps += 1
    thread.join()
    assert steps > 1000


@pytest.mark.parametrize("what", ["read", "layers"])
def test_ctrl_c_ends_a_long_sample(what: str) -> None:
    pool = pool_of(1)
    probe = native.ReadProbe([memory()], pool, native.ReadPattern.STREAM)
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    begin_seconds = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        if what == "read":
            probe.sample(600.0)
        else:
            native.measure_layers(pool, layer_count=10**9, limit_seconds=600, task_seconds=1e-5)
    timer.join()
    assert time.monotonic() - begin_seconds < 60
    # It can be used again.
    assert probe.sample(0.0)[0] > 0
