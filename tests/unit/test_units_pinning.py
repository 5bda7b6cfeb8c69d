"""Pinned threads get their CPUs back, and the daemon says when that cannot be."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from stratad.daemon.pinning import DISPLACED_CODE, Pins, PinWatch
from stratad.service.service import Service, ServiceLimits

MAIN, WORKER, OTHER_WORKER, GGML, SERVER = 1, 2, 3, 4, 5


class FakeKernel:
    """Masks as Linux 6.1 keeps them: a new cpuset replaces every one."""

    def __init__(self) -> None:
        self.cpus = frozenset(range(4))
        self.masks = {
            MAIN: self.cpus,
            WORKER: frozenset({1}),
            OTHER_WORKER: frozenset({3}),
            GGML: frozenset({1, 3}),
            SERVER: self.cpus,
        }

    def allowed(self) -> frozenset[int]:
        return self.cpus

    def of_threads(self) -> dict[int, frozenset[int]]:
        return dict(self.masks)

    def put(self, thread_id: int, cpu_ids: Iterable[int]) -> None:
        mask = frozenset(cpu_ids) & self.cpus
        if not mask:
            raise OSError(22, "Invalid argument")
        self.masks[thread_id] = mask

    def set_cpus(self, *cpu_ids: int) -> None:
        self.cpus = frozenset(cpu_ids)
        self.masks = dict.fromkeys(self.masks, self.cpus)


def test_nothing_is_touched_while_nothing_changes() -> None:
    kernel = FakeKernel()
    before = kernel.of_threads()
    check = Pins(kernel).look()
    assert (check.repinned_count, check.missing_cpu_ids) == (0, frozenset())
    assert kernel.masks == before


def test_threads_get_their_masks_back_after_the_cpuset_was_written_again() -> None:
    kernel = FakeKernel()
    before = kernel.of_threads()
    pins = Pins(kernel)
    kernel.set_cpus(0, 1, 2, 3)
    assert pins.look().repinned_count == 3
    assert kernel.masks == before


def test_a_smaller_cpuset_leaves_each_thread_what_it_still_has() -> None:
    kernel = FakeKernel()
    before = kernel.of_threads()
    pins = Pins(kernel)
    kernel.set_cpus(0, 1, 2)
    check = pins.look()
    assert check.missing_cpu_ids == {3}
    assert kernel.masks == {
        MAIN: {0, 1, 2},
        WORKER: {1},
        OTHER_WORKER: {0, 1, 2},
        GGML: {1},
        SERVER: {0, 1, 2},
    }
    kernel.set_cpus(0, 1, 2, 3)
    assert pins.look().missing_cpu_ids == frozenset()
    assert kernel.masks == before


def test_a_thread_started_later_is_learnt_and_one_that_ended_forgotten() -> None:
    kernel = FakeKernel()
    pins = Pins(kernel)
    kernel.masks[6] = frozenset({2})
    del kernel.masks[OTHER_WORKER]
    pins.look()
    kernel.set_cpus(0, 1, 2, 3)
    pins.look()
    assert kernel.masks[6] == {2}
    assert OTHER_WORKER not in kernel.masks


def test_a_thread_that_starts_while_the_cpuset_changes_is_not_mistaken_for_a_pinned_one() -> None:
    kernel = FakeKernel()
    pins = Pins(kernel)
    kernel.set_cpus(0, 1)
    kernel.masks[6] = frozenset({0, 1})
    pins.look()
    kernel.set_cpus(0, 1, 2, 3)
    pins.look()
    pins.look()
    assert kernel.masks[6] == {0, 1, 2, 3}


def notices(service: Service) -> set[str]:
    return {reason.code for reason in service.document().reasons}


def test_the_service_is_told_and_told_again_when_it_is_over() -> None:
    kernel = FakeKernel()
    service = Service("tiny", "0", ServiceLimits(0.95, 16, 60.0))
    watch = PinWatch(service, 0.0, lambda: kernel)
    watch.look()
    assert notices(service) == set()
    kernel.set_cpus(0, 1, 2)
    watch.look()
    assert notices(service) == {DISPLACED_CODE}
    watch.look()
    kernel.set_cpus(0, 1, 2, 3)
    watch.look()
    assert notices(service) == set()


def test_it_tells_once_and_not_at_every_look(caplog: pytest.LogCaptureFixture) -> None:
    kernel = FakeKernel()
    watch = PinWatch(Service("tiny", "0", ServiceLimits(0.95, 16, 60.0)), 0.0, lambda: kernel)
    kernel.set_cpus(0, 1, 2)
    caplog.set_level("INFO", "stratad")
    for _ in range(3):
        watch.look()
    assert sum("missing_cpus=3" in record.getMessage() for record in caplog.records) == 1
