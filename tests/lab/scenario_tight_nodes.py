"""A model that no node holds and both do together: split unasked, page cache out of the way, stopped while loading."""

from __future__ import annotations

import json

from tests.lab import image, layouts
from tests.lab.machine import MODELS, Machine
from tests.lab.serving import (
    PLAN,
    apply,
    configure,
    journal,
    node_counts,
    placement,
    restart,
    start,
    wait_for,
)

LAYOUT = layouts.TIGHT
DISKS = (image.model_image,)
MODEL = f"{MODELS}/large.gguf"


def fill_page_cache(machine: Machine) -> None:
    """Reads the model on a CPU of node 0: its cache then fills that node."""
    machine.shell(f"taskset -c 0 cat {MODEL} > /dev/null")


def node_field(machine: Machine, node: int, name: str) -> int:
    text = machine.read(f"/sys/devices/system/node/node{node}/meminfo")
    return int(next(line.split()[-2] for line in text.splitlines() if f" {name}:" in line)) * 1024


def test_a_model_larger_than_a_node_is_split_unasked_beside_its_own_page_cache(machine: Machine) -> None:
    configure(machine, model=MODEL)
    fill_page_cache(machine)
    half = 202 * 2**20
    # Node 0 has no room for its slice unless the cache goes.
    assert node_field(machine, 0, "MemFree") < half
    assert apply(machine)["plan"]["policy"] == "split"
    assert json.loads(machine.read(PLAN))["release_page_cache"] is True
    start(machine)
    assert all(part["local_ratio"] >= 0.99 for part in placement(machine)["slices"])
    pages = node_counts(machine)
    assert all(count * 4096 >= 0.99 * half for count in pages.values())

    # The running service's memory does not stand in the way of planning it again.
    assert apply(machine)["plan"]["policy"] == "split"


def test_the_page_cache_stands_in_the_way_when_it_is_not_released(machine: Machine) -> None:
    """What makes the test above a proof: the same plan without the release misses the limit."""
    configure(machine, model=MODEL)
    fill_page_cache(machine)
    apply(machine)
    document = json.loads(machine.read(PLAN))
    document["release_page_cache"] = False
    machine.write(PLAN, json.dumps(document))
    fill_page_cache(machine)
    done = machine.run("systemctl", "start", "stratad")
    assert done.status != 0, journal(machine)
    assert "verdict=below-limit" in journal(machine)
    machine.check("systemctl", "stop", "stratad")

    # Configured to, the daemon plans again instead of failing, and says so.
    configure(machine, model=MODEL, placement='fallback = "interleave"')
    fill_page_cache(machine)
    restart(machine)
    status = machine.http("GET", "/status").document
    assert status["plan"]["policy"] == "interleave"
    assert "placement-fallback" in {reason["code"] for reason in status["reasons"]}


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
