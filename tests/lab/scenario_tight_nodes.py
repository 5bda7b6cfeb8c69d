"""A model that no node holds and both do together: split unasked, what is in the way
is moved, refused or told; stopped while loading."""

from __future__ import annotations

import json

from tests.lab import image, layouts
from tests.lab.machine import MODELS, Machine
from tests.lab.serving import (
    PLAN,
    apply,
    configure,
    journal,
    metrics,
    node_counts,
    placement,
    reason_codes,
    restart,
    start,
    state,
    wait_for,
)

LAYOUT = layouts.TIGHT
DISKS = (image.model_image,)
MODEL = f"{MODELS}/large.gguf"
# Of the arena; a little less than either slice has.
HALF_BYTES = 202 * 2**20
REPAIRED = "stratad_placement_repaired_pages_total"


def fill_page_cache(machine: Machine) -> None:
    """Reads the model on a CPU of node 0: its cache then fills that node."""
    machine.shell(f"taskset -c 0 cat {MODEL} > /dev/null")


def start_beside_a_full_node(machine: Machine) -> int:
    """Starts the service with node 0 full at first touch, of memory that goes while the weights are read; its status.

    Reading is throttled meanwhile, so that the memory is gone before the gate looks.
    """
    disk = machine.check("findmnt", "-no", "SOURCE", MODELS).strip()
    reading = 'stage="loading experts"'
    begun = journal(machine, 1000).count(reading)
    fill_node_0(machine)
    machine.check("systemctl", "set-property", "--runtime", "stratad", f"IOReadBandwidthMax={disk} 20M")
    machine.check("systemctl", "start", "--no-block", "stratad")
    wait_for(lambda: journal(machine, 1000).count(reading) > begun, "first touch")
    machine.check("umount", "/run/full")
    machine.check("systemctl", "set-property", "--runtime", "stratad", "IOReadBandwidthMax=")
    return machine.run("systemctl", "start", "stratad").status


def fill_node_0(machine: Machine) -> None:
    """Memory that cannot be dropped, and nothing to swap to."""
    machine.shell(
        "mkdir -p /run/full; mount -t tmpfs -o size=290M,mpol=bind:0 full /run/full; "
        "echo 3 > /proc/sys/vm/drop_caches; head -c 290M /dev/zero > /run/full/file"
    )


def node_field(machine: Machine, node: int, name: str) -> int:
    text = machine.read(f"/sys/devices/system/node/node{node}/meminfo")
    return int(next(line.split()[-2] for line in text.splitlines() if f" {name}:" in line)) * 1024


def migrated_pages(machine: Machine) -> int:
    """Pages that the kernel has moved between nodes since it booted."""
    lines = machine.read("/proc/vmstat").splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("pgmigrate_success ")))


def test_a_model_larger_than_a_node_is_split_unasked_beside_its_own_page_cache(machine: Machine) -> None:
    configure(machine, model=MODEL)
    fill_page_cache(machine)
    # Node 0 has no room for its slice unless the cache goes.
    assert node_field(machine, 0, "MemFree") < HALF_BYTES
    assert apply(machine)["plan"]["policy"] == "split"
    assert json.loads(machine.read(PLAN))["release_page_cache"] is True
    start(machine)
    assert all(part["local_ratio"] >= 0.99 for part in placement(machine)["slices"])
    pages = node_counts(machine)
    assert all(count * 4096 >= 0.99 * HALF_BYTES for count in pages.values())
    # The cache was gone when the pages were touched: none had to be moved.
    assert metrics(machine)[REPAIRED] == 0

    # The running service's memory does not stand in the way of planning it again.
    assert apply(machine)["plan"]["policy"] == "split"


def test_pages_pushed_aside_at_first_touch_are_moved_home_before_the_gate(machine: Machine) -> None:
    # Whatever the kernel counts as migrated is then nobody's doing but the daemon's.
    machine.shell("echo 0 > /proc/sys/kernel/numa_balancing")
    configure(machine, model=MODEL, placement="limit_ratio = 0.99")
    assert apply(machine)["plan"]["policy"] == "split"
    before = migrated_pages(machine)
    assert start_beside_a_full_node(machine) == 0, journal(machine)
    moved = metrics(machine)[REPAIRED]
    pages = node_counts(machine)
    assert all(count * 4096 >= 0.99 * HALF_BYTES for count in pages.values()), pages
    assert all(part["local_ratio"] >= 0.99 for part in placement(machine)["slices"])
    assert state(machine) == "ready"
    assert "placement-repaired" in reason_codes(machine)
    assert migrated_pages(machine) - before >= moved > 0.1 * pages[0]

    # What makes this a proof: the same start without the move does not come past the gate.
    machine.check("systemctl", "stop", "stratad")
    configure(machine, model=MODEL, placement="limit_ratio = 0.99\nrepair = false")
    assert start_beside_a_full_node(machine) != 0, journal(machine)
    assert "verdict=below-limit" in journal(machine)


def test_a_node_that_filled_up_after_the_plan_stops_the_service_or_makes_it_fall_back(
    machine: Machine,
) -> None:
    configure(machine, model=MODEL)
    assert apply(machine)["plan"]["policy"] == "split"
    # No page of node 0 can be moved home.
    fill_node_0(machine)
    try:
        assert machine.run("systemctl", "start", "stratad").status != 0, journal(machine)
        assert "verdict=below-limit" in journal(machine)
        assert "placement-not-possible" not in journal(machine)
        machine.check("systemctl", "stop", "stratad")

        # Configured to, the daemon plans again instead of failing, and says so.
        configure(machine, model=MODEL, placement='fallback = "interleave"')
        restart(machine)
        assert machine.http("GET", "/status").document["plan"]["policy"] == "interleave"
        assert "placement-fallback" in reason_codes(machine)
        assert "placement-not-possible" not in reason_codes(machine)
    finally:
        machine.run("systemctl", "stop", "stratad")
        machine.check("umount", "/run/full")


def test_interleave_puts_half_on_each_node(machine: Machine) -> None:
    machine.shell("echo 3 > /proc/sys/vm/drop_caches")
    configure(machine, model=MODEL, placement='policy = "interleave"')
    apply(machine)
    start(machine)
    pages = node_counts(machine)
    assert set(pages) == {0, 1}
    assert abs(pages[0] - pages[1]) <= 0.02 * sum(pages.values()), pages


def test_sigterm_while_loading_ends_the_service_in_order(machine: Machine) -> None:
    configure(machine, model=MODEL)
    apply(machine)
    machine.check("systemctl", "start", "--no-block", "stratad")
    wait_for(lambda: "placing pages" in journal(machine, 5), "the load")
    machine.check("systemctl", "stop", "stratad")
    assert "asked to stop while loading" in journal(machine)
    assert machine.check("systemctl", "show", "--value", "-p", "Result", "stratad").strip() == "success"
