"""What scenarios share: the service set up in the guest, and the kernel's own word on where its pages lie."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tests.lab.image import INSTALLATION
from tests.lab.machine import Machine

STRATACTL = f"{INSTALLATION}/bin/stratactl"
DEMO_MODEL = f"{INSTALLATION}/share/stratad/demo/demo-moe.gguf"
CONFIGURATION = "/etc/stratad/stratad.toml"
DROP_IN = "/etc/systemd/system/stratad.service.d/50-placement.conf"
PLAN = "/etc/stratad/plan.json"

GREEDY = {"prompt": "The ship came", "max_tokens": 24, "temperature": 0}


@dataclass(frozen=True, slots=True)
class Mapping:
    """One line of numa_maps: a mapping's policy and its pages by node."""

    start: int
    policy: str
    pages: dict[int, int]

    @property
    def page_count(self) -> int:
        """All its pages."""
        return sum(self.pages.values())


def install(machine: Machine) -> None:
    """Unit files, user and folders, as `stratactl install-units` makes them."""
    machine.check(STRATACTL, "install-units")


def configure(machine: Machine, *, model: str = DEMO_MODEL, placement: str = "", more: str = "") -> None:
    """Writes the service's configuration."""
    text = f'[model]\npath = "{model}"\nname = "lab"\ncontext_tokens = 512\nthreads = 1\n'
    machine.write(CONFIGURATION, f"{text}[placement]\n{placement}\n{more}\n")


def apply(machine: Machine, *options: str) -> dict[str, Any]:
    """`stratactl apply --json`, which has to succeed."""
    document = json.loads(machine.check(STRATACTL, "apply", "--json", *options))
    assert isinstance(document, dict)
    return document


def start(machine: Machine) -> None:
    """Starts the service; the journal is in the report when it fails."""
    done = machine.run("systemctl", "start", "stratad")
    assert done.status == 0, done.stderr + journal(machine)


def restart(machine: Machine) -> None:
    """Restarts the service."""
    done = machine.run("systemctl", "restart", "stratad")
    assert done.status == 0, done.stderr + journal(machine)


def stop_and_forget(machine: Machine) -> None:
    """Stops the service and takes back what a scenario did to it."""
    machine.run("systemctl", "stop", "stratad")
    machine.shell(
        "rm -rf /run/systemd/system/*.d /run/systemd/system.control /etc/systemd/system.control "
        "/etc/systemd/system/stratad.service.d /etc/systemd/system/stratad.slice.d /etc/stratad/plan.json; "
        "umount -q /run/full || true; systemctl daemon-reload; systemctl reset-failed"
    )


def journal(machine: Machine, lines: int = 60) -> str:
    """The end of what the service said."""
    return machine.run("journalctl", "-u", "stratad", "--no-pager", "-o", "cat", "-n", str(lines)).stdout


def process_id(machine: Machine) -> int:
    """The daemon's process."""
    value = int(machine.check("systemctl", "show", "--value", "-p", "MainPID", "stratad"))
    assert value > 0, journal(machine)
    return value


def status_field(machine: Machine, name: str) -> str:
    """One field of the daemon's /proc/PID/status."""
    text = machine.read(f"/proc/{process_id(machine)}/status")
    return next(line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith(f"{name}:"))


def complete(machine: Machine) -> str:
    """The greedy answer to a fixed prompt."""
    answer = machine.http("POST", "/v1/completions", GREEDY)
    assert answer.status == 200, answer.text + answer.error + journal(machine)
    text = answer.document["choices"][0]["text"]
    assert len(text) > 20, text
    return str(text)


def placement(machine: Machine) -> dict[str, Any]:
    """The daemon's own word on where the arena's pages lie."""
    document = machine.http("GET", "/placement").document
    assert isinstance(document, dict)
    return document


def metrics(machine: Machine) -> dict[str, float]:
    """Every sample of /metrics by name and labels, as they are written."""
    text = machine.http("GET", "/metrics").text
    samples = (line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, _, value in samples}


def reason_codes(machine: Machine) -> set[str]:
    """Codes of everything the daemon has to say."""
    return {reason["code"] for reason in machine.http("GET", "/status").document["reasons"]}


def state(machine: Machine) -> str:
    """ready, degraded, ..."""
    return str(machine.http("GET", "/status").document["state"])


def mappings(machine: Machine) -> list[Mapping]:
    """The daemon's mappings as the kernel counts them, from outside (proc(5), numa_maps)."""
    found = []
    for line in machine.read(f"/proc/{process_id(machine)}/numa_maps").splitlines():
        words = line.split()
        pages = {int(node): int(count) for node, count in re.findall(r"\bN(\d+)=(\d+)", line)}
        found.append(Mapping(int(words[0], 16), words[1], pages))
    return found


def arena_mappings(machine: Machine) -> list[Mapping]:
    """The arena's mappings: those that the daemon has locked in memory. Advice for a part of it makes two of one."""
    header, locked = 0, set()
    for line in machine.read(f"/proc/{process_id(machine)}/smaps").splitlines():
        if match := re.match(r"([0-9a-f]+)-[0-9a-f]+ ", line):
            header = int(match[1], 16)
        elif line.startswith("VmFlags:") and " lo" in line:
            locked.add(header)
    found = [mapping for mapping in mappings(machine) if mapping.start in locked]
    assert found, journal(machine)
    return found


def arena_pages(machine: Machine) -> dict[int, int]:
    """The arena's pages by node, from numa_maps."""
    return _sum(mapping.pages for mapping in arena_mappings(machine))


def node_counts(machine: Machine) -> dict[int, int]:
    """The arena's pages by node, from numa_maps and again by move_pages from outside: both have to agree."""
    process, found = process_id(machine), arena_mappings(machine)
    asked = [
        machine.call("page_nodes", process_id=process, start=mapping.start, page_count=mapping.page_count)
        for mapping in found
    ]
    told = _sum(mapping.pages for mapping in found)
    assert _sum({int(node): count for node, count in pages.items()} for pages in asked) == told
    return told


def _sum(parts: Iterable[dict[int, int]]) -> dict[int, int]:
    total: dict[int, int] = {}
    for pages in parts:
        for node, count in pages.items():
            total[node] = total.get(node, 0) + count
    return total


def cgroup(machine: Machine, name: str) -> str:
    """One file of the service's control group."""
    return machine.read(f"/sys/fs/cgroup/stratad.slice/stratad.service/{name}").strip()


def plan_cpus(machine: Machine) -> str:
    """The CPUs that the drop-in allows."""
    return next(
        line.removeprefix("AllowedCPUs=")
        for line in machine.read(DROP_IN).splitlines()
        if line.startswith("AllowedCPUs=") and not line.endswith("=")
    )


def worker_cpus(machine: Machine) -> set[int]:
    """The CPUs of pinned threads: those that the kernel lets run on one CPU only."""
    allowed = [thread["cpus"] for thread in machine.call("threads", process_id=process_id(machine))]
    return {int(cpus) for cpus in allowed if cpus.isdigit()}


def wait_for(condition: Callable[[], bool], what: str, limit_seconds: float = 240.0) -> None:
    """Returns when the condition holds; the limit only ends a scenario that would hang."""
    end_seconds = time.monotonic() + limit_seconds
    while not condition():
        assert time.monotonic() < end_seconds, f"{what} did not come about"
        time.sleep(0.2)
