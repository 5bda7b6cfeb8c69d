"""Keeps pinned threads on their CPUs while the daemon runs.

The kernel gives every thread of a unit the whole new cpuset when `AllowedCPUs=` changes, and moves threads away from
a CPU that goes offline; before Linux 6.2 it never gives them their own mask back (measured on 6.1 in the lab,
docs/LAB.md). Nothing tells a process about either, so the masks are looked at every few seconds: a system call a
thread.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from planner import Effect, Reason
from planner.cpulist import format_id_list
from stratad import journal
from stratad.service.service import Service
from stratad.watch import Watch

DISPLACED_CODE = "workers-displaced"

Masks = Mapping[int, frozenset[int]]


class ThreadMasks(Protocol):
    """Where threads may run; tests have one without a kernel."""

    def allowed(self) -> frozenset[int]:
        """CPUs the process may use: its cpuset without CPUs that are offline."""

    def of_threads(self) -> Masks:
        """The mask of every thread by thread id."""

    def put(self, thread_id: int, cpu_ids: Iterable[int]) -> None:
        """Gives a thread a mask; does nothing when the thread is gone."""


class KernelMasks:
    """The masks of this process's own threads."""

    def allowed(self) -> frozenset[int]:
        """The main thread's mask, which nobody narrows: the cpuset."""
        return frozenset(os.sched_getaffinity(os.getpid()))

    def of_threads(self) -> Masks:
        """The mask of every thread that still lives when it is asked about."""
        found = {}
        for task in Path("/proc/self/task").iterdir():
            with contextlib.suppress(ProcessLookupError):
                found[int(task.name)] = frozenset(os.sched_getaffinity(int(task.name)))
        return found

    def put(self, thread_id: int, cpu_ids: Iterable[int]) -> None:
        """Raises OSError when none of the CPUs can be used; the next look sees what is so then."""
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(thread_id, cpu_ids)


@dataclass(frozen=True, slots=True)
class PinCheck:
    """What one look found: threads put back, and CPUs that pinned threads should be on and cannot be."""

    repinned_count: int
    missing_cpu_ids: frozenset[int]
    allowed_cpu_ids: frozenset[int]


class Pins:
    """The masks that threads were given, and how to give them back."""

    def __init__(self, masks: ThreadMasks) -> None:
        """Remembers every thread that is narrower than the process now."""
        self._masks = masks
        self._wanted: dict[int, frozenset[int]] = {}
        self._settled = masks.allowed()
        self._learn(masks.of_threads())

    def look(self) -> PinCheck:
        """Puts every pinned thread back on as many of its CPUs as it may use."""
        allowed, now = self._masks.allowed(), self._masks.of_threads()
        self._wanted = {thread: mask for thread, mask in self._wanted.items() if thread in now}
        repinned = 0
        missing: set[int] = set()
        for thread_id, wanted in self._wanted.items():
            possible = wanted & allowed
            missing |= wanted - allowed
            # Without one CPU of its own left, the thread keeps what the kernel gave it: all of the cpuset.
            if possible and now[thread_id] != possible:
                with contextlib.suppress(OSError):
                    self._masks.put(thread_id, possible)
                    repinned += 1
        if allowed == self._settled:
            self._learn(now)
        self._settled = allowed
        return PinCheck(repinned, frozenset(missing), allowed)

    def _learn(self, now: Masks) -> None:
        """Takes in threads started since, as long as the cpuset is not just changing."""
        for thread_id, mask in now.items():
            if thread_id not in self._wanted and mask < self._settled:
                self._wanted[thread_id] = mask


class PinWatch(Watch):
    """A thread that looks after the pins every `pause_seconds`; 0 never does."""

    def __init__(
        self, service: Service, pause_seconds: float, open_masks: Callable[[], ThreadMasks] = KernelMasks
    ) -> None:
        super().__init__("pinning", pause_seconds)
        self._service = service
        self._pins = Pins(open_masks())
        self._is_displaced = False

    def look(self) -> None:
        """Looks once and tells the service what has changed."""
        check = self._pins.look()
        allowed = format_id_list(check.allowed_cpu_ids)
        if check.repinned_count:
            journal.warn(
                "pinning",
                "the cpuset or the CPUs changed; threads are back on theirs",
                threads=check.repinned_count,
                allowed_cpus=allowed,
            )
        is_displaced = bool(check.missing_cpu_ids)
        if is_displaced:
            self._service.found(displaced_reason(check), degrades=True)
        elif self._is_displaced:
            self._service.withdraw(DISPLACED_CODE)
        if is_displaced is not self._is_displaced:
            write = journal.warn if is_displaced else journal.inform
            missing = format_id_list(check.missing_cpu_ids)
            code = DISPLACED_CODE if is_displaced else None
            write("pinning", missing_cpus=missing or "none", allowed_cpus=allowed, code=code)
        self._is_displaced = is_displaced


def displaced_reason(check: PinCheck) -> Reason:
    """What to tell while pinned threads cannot be where the plan has them."""
    return Reason(
        DISPLACED_CODE,
        Effect.WARNS,
        f"CPUs {format_id_list(check.missing_cpu_ids)} of the plan are offline or not in the cpuset any more "
        f"({format_id_list(check.allowed_cpu_ids)}): their threads run on other CPUs, away from their slices",
        {
            "missing_cpus": tuple(sorted(check.missing_cpu_ids)),
            "allowed_cpus": tuple(sorted(check.allowed_cpu_ids)),
        },
        "give the CPUs back (`systemctl show -p AllowedCPUs stratad`), or run `sudo stratactl apply` again",
    )
