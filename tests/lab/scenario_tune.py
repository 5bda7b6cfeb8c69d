"""Two nodes: real arms are started, placed, asked and gone; what is measured says nothing about speed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.lab import layouts
from tests.lab.machine import Machine
from tests.lab.serving import (
    CONFIGURATION,
    STRATACTL,
    configure,
    process_id,
    start,
    wait_for,
)

LAYOUT = layouts.TWO

_UNIT = "lab-tune"
_RESULT = "/var/lib/stratad/tune.json"
_BENCH = "/run/bench.json"
# Emulated processors take minutes for a few starts: longer than one call to the agent may.
_LIMIT_SECONDS = 1500.0
_ARMS = "split,single-socket@0,single-socket@1,off:2"
_LISTING = "find /etc /run/stratad* -type f -exec sha256sum {} + 2>/dev/null | sort -k2"


def begin(machine: Machine, *options: str) -> None:
    """Starts `stratactl tune` as a unit of its own; what it prints goes to /run/tune.out and /run/tune.err."""
    machine.run("systemctl", "reset-failed", _UNIT)
    machine.check(
        "systemd-run",
        f"--unit={_UNIT}",
        "--property=StandardOutput=truncate:/run/tune.out",
        "--property=StandardError=truncate:/run/tune.err",
        "--property=RemainAfterExit=yes",
        STRATACTL,
        "tune",
        f"--config={CONFIGURATION}",
        "--rounds=1",
        "--tokens=8",
        *options,
    )


def property_of(machine: Machine, name: str) -> str:
    return machine.check("systemctl", "show", "--value", "-p", name, _UNIT).strip()


def status(machine: Machine) -> int:
    """Waits for the end and gives the exit status."""
    wait_for(
        lambda: property_of(machine, "SubState") in {"exited", "failed"}, "the end of tune", _LIMIT_SECONDS
    )
    code = int(property_of(machine, "ExecMainStatus"))
    machine.run("systemctl", "stop", _UNIT)
    return code


def children(machine: Machine) -> list[str]:
    """Daemons that tune has started and that live."""
    return machine.run(
        "/bin/sh", "-c", "grep -lsa 'stratad.tune.chil[d]' /proc/[0-9]*/cmdline"
    ).stdout.split()


def trials_of(document: dict[str, Any], arm: str) -> list[dict[str, Any]]:
    return next(entry["trials"] for entry in document["details"]["arms"] if entry["arm"] == arm)


def test_arms_run_where_their_plans_say_and_nothing_of_them_stays(machine: Machine) -> None:
    configure(machine)
    before = machine.shell(_LISTING)
    begin(machine, f"--arms={_ARMS}", "--force")
    assert status(machine) == 0, machine.read("/run/tune.err") + machine.read("/run/tune.out")

    document = json.loads(machine.read(_RESULT))
    assert [(result["policy"], result["node_ids"]) for result in document["results"]] == [
        ("split", [0, 1]),
        ("single-socket", [0]),
        ("single-socket", [1]),
        ("off", [0, 1]),
    ]
    assert all(len(result["tokens_per_second"]) == 2 for result in document["results"])
    # The daemons' own check of their pages, which the other scenarios hold against the kernel's count.
    for arm in ("split", "single-socket@0", "single-socket@1"):
        assert all(trial["local_ratio"] >= 0.99 for trial in trials_of(document, arm)), arm
    assert document["details"]["answers_agree"], "the same tokens, wherever the pages lie"

    assert children(machine) == []
    assert machine.shell("ls -d /tmp/stratad-tune-* 2>/dev/null || true") == ""
    assert machine.shell(_LISTING) == before


def test_the_planner_follows_a_recorded_winner_and_wants_enough_starts(machine: Machine) -> None:
    """With the document that the scenario before has left, and then with more and clearer starts in it."""
    configure(machine)
    plan = json.loads(machine.check(STRATACTL, "plan", "--config", CONFIGURATION, "--json"))
    assert "tuning-ignored" in {reason["code"] for reason in plan["reasons"]}

    document = json.loads(machine.read(_RESULT))
    for result in document["results"]:
        is_winner = (result["policy"], result["node_ids"]) == ("single-socket", [1])
        result["tokens_per_second"] = [20.0 if is_winner else 10.0] * 6
    document["verdict"] = {"best": 2, "second": 1, "ratio_low": 1.9, "ratio_high": 2.1, "block_count": 3}
    machine.write(_RESULT, json.dumps(document))
    try:
        followed = json.loads(machine.check(STRATACTL, "plan", "--config", CONFIGURATION, "--json"))
        assert (followed["policy"], followed["confidence"]) == ("single-socket", "proven")
        # By default it is node 0.
        assert followed["layout"]["slices"][0]["node_ids"] == [1]
        assert "tuned-winner" in {reason["code"] for reason in followed["reasons"]}
    finally:
        machine.check("rm", "-f", _RESULT)


@pytest.mark.lengthy
def test_a_running_service_is_left_alone_unless_it_may_be_stopped(machine: Machine) -> None:
    configure(machine)
    start(machine)
    first = process_id(machine)
    begin(machine, "--arms=off:1,off:2", "--force")
    assert status(machine) == 1
    assert "--stop-service" in machine.read("/run/tune.err")
    assert process_id(machine) == first

    begin(machine, "--arms=off:1,off:2", "--force", "--stop-service", "--output=/run/tune.json")
    assert status(machine) == 0, machine.read("/run/tune.err")
    assert machine.check("systemctl", "is-active", "stratad").strip() == "active"
    assert process_id(machine) != first


@pytest.mark.lengthy
def test_a_stopped_tuning_takes_its_child_along_and_starts_the_service_again(machine: Machine) -> None:
    configure(machine)
    start(machine)
    begin(
        machine,
        "--arms=off:1,off:2",
        "--force",
        "--stop-service",
        "--output=/run/stopped.json",
        "--tokens=400",
    )
    wait_for(lambda: bool(children(machine)), "an arm")
    machine.check("systemctl", "kill", "--kill-whom=main", "--signal=TERM", _UNIT)
    assert status(machine) == 130
    assert children(machine) == []
    assert machine.shell("ls -d /tmp/stratad-tune-* 2>/dev/null || true") == ""
    assert not machine.exists("/run/stopped.json")
    assert machine.check("systemctl", "is-active", "stratad").strip() == "active"


@pytest.mark.lengthy
def test_bench_reads_every_node_from_every_node(machine: Machine) -> None:
    done = machine.run(
        STRATACTL, "bench", "--seconds=20", "--bytes=64MiB", "--force", f"--output={_BENCH}", "--json"
    )
    # Emulated memory has no steady rate: status 1 says that nothing was concluded, and the samples are there.
    assert done.status in {0, 1}, done.stderr
    details = json.loads(done.stdout)["details"]
    assert {tuple(memory["node_ids"]): memory["local_ratio"] >= 0.99 for memory in details["memory"]} == {
        (0,): True,
        (1,): True,
        (0, 1): True,
    }
    names = {read["name"] for read in details["reads"]}
    assert {
        f"2 workers of node {reader} from node {memory}" for reader in (0, 1) for memory in (0, 1)
    } <= names
    assert {layer["team"] for layer in details["layers"]} == {"one-node", "sliced-across", "unsliced-across"}
    assert all(read["bytes_per_second"] > 0 for read in details["reads"])
    assert machine.exists(_BENCH) == (done.status == 0)
