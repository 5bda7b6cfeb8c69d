"""Looks again and again whether the machine still is the one that the plan was made for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from planner import Effect, Reason, Topology, machine_fingerprint
from planner.sysfs import MachineFiles, Tree
from stratad import journal
from stratad.errors import StratadError
from stratad.plan.facts import machine_facts
from stratad.service.service import Service
from stratad.watch import Watch

CHANGED_CODE = "machine-differs-from-plan"


class MachineWatch(Watch):
    """A thread that looks every `pause_seconds`; 0 never does.

    It plans nothing: CPUs that went offline and GPUs that fell off the bus are told, and somebody decides. The whole
    machine, thousands of files on a large one, is read only when a few of them have changed.
    """

    def __init__(
        self,
        service: Service,
        pause_seconds: float,
        read_machine: Callable[[], Topology] = machine_facts,
        files: MachineFiles | None = None,
    ) -> None:
        super().__init__("machine", pause_seconds)
        self._service = service
        self._read_machine = read_machine
        self._files = files or Tree(Path("/"))
        self._last: str | None = None
        self._last_outline: tuple[object, ...] | None = None

    def look(self) -> None:
        """Looks once, and tells the service and the log when the answer has changed."""
        plan = self._service.plan_document()
        planned = plan.get("machine_fingerprint") if plan else None
        outline = machine_outline(self._files)
        if not isinstance(planned, str) or outline == self._last_outline:
            return
        try:
            here = machine_fingerprint(self._read_machine())
        except StratadError as error:
            journal.report_error("machine", "cannot be read", reason=error.because)
            return
        self._last_outline = outline
        if here == (self._last or planned):
            return
        self._last = here
        if here == planned:
            self._service.withdraw(CHANGED_CODE)
            journal.inform("machine", "is as planned again", fingerprint=here)
            return
        self._service.found(machine_reason(planned, here))
        journal.warn(
            "machine",
            "differs from the plan's",
            fingerprint=here,
            planned_fingerprint=planned,
            code=CHANGED_CODE,
        )


def machine_outline(files: MachineFiles) -> tuple[object, ...]:
    """What changes when CPUs, nodes or devices come or go: a few files, and lists of names."""
    node_directory = "/sys/devices/system/node"
    nodes = files.names(node_directory) or ()
    return (
        files.text("/sys/devices/system/cpu/online"),
        tuple((name, files.text(f"{node_directory}/{name}/cpulist")) for name in nodes),
        files.names("/sys/bus/pci/devices"),
    )


def machine_reason(planned: str, here: str) -> Reason:
    """What to tell while the machine is another than the plan's."""
    return Reason(
        CHANGED_CODE,
        Effect.WARNS,
        f"the plan was made for machine {planned}, this one is {here} now: CPUs, nodes or GPUs have come or gone",
        {"plan_machine": planned, "this_machine": here},
        "compare `stratactl topology` with `stratactl plan --json`; then run `sudo stratactl apply` and restart",
    )
