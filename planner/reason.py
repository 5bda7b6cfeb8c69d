"""Reasons: every choice, refusal and warning as a value, and the table of their public codes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from planner.request import Policy

Evidence = str | int | float | bool | None | tuple[int, ...]


class Effect(StrEnum):
    """What a reason does to the plan."""

    REJECTS = "rejects"
    WARNS = "warns"
    CHOOSES = "chooses"
    INFORMS = "informs"


@dataclass(frozen=True, slots=True)
class Reason:
    """One finding: a stable code, its effect, the sentence with the numbers compared, and a way out.

    `policy` is the policy the finding is about, or None when it is about the machine or the request.
    """

    code: str
    effect: Effect
    message: str
    evidence: Mapping[str, Evidence] = field(default_factory=dict, hash=False)
    remedy: str | None = None
    policy: Policy | None = None

    def __post_init__(self) -> None:
        assert self.code in REASON_CODES, f"{self.code} has no row in REASON_CODES"


@dataclass(frozen=True, slots=True)
class ReasonCode:
    """What a code means to an operator in one sentence, and what to do about it in another ("" for nothing)."""

    meaning: str
    action: str = ""


_SETTLE = (
    "Run `stratactl tune` to settle it end to end, or `stratactl bench` to replace the model's defaults."
)
_ALLOW_CALLS = (
    "Run under systemd, or give the container CAP_SYS_NICE or a seccomp profile that allows mbind, "
    "set_mempolicy and move_pages."
)

# Public: tests, metrics and people match on these. A code is renamed only with an ADR. docs/REASONS.md is this
# table.
REASON_CODES: Mapping[str, ReasonCode] = {
    "affinity-narrows-cpuset": ReasonCode(
        "an affinity mask leaves fewer CPUs than the cpuset allows",
        "Start without taskset or CPUAffinity= if that was not meant.",
    ),
    "all-experts-in-vram": ReasonCode(
        "the CPU computes no expert bytes, so the pool stays as small as it can",
        "Set the CPU share if experts do run on the CPU.",
    ),
    "answer-format-doubtful": ReasonCode(
        "jinja2 and llama.cpp make different prompts of the model's chat template",
        "Compare the template with the model's original one; thinking and calls of tools may be read wrongly.",
    ),
    "answer-format-unknown": ReasonCode(
        "llama.cpp cannot read the model's chat template, so answers are plain text",
        "Use a model file with the original template; reasoning and tools need it.",
    ),
    "api-keys-readable": ReasonCode(
        "users of the machine who need not know the API keys can read their file",
        "Take the right away: `chmod o= FILE`, with the daemon's group as its group.",
    ),
    "applied-plan-differs": ReasonCode(
        "the configuration asks for another policy or arena scope than the applied plan has",
        "Run `sudo stratactl apply` again.",
    ),
    "arena-exceeds-cgroup-limit": ReasonCode(
        "arena and host buffers are larger than the cgroup's memory limit",
        "Raise MemoryMax= of the service or the container's limit, or use a smaller model.",
    ),
    "arena-exceeds-memory": ReasonCode(
        "arena and host buffers do not fit into the machine's available memory",
        "Use a smaller model or quantisation, keep more experts in VRAM, or free memory.",
    ),
    "arena-exceeds-nodes": ReasonCode(
        "the arena does not fit the nodes of this candidate with headroom",
        "Free memory there, or keep fewer experts in host memory.",
    ),
    "arena-holds-experts": ReasonCode(
        "a GPU takes part, so only the experts lie in the arena",
        "Set gpu.mode = 'off' when the GPU is not for this model.",
    ),
    "arena-holds-weights": ReasonCode(
        "no GPU takes part, so attention, router and output weights lie in the arena with the experts"
    ),
    "arena-not-locked": ReasonCode(
        "the arena cannot be locked in memory, so the kernel may swap it out",
        "Raise LimitMEMLOCK= of the service, or turn swap off.",
    ),
    "arena-not-pinned": ReasonCode(
        "the GPU's runtime refused to register the arena, so uploads go through a copy",
        "Set LimitMEMLOCK=infinity in the unit, raise the container's quota, or set gpu.pin_memory = false.",
    ),
    "arena-pinned": ReasonCode(
        "the arena is registered with the GPU's runtime: it is read in place, and no page is moved any more"
    ),
    "arena-pinning-unsupported": ReasonCode(
        "this GPU backend cannot register memory that it did not allocate, so uploads go through a copy"
    ),
    "arena-scope-requested": ReasonCode("the operator said what the arena holds (arena.scope)"),
    "batch-limits-ignored": ReasonCode(
        "recorded limits of batches are not used: the file is damaged, or of another machine, kernel or version",
        "Run `sudo stratactl bench` again; until then the built-in limits hold.",
    ),
    "batch-limits-measured": ReasonCode(
        "panels, tiles and ggml are used from as many tokens on as `stratactl bench` found them to be the faster way",
        "To keep the last bits of answers over another measurement, set placement.panel_tokens and max_pool_tokens.",
    ),
    "batch-limits-recorded": ReasonCode(
        "a benchmark of this machine recorded limits of batches, which the daemon takes when it starts",
        "Start the daemon again where the benchmark came after its start.",
    ),
    "bench-ignored": ReasonCode(
        "a recorded benchmark is of another machine or kernel and was not used",
        "Run `stratactl bench` again on this machine.",
    ),
    "chat-template-fallback": ReasonCode(
        "the model's chat template cannot be used, so a plain one stands in",
        "Use a model file that carries a template that works.",
    ),
    "close-call": ReasonCode(
        "two candidates are nearer than the model can tell; only a measurement settles it", _SETTLE
    ),
    "cpu-share-measured": ReasonCode(
        "the running daemon's own counts say which share of expert bytes its CPUs read"
    ),
    "cpuset-narrower-than-plan": ReasonCode(
        "the unit may not use every CPU of the applied plan",
        "Look for AllowedCPUs= of the unit or of stratad.slice, or apply again.",
    ),
    "cpuset-one-cpu": ReasonCode(
        "only one CPU may be used, so server and pool share it",
        "Widen AllowedCPUs= or the container's cpuset.",
    ),
    "cpuset-wider-than-plan": ReasonCode(
        "the unit may use CPUs that the applied plan leaves to others",
        "Look for a later drop-in that changes AllowedCPUs=; cgroup version 1 ignores it.",
    ),
    "estimated-gain": ReasonCode("the cost model agrees with the choice; its number is an estimate", _SETTLE),
    "estimated-no-gain": ReasonCode(
        "the cost model sees no gain beyond its uncertainty over the safer candidate", _SETTLE
    ),
    "expert-profile-ignored": ReasonCode(
        "recorded uses of experts are of another model or damaged, and the cache learns anew"
    ),
    "free-memory-skewed": ReasonCode(
        "one node is nearly full, so memory without a policy would pile up on the others",
        "Free memory on that node, or let the plan place the arena.",
    ),
    "gpu-cache": ReasonCode("so many experts fit into the memory that a GPU has left"),
    "gpu-cache-off": ReasonCode(
        "a GPU has no memory left for hot experts, so the pool computes all of them",
        "Lower gpu.vram_reserve_bytes, model.slots or model.context_tokens.",
    ),
    "gpu-cache-smaller": ReasonCode(
        "a GPU refused memory that it said it had, and the expert cache is smaller for it",
        "See what else uses the GPU's memory.",
    ),
    "gpu-failed": ReasonCode(
        "a GPU or its driver has failed, and everything is computed on the CPUs since",
        "Look at the driver's messages and restart the daemon.",
    ),
    "gpu-far-from-arena": ReasonCode(
        "a GPU reads expert weights over the link between nodes, because the arena lies at another node",
        "Plan with --objective prompt when prompts matter more than answers, or use a GPU at the arena's node.",
    ),
    "gpu-layers-assigned": ReasonCode("several GPUs share the layers, each a run of them"),
    "gpu-module-missing": ReasonCode(
        "a GPU is on the bus and no module to use it with is installed",
        "Run `make setup GPU=cuda|hip|vulkan`, or set gpu.mode = 'off' to say that this is meant.",
    ),
    "gpu-module-unusable": ReasonCode(
        "a GPU module cannot be loaded, most often because the driver's libraries are not there",
        "Install the GPU's driver and let the service open its devices, or set gpu.mode = 'off'.",
    ),
    "gpu-node-outside-cpuset": ReasonCode(
        "the GPU's node is not among the nodes this process may use",
        "Allow the GPU's node in the cpuset, or use a GPU at a usable node.",
    ),
    "gpu-node-preferred": ReasonCode("candidates are equal and this one lies at the GPU"),
    "gpu-node-unknown": ReasonCode(
        "a GPU is present and neither firmware nor locality tells its node",
        "Update the firmware (ACPI _PXM); `stratactl plan --gpu-node NODE` shows what it changes.",
    ),
    "gpu-prefill-off": ReasonCode(
        "a GPU has no memory to pass experts through, so the pool computes prompts as well",
        "Lower gpu.layers, model.slots or model.context_tokens.",
    ),
    "gpu-prefill-threshold": ReasonCode(
        "from so many tokens on the GPU was faster than the pool at the start"
    ),
    "gpu-unused-by-plan": ReasonCode(
        "a GPU could be used, and the plan keeps all weights in host memory for the CPUs",
        "Run `sudo stratactl apply` again, or set arena.scope = 'auto'.",
    ),
    "gpu-upload-slow": ReasonCode(
        "a GPU reads pinned host memory far below the rate of its link",
        "Boot with iommu=pt where the IOMMU translates; else look at the card's slot and link.",
    ),
    "gpu-used": ReasonCode("this GPU takes part"),
    "gpu-without-device": ReasonCode(
        "a GPU module was loaded and finds no GPU",
        "Install the GPU's driver and let the service open its devices, or set gpu.mode = 'off'.",
    ),
    "headroom-tight": ReasonCode(
        "the plan fits, and little stays free beside it",
        "Stop other programs that use memory there, or shorten the context.",
    ),
    "huge-pages-idle": ReasonCode(
        "reserved huge pages nobody uses take memory that ordinary pages cannot have",
        "Write 0 to the node's nr_hugepages unless another program needs them.",
    ),
    "huge-pages-stranded": ReasonCode(
        "reserved huge pages lie on nodes that hold no part of the arena",
        "Reserve them through the node's own nr_hugepages file; the global count is divided over all nodes.",
    ),
    "huge-pages-too-few": ReasonCode(
        "a node has fewer free huge pages than its part of the arena needs, so small pages are used",
        "Reserve the pages on that node at boot, before memory is fragmented, and read the count back.",
    ),
    "iommu-translated": ReasonCode(
        "the IOMMU translates the GPU's DMA, which held pinned copies at two thirds of their rate on one box",
        "Boot with iommu=pt if prompts matter and the platform allows it.",
    ),
    "link-degraded": ReasonCode(
        "the measured link between packages is far below what this CPU generation has",
        "Look for machine-check records of the link, and at the snoop mode in the firmware.",
    ),
    "machine-differs-from-plan": ReasonCode(
        "CPUs, nodes or GPUs have come or gone since the plan was made",
        "Bring back what is missing, or run `sudo stratactl apply` and restart the service.",
    ),
    "memory-nodes-narrower-than-plan": ReasonCode(
        "the unit may not use every memory node of the applied plan",
        "Look for AllowedMemoryNodes= of the unit or of stratad.slice.",
    ),
    "memory-unknown": ReasonCode(
        "the kernel states no memory sizes here, so nothing was compared",
        "Plan on the live machine, or capture it with its node meminfo files.",
    ),
    "most-local-feasible": ReasonCode("the most local policy that fits is chosen"),
    "no-experts": ReasonCode("the model has no experts in host memory, so there is nothing to place"),
    "node-too-small-for-slice": ReasonCode(
        "a node cannot hold its slice of the arena with headroom",
        "Free memory on that node, keep fewer experts in host memory, or set policy = 'interleave'.",
    ),
    "numa-balancing-on": ReasonCode(
        "automatic NUMA balancing is on; placed memory is protected by its own policy",
        "Nothing for the arena. Compare measurements only under the same setting.",
    ),
    "one-node-cpuset": ReasonCode(
        "the cpuset leaves workers and memory of one node only",
        "Widen AllowedCPUs= and AllowedMemoryNodes= if the whole machine is meant.",
    ),
    "open-to-network": ReasonCode(
        "anybody who reaches the daemon's address may use the model",
        "Set server.api_keys_file, or listen on loopback behind a proxy with TLS (docs/SECURITY.md).",
    ),
    "other-buffers-crowd-node": ReasonCode(
        "host buffers beside the arena do not fit the same node and will spill",
        "Shorten the context, or set policy = 'split' or 'interleave'.",
    ),
    "page-larger-than-slice": ReasonCode(
        "the page size asked for cannot be cut at slice borders, so small pages are used",
        "Leave the page size alone with a split, or set policy = 'single-socket'.",
    ),
    "placement-below-limit": ReasonCode(
        "fewer pages than placement.limit_ratio lie on their slice's nodes",
        "Free memory on that node and restart the daemon; `stratactl verify` shows every slice.",
    ),
    "placement-fallback": ReasonCode(
        "the planned placement could not be reached, so the daemon runs a safer policy",
        "Read the reasons before it: the node was full, or the kernel refused.",
    ),
    "placement-not-possible": ReasonCode(
        "the kernel or a seccomp filter refuses to place memory", _ALLOW_CALLS
    ),
    "placement-repaired": ReasonCode("pages lay elsewhere than planned and were moved to their slice's node"),
    "placement-unverifiable": ReasonCode(
        "the kernel does not tell where the arena's pages lie", "Allow move_pages to the service."
    ),
    "policy-excluded": ReasonCode("the request does not allow this policy"),
    "policy-requested": ReasonCode("the operator asked for this policy"),
    "process-policy-differs": ReasonCode(
        "the unit gave the process another memory policy than the plan says",
        "Look for another NUMAPolicy= in `systemctl cat stratad`; the daemon has set the right one.",
    ),
    "prompt-at-gpu": ReasonCode("prompts run on the GPU, which reads an arena at its own node fastest"),
    "prompt-cache-reduced": ReasonCode(
        "memory has no room for the configured prompt cache beside weights and slots, so it is smaller",
        "Free memory, or lower model.prompt_cache_bytes.",
    ),
    "running-plan-differs": ReasonCode(
        "with what the running daemon has measured, another policy would be chosen now",
        "Run `sudo stratactl apply`; the daemon is restarted with the new plan.",
    ),
    "saved-prompts-ignored": ReasonCode(
        "prompts saved at the last stop belong to another model, build or setting, or are damaged",
        "Nothing: prompts are computed anew, and the file is written anew when the daemon stops.",
    ),
    "saved-prompts-not-possible": ReasonCode(
        "prompts cannot be saved over a restart: no state directory, or it cannot be written",
        "Set server.state_directory to a folder that the service may write.",
    ),
    "saved-prompts-restored": ReasonCode("prompts saved at the last stop are back in slots and prompt cache"),
    "single-node-machine": ReasonCode("the machine has one NUMA node, so there is nothing to choose"),
    "slots-reduced": ReasonCode(
        "memory has no room for the KV cache of all slots, so fewer requests run side by side",
        "Free memory, or lower model.context_tokens or model.slots.",
    ),
    "staging-under-interleave": ReasonCode(
        "interleaving the process would scatter the buffers that feed a GPU",
        "Place only the arena, or use an engine that puts staging on the GPU's node.",
    ),
    "tiles-not-usable": ReasonCode(
        "tiles were measured or asked for, and may not be used here: panels take their place",
        "Look whether a container or virtual machine hides them; the answers are the same, prompts are slower.",
    ),
    "too-few-workers": ReasonCode(
        "there is less than one worker for each slice",
        "Ask for more workers, widen the cpuset, or set policy = 'single-socket'.",
    ),
    "tools-in-plain-text": ReasonCode(
        "the model's chat template has no form for tools, so they are told and called in plain text",
        "Use a model that was trained with tools where calls matter.",
    ),
    "tuned-tie": ReasonCode(
        "the end-to-end results are closer than their own spread, so they decide nothing",
        "Measure more starts, or take the default.",
    ),
    "tuned-winner": ReasonCode("an end-to-end measurement on this machine decided"),
    "tuning-ignored": ReasonCode(
        "recorded end-to-end results are of another machine, model or objective, or too few starts",
        "Run `stratactl tune` again for this machine and model.",
    ),
    "workers-beyond-knee": ReasonCode(
        "the worker sweep measured no more speed with the last workers",
        "Try fewer workers with `stratactl tune`; a sweep explains and does not decide.",
    ),
    "workers-clamped": ReasonCode(
        "more workers were asked for than physical cores can serve",
        "Leave the worker count unset, or lower it.",
    ),
    "workers-displaced": ReasonCode(
        "CPUs of the plan went offline or left the cpuset, so their workers run elsewhere",
        "Give the CPUs back, or run `sudo stratactl apply` again.",
    ),
    "workers-lopsided": ReasonCode(
        "nodes differ in usable cores, so slices differ in workers",
        "Widen the cpuset so that each node has as many cores.",
    ),
    "workers-rounded": ReasonCode("the worker count asked for is not a multiple of the slice count"),
}
