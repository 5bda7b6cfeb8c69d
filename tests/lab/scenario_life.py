"""What happens to a running service: killed, wedged, stopped, moved to other CPUs, refused its system calls."""

from __future__ import annotations

from tests.lab import layouts
from tests.lab.machine import Answer, Machine
from tests.lab.serving import (
    GREEDY,
    apply,
    arena_pages,
    cgroup,
    complete,
    configure,
    journal,
    metrics,
    node_counts,
    process_id,
    reason_codes,
    start,
    state,
    wait_for,
    worker_cpus,
)

LAYOUT = layouts.TWO

# The grammar keeps the model from ending early.
LONG = {**GREEDY, "max_tokens": 400, "stream": True, "grammar": "root ::= [a-z ]{2000}"}


def drop_in(machine: Machine, unit: str, text: str) -> None:
    """A drop-in until the next boot, as an operator would write it."""
    machine.write(f"/run/systemd/system/{unit}.d/90-lab.conf", text)
    machine.check("systemctl", "daemon-reload")


def split(machine: Machine, *, placement: str = "", more: str = "") -> None:
    configure(machine, placement=f'policy = "split"\n{placement}', more=more)
    apply(machine)
    start(machine)


def restarts(machine: Machine) -> int:
    return int(machine.check("systemctl", "show", "--value", "-p", "NRestarts", "stratad"))


def requests_running(machine: Machine) -> int:
    return int(machine.http("GET", "/status").document["decode"]["requests_running"])


def is_serving(machine: Machine) -> bool:
    answer = machine.http("GET", "/status")
    return answer.status == 200 and answer.document["state"] in ("ready", "degraded")


def test_a_killed_daemon_comes_back_with_the_same_placement(machine: Machine) -> None:
    split(machine)
    before, first = node_counts(machine), process_id(machine)
    machine.check("kill", "-KILL", str(first))
    wait_for(lambda: restarts(machine) == 1 and is_serving(machine), "a restart")
    assert process_id(machine) != first
    assert node_counts(machine) == before
    assert worker_cpus(machine) == {1, 3}
    assert complete(machine)
    assert metrics(machine)["stratad_service_restarts_total"] == 1
    ready = machine.check(
        "journalctl", "-u", "stratad", "-b", "--no-pager", "-o", "cat", "STRATAD_SUBJECT=ready"
    )
    assert ready.count("ready: model=") >= 2


def test_a_wedged_decode_loop_is_restarted_by_the_watchdog(machine: Machine) -> None:
    drop_in(machine, "stratad.service", "[Service]\nWatchdogSec=10\n")
    split(machine, more="[systemd]\nstall_seconds = 5.0\n")
    first = process_id(machine)
    # Pinned to one CPU and no worker of the pool's: the thread that decodes.
    [decoder] = [
        thread
        for thread in machine.call("threads", process_id=first)
        if thread["cpus"].isdigit() and not thread["name"].startswith("stratad-w")
    ]
    assert machine.call("freeze_thread", process_id=first, thread_id=int(decoder["id"])) == ""
    request = machine.start("http", method="POST", path="/v1/completions", body=GREEDY)
    wait_for(lambda: restarts(machine) >= 1 and is_serving(machine), "a restart by the watchdog")
    assert "watchdog" in machine.check("journalctl", "-u", "stratad", "--no-pager", "-n", "80").lower()
    # The request that was in flight ended, with an error and not with silence.
    assert Answer(**request.result(60)).status != 200
    assert process_id(machine) != first
    assert complete(machine)


def test_sigterm_lets_a_running_stream_finish(machine: Machine) -> None:
    split(machine)
    request = machine.start("http", method="POST", path="/v1/completions", body=LONG)
    wait_for(lambda: requests_running(machine) == 1, "a running request")
    machine.check("systemctl", "stop", "stratad")
    answer = Answer(**request.result(120))
    assert answer.status == 200
    assert answer.text.rstrip().endswith("data: [DONE]"), answer.text[-300:]
    assert machine.check("systemctl", "show", "--value", "-p", "Result", "stratad").strip() == "success"


def test_a_reload_takes_settings_and_keeps_the_process(machine: Machine) -> None:
    split(machine)
    first = process_id(machine)
    configure(
        machine,
        placement='policy = "split"\nlimit_ratio = 0.5',
        more="[server]\nmax_queue = 7\n",
    )
    machine.check("systemctl", "reload", "stratad")
    wait_for(lambda: "reload:" in journal(machine), "the reload")
    said = journal(machine)
    assert "settings=placement.limit_ratio" in said
    assert "settings=server.max_queue" in said
    assert process_id(machine) == first
    assert machine.http("GET", "/placement").document["limit_ratio"] == 0.5
    machine.write("/etc/stratad/stratad.toml", "nonsense")
    machine.check("systemctl", "reload", "stratad")
    wait_for(
        lambda: "former one still counts" in machine.check("systemctl", "status", "stratad"), "the answer"
    )
    assert complete(machine)


def test_threads_are_pinned_again_after_the_cpuset_changed_under_a_stream(machine: Machine) -> None:
    split(machine)
    assert worker_cpus(machine) == {1, 3}
    request = machine.start("http", method="POST", path="/v1/completions", body=LONG)
    # All that the kernel does to the threads is take their masks away.
    machine.check("systemctl", "set-property", "--runtime", "stratad.service", "AllowedCPUs=0-3")
    wait_for(lambda: worker_cpus(machine) == {1, 3}, "pinning after a wider cpuset")

    machine.check("systemctl", "set-property", "--runtime", "stratad.service", "AllowedCPUs=0-2")
    wait_for(lambda: "workers-displaced" in reason_codes(machine), "a complaint")
    assert state(machine) == "degraded"
    assert worker_cpus(machine) == {1}
    answer = Answer(**request.result(240))
    assert answer.status == 200
    assert answer.text.rstrip().endswith("data: [DONE]"), answer.text[-300:]

    machine.check("systemctl", "set-property", "--runtime", "stratad.service", "AllowedCPUs=0-3")
    wait_for(lambda: worker_cpus(machine) == {1, 3} and state(machine) == "ready", "pinning on all CPUs")
    assert "workers-displaced" not in reason_codes(machine)
    assert complete(machine)


def test_a_cpu_that_goes_offline_and_comes_back_keeps_its_worker(machine: Machine) -> None:
    split(machine)
    request = machine.start("http", method="POST", path="/v1/completions", body=LONG)
    machine.shell("echo 0 > /sys/devices/system/cpu/cpu3/online")
    try:
        wait_for(lambda: "workers-displaced" in reason_codes(machine), "a complaint")
        assert state(machine) == "degraded"
    finally:
        machine.shell("echo 1 > /sys/devices/system/cpu/cpu3/online")
    wait_for(lambda: worker_cpus(machine) == {1, 3} and state(machine) == "ready", "pinning on the CPU again")
    answer = Answer(**request.result(240))
    assert answer.status == 200
    assert answer.text.rstrip().endswith("data: [DONE]"), answer.text[-300:]


def test_without_mbind_workers_are_pinned_and_the_service_is_up_and_degraded(machine: Machine) -> None:
    drop_in(machine, "stratad.service", "[Service]\nSystemCallFilter=~mbind set_mempolicy\n")
    configure(machine)
    start(machine)
    assert state(machine) == "degraded"
    assert "placement-not-possible" in reason_codes(machine)
    assert worker_cpus(machine)
    assert complete(machine)


def test_an_applied_split_without_mbind_is_planned_again_and_degraded(machine: Machine) -> None:
    configure(machine)
    apply(machine, "--policy", "split")
    drop_in(machine, "stratad.service", "[Service]\nSystemCallFilter=~mbind set_mempolicy\n")
    start(machine)
    assert state(machine) == "degraded"
    assert machine.http("GET", "/status").document["plan"]["policy"] != "split"
    assert complete(machine)


def test_a_slice_confined_to_one_node_gives_no_split_and_says_why(machine: Machine) -> None:
    configure(machine)
    apply(machine, "--policy", "split")
    drop_in(machine, "stratad.slice", "[Slice]\nAllowedCPUs=0-1\nAllowedMemoryNodes=0\n")
    start(machine)
    document = machine.http("GET", "/status").document
    assert document["plan"]["policy"] == "single-socket"
    codes = {reason["code"] for reason in document["reasons"]}
    assert {"one-node-cpuset", "cpuset-narrower-than-plan", "memory-nodes-narrower-than-plan"} <= codes
    assert node_counts(machine).keys() == {0}
    # What is left of the drop-in's CPUs (the server's 0, workers on 1 and 3) inside the slice's.
    assert cgroup(machine, "cpuset.cpus.effective") == "0-1"
    assert complete(machine)
    # Planned again for the slice as it is, everything fits.
    assert apply(machine)["plan"]["policy"] == "single-socket"
    assert state(machine) == "ready"
    assert not {code for code in reason_codes(machine) if "than-plan" in code}


# Memory without a policy, touched on node 0 and read on node 1 until the balancer has moved some of it.
_DRIFT = """
import os, sys, time

def migrated_pages():
    lines = open("/proc/vmstat").read().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("numa_pages_migrated ")))

os.sched_setaffinity(0, {0})
memory = bytearray(64 << 20)
for offset in range(0, len(memory), 4096):
    memory[offset] = 1
os.sched_setaffinity(0, {2})
begun, end = migrated_pages(), time.monotonic() + 200
while migrated_pages() - begun < 1000:
    sum(memory[::4096])
    if time.monotonic() > end:
        sys.exit("the balancer moved nothing")
"""


def test_numa_balancing_does_not_erode_a_placed_arena(machine: Machine) -> None:
    machine.shell("echo 1 > /proc/sys/kernel/numa_balancing")
    split(machine)
    before = node_counts(machine)
    # Both workers on node 0: half of every step's reads are remote, which is what draws pages over.
    machine.check("systemctl", "set-property", "--runtime", "stratad.service", "AllowedCPUs=0-1")
    other = machine.start("run", command=["/usr/bin/python3", "-c", _DRIFT], limit_seconds=300.0)
    while not other.done():
        complete(machine)
    # The balancer was at work on another process at the same time, and left the arena alone.
    assert other.result()["status"] == 0, other.result()["stderr"]
    complete(machine)
    assert node_counts(machine) == before


def move_all_to_node_1(machine: Machine) -> None:
    machine.check("migratepages", str(process_id(machine)), "0", "1")


def test_pages_that_somebody_moves_are_moved_back_under_a_stream(machine: Machine) -> None:
    split(machine, more="[metrics]\nplacement_check_seconds = 2.0\n")
    before, answer = node_counts(machine), complete(machine)
    request = machine.start("http", method="POST", path="/v1/completions", body=LONG)
    wait_for(lambda: requests_running(machine) == 1, "a running request")
    move_all_to_node_1(machine)
    wait_for(
        lambda: (
            metrics(machine)["stratad_placement_repaired_pages_total"] > 0
            and arena_pages(machine).get(0, 0) >= 0.95 * before[0]
        ),
        "the repair",
    )
    wait_for(lambda: state(machine) == "ready", "the all-clear")
    assert node_counts(machine)[0] >= 0.95 * before[0]
    assert "placement-repaired" in reason_codes(machine)
    streamed = Answer(**request.result(240))
    assert streamed.text.rstrip().endswith("data: [DONE]"), streamed.text[-300:]
    assert complete(machine) == answer


def test_without_repair_pages_that_somebody_moves_are_noticed_and_told(machine: Machine) -> None:
    split(machine, placement="repair = false", more="[metrics]\nplacement_check_seconds = 2.0\n")
    assert state(machine) == "ready"
    move_all_to_node_1(machine)
    assert node_counts(machine).keys() == {1}
    wait_for(lambda: "placement-below-limit" in reason_codes(machine), "a complaint")
    assert state(machine) == "degraded"
    assert metrics(machine)['stratad_placement_local_ratio{node="0",slice="0"}'] < 0.95
    assert metrics(machine)['stratad_plan_reason{code="placement-below-limit",effect="warns"}'] == 1
    assert complete(machine)
