"""Two nodes, a display device on node 1: the plan is split, single-socket or interleave, and pages lie there."""

from __future__ import annotations

import json

import pytest

from tests.lab import layouts
from tests.lab.machine import Machine
from tests.lab.serving import (
    DROP_IN,
    PLAN,
    STRATACTL,
    apply,
    cgroup,
    complete,
    configure,
    metrics,
    node_counts,
    placement,
    plan_cpus,
    process_id,
    reason_codes,
    start,
    state,
    worker_cpus,
)

LAYOUT = layouts.TWO


@pytest.fixture(scope="module")
def unplaced_answer(guest: Machine) -> str:
    """What the daemon answers with policy off: no slice, no placement."""
    configure(guest, placement='policy = "off"')
    start(guest)
    answer = complete(guest)
    guest.check("systemctl", "stop", "stratad")
    return answer


def test_split_is_applied_started_served_and_placed(machine: Machine, unplaced_answer: str) -> None:
    configure(machine, placement='policy = "split"')
    assert json.loads(machine.check(STRATACTL, "plan", "--json"))["policy"] == "split"
    applied = apply(machine)
    assert applied["plan"]["policy"] == "split"
    start(machine)

    assert complete(machine) == unplaced_answer
    pages = node_counts(machine)
    assert set(pages) == {0, 1}
    assert abs(pages[0] - pages[1]) <= 0.02 * sum(pages.values())

    told = placement(machine)
    assert [part["home_nodes"] for part in told["slices"]] == [[0], [1]]
    assert all(part["local_ratio"] >= 0.99 and part["unknown_pages"] == 0 for part in told["slices"])
    samples = metrics(machine)
    for node in (0, 1):
        assert samples[f'stratad_placement_local_ratio{{node="{node}",slice="{node}"}}'] >= 0.99
        assert samples[f'stratad_arena_bytes{{node="{node}"}}'] == pages[node] * 4096
    assert samples['stratad_state{stratad_state="ready"}'] == 1
    # The unit's own drop-in: a cpuset for the plan's CPUs and the process interleaved.
    assert worker_cpus(machine) == {1, 3}
    assert cgroup(machine, "cpuset.cpus.effective") == plan_cpus(machine)
    assert "NUMAPolicy=interleave\nNUMAMask=0-1\n" in machine.read(DROP_IN)
    assert not {code for code in reason_codes(machine) if "differs" in code or "than-plan" in code}


def test_single_socket_is_not_drawn_to_a_gpu_that_nothing_uses(
    machine: Machine, unplaced_answer: str
) -> None:
    configure(machine)
    applied = apply(machine)
    assert applied["plan"]["policy"] == "single-socket"
    start(machine)
    assert complete(machine) == unplaced_answer
    # The emulated display device stands at node 1, but no module uses it: it decides nothing.
    assert node_counts(machine).keys() == {0}
    assert worker_cpus(machine) <= {0, 1}
    assert cgroup(machine, "cpuset.cpus.effective") == plan_cpus(machine)
    assert machine.check("systemctl", "show", "-p", "NUMAPolicy", "-p", "NUMAMask", "stratad").split() == [
        "NUMAPolicy=preferred",
        "NUMAMask=0",
    ]
    assert "gpu-module-missing" in reason_codes(machine)
    assert "gpu-node-preferred" not in reason_codes(machine)


def test_interleave_uses_both_nodes_and_gives_the_same_tokens(machine: Machine, unplaced_answer: str) -> None:
    configure(machine, placement='policy = "interleave"')
    apply(machine)
    start(machine)
    assert complete(machine) == unplaced_answer
    # The kernel deals out huge pages, of which this arena has one: halves are seen in scenario_tight_nodes.py.
    assert node_counts(machine).keys() == {0, 1}


def test_apply_shows_what_it_would_do_and_revert_takes_it_back_exactly(machine: Machine) -> None:
    listing = (
        "find /etc -type f -newermt '1970-01-01' -exec sha256sum {} + | sort -k2; find /etc -type d | sort"
    )
    configure(machine, placement='policy = "split"')
    before = machine.shell(listing)
    shown = machine.check(STRATACTL, "apply", "--dry-run")
    assert "+NUMAPolicy=interleave" in shown
    assert machine.shell(listing) == before

    machine.check(STRATACTL, "apply")
    assert machine.exists(DROP_IN)
    assert machine.exists(PLAN)
    assert "nothing to change" in machine.check(STRATACTL, "apply")
    machine.check(STRATACTL, "revert")
    assert machine.shell(listing) == before


def test_apply_plans_again_beside_its_own_running_service(machine: Machine) -> None:
    configure(machine, placement='policy = "split"')
    apply(machine)
    start(machine)
    first = process_id(machine)
    # The cpuset of the drop-in does not narrow the next plan.
    assert apply(machine, "--policy", "single-socket")["plan"]["policy"] == "single-socket"
    assert process_id(machine) != first
    assert node_counts(machine).keys() == {0}
    assert apply(machine)["plan"]["policy"] == "split"
    assert set(node_counts(machine)) == {0, 1}


def test_a_plan_for_another_machine_is_refused_with_the_way_out(machine: Machine) -> None:
    configure(machine, placement='policy = "split"')
    apply(machine)
    document = json.loads(machine.read(PLAN))
    document["machine_fingerprint"] = "000000000000"
    machine.write(PLAN, json.dumps(document))
    assert machine.run("systemctl", "start", "stratad").status != 0
    said = machine.check("journalctl", "-u", "stratad", "-o", "cat", "-n", "30", "--no-pager")
    assert "another machine" in said
    assert "stratactl apply" in said
    # A wrong plan does not get better by trying again.
    assert machine.check("systemctl", "show", "--value", "-p", "NRestarts", "stratad").strip() == "0"
    machine.check(STRATACTL, "revert")
    start(machine)
    assert state(machine) == "ready"


def test_idle_huge_pages_on_one_node_are_told_and_do_not_keep_it_from_starting(machine: Machine) -> None:
    pool = "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages"
    machine.shell(f"echo 3 > /proc/sys/vm/drop_caches; echo 200 > {pool}")
    try:
        # The pool hides most of what node 0 has free.
        assert int(machine.read(pool)) > 150
        configure(machine, placement='policy = "split"')
        apply(machine)
        start(machine)
        assert "huge-pages-idle" in reason_codes(machine)
        assert set(node_counts(machine)) == {0, 1}
        assert complete(machine)
    finally:
        machine.shell(f"echo 0 > {pool}")
