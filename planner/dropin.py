"""The systemd drop-in of a plan: CPUs and memory policy of the unit, as text. Pure."""

from __future__ import annotations

from planner.cpulist import format_id_list
from planner.plan import MemoryMode, Plan
from planner.reason import Effect, Reason

# The first words of every file that we write, by which we know our own again.
OWNER_LINE = "# Written by stratactl"

# Effects in the order an operator reads them; rejected candidates are in `stratactl plan`.
_SHOWN_EFFECTS = (Effect.CHOOSES, Effect.WARNS, Effect.INFORMS)


def plan_cpu_ids(plan: Plan) -> tuple[int, ...]:
    """Give every CPU the plan uses: the workers' and the server's, sorted."""
    workers = (worker.cpu_id for worker in plan.layout.workers if worker.cpu_id is not None)
    return tuple(sorted({*workers, *plan.layout.host_cpu_ids}))


def is_drop_in_needed(plan: Plan) -> bool:
    """Whether the unit has to say anything for this plan: not where pages lie where they are touched first."""
    placed = any(part.node_ids for part in plan.layout.slices)
    return placed or plan.process_memory.mode is not MemoryMode.DEFAULT


def drop_in_text(plan: Plan, plan_path: str) -> str | None:
    """Give the text of `stratad.service.d/50-placement.conf`, or None when the plan needs none.

    `AllowedCPUs=` is a cpuset, which the service cannot leave; `NUMAPolicy=` is where buffers start, and the
    daemon places the arena itself. `AllowedMemoryNodes=` stays unset: it turns a full node into a killed
    service, and pinned pages could not follow a change.

    Args:
        plan: The decision.
        plan_path: Where the plan's document lies for the daemon to read.

    Source:
        systemd.resource-control(5), systemd.exec(5); DESIGN.md section 7.
    """
    if not is_drop_in_needed(plan):
        return None
    head = [
        f"{OWNER_LINE} apply; `stratactl revert` takes it away again. Changes made here are lost.",
        f"# plan {plan.fingerprint} for machine {plan.machine_fingerprint}: {plan.policy}",
    ]
    reasons = [_comment(reason) for effect in _SHOWN_EFFECTS for reason in plan.reasons_with(effect)]
    directives = [
        "[Service]",
        # An empty value drops what an earlier file allowed; lists would add up otherwise.
        "AllowedCPUs=",
        f"AllowedCPUs={format_id_list(plan_cpu_ids(plan))}",
        *_memory_directives(plan),
        f"Environment=STRATAD_PLAN={plan_path}",
    ]
    return "\n".join([*head, *reasons, "", *directives]) + "\n"


def reservation_text(unit: str, cpu_ids: tuple[int, ...], fingerprint: str) -> str:
    """Give the drop-in that keeps `unit` (a slice or scope) on `cpu_ids`, the CPUs the plan leaves."""
    section = "Scope" if unit.endswith(".scope") else "Slice"
    return (
        f"{OWNER_LINE} reserve; `stratactl release` takes it away again.\n"
        f"# CPUs that plan {fingerprint} leaves to others\n\n"
        f"[{section}]\nAllowedCPUs=\nAllowedCPUs={format_id_list(cpu_ids)}\n"
    )


def _memory_directives(plan: Plan) -> list[str]:
    memory = plan.process_memory
    if memory.mode is MemoryMode.DEFAULT:
        return []
    return [f"NUMAPolicy={memory.mode}", f"NUMAMask={format_id_list(memory.node_ids)}"]


def _comment(reason: Reason) -> str:
    # A line end would leave the comment, and a backslash at the end would join the next line to it.
    message = " ".join(reason.message.split()).rstrip("\\")
    return f"# {reason.effect} {reason.code}: {message}"
