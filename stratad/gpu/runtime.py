"""The GPUs of this process: modules loaded, devices told apart and located, arenas registered with their runtimes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from planner import Accelerator, Effect, GpuInUse, Reason, Topology, pci_address_of
from planner.quantity import format_bytes
from stratad import _native
from stratad.config import GpuSection
from stratad.errors import ConfigurationError
from stratad.gpu.modules import find_modules, fits
from stratad.gpu.rates import HostToDeviceRate
from stratad.machine.memlock import memlock_limit

DRIVER_REMEDY = (
    "install the GPU's driver and its libraries (NVIDIA: libcuda1, AMD: ROCm, else: libvulkan1 with the maker's "
    "Vulkan driver) and let the service open its devices, or set gpu.mode = 'off'"
)


@dataclass(frozen=True, slots=True)
class FoundGpu:
    """A GPU that a loaded module offers. `pci_address` and `node_id` are None where nobody knows."""

    name: str
    description: str
    backend: str
    pci_address: str | None
    node_id: int | None
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class GpuFindings:
    """The GPUs to use, () for none, and what was found on the way."""

    gpus: tuple[FoundGpu, ...] = ()
    reasons: tuple[Reason, ...] = ()

    @property
    def in_use(self) -> tuple[GpuInUse, ...]:
        """The same GPUs as the planner takes them."""
        return tuple(GpuInUse(gpu.pci_address, gpu.memory_bytes or None) for gpu in self.gpus)


def open_gpus(settings: GpuSection, topology: Topology) -> GpuFindings:
    """Loads the modules that are here and gives their GPUs, each with its node.

    A module that cannot be loaded is a reason and nothing worse: the daemon then serves with the CPUs.

    Raises:
        ConfigurationError: `gpu.mode` is "on" and no GPU can be used, or one is named that is not there.
    """
    if settings.mode == "off":
        return GpuFindings()
    modules = _wanted_modules(settings, topology)
    reasons = [reason for path in modules if (reason := _load(path)) is not None]
    gpus = tuple(_located(device, topology) for device in _native.gpu_devices()) if modules else ()
    if not modules and topology.accelerators:
        reasons.append(_module_missing(topology.accelerators))
    gpus = _chosen(gpus, settings.devices)
    reasons += [_used(gpu) for gpu in gpus]
    if not gpus and settings.mode == "on":
        raise ConfigurationError(
            tried='finding a GPU, because gpu.mode is "on"',
            because=reasons[0].message if reasons else "no module of ggml's GPU backends is installed",
            values={"modules": ", ".join(path.name for path in modules) or "none"},
            remedy=(reasons[0].remedy if reasons else None)
            or "run `make setup GPU=cuda|hip|vulkan`, name one in gpu.backend_path, or set gpu.mode = 'auto'",
        )
    return GpuFindings(gpus, tuple(reasons))


def _chosen(gpus: tuple[FoundGpu, ...], names: Sequence[str]) -> tuple[FoundGpu, ...]:
    """Those of gpu.devices, in that order; all without any."""
    by_name = {gpu.name: gpu for gpu in gpus}
    for name in names:
        if gpus and name not in by_name:
            raise ConfigurationError(
                tried=f"using the GPU {name} (gpu.devices)",
                because="no loaded backend offers it",
                values={"offered": ", ".join(by_name)},
                remedy="name one that is offered, or leave gpu.devices out",
            )
    return tuple(by_name[name] for name in names if name in by_name) if names else gpus


def _wanted_modules(settings: GpuSection, topology: Topology) -> tuple[Path, ...]:
    """Modules for cards that are here; all of them when the operator asked for a GPU or named the module.

    Opening a driver's library takes seconds on some machines and memory on all, so not without a reason.
    """
    modules = find_modules(settings.backend_path)
    if settings.mode == "on" or settings.backend_path is not None:
        return modules
    return tuple(path for path in modules if any(fits(path, gpu) for gpu in topology.accelerators))


def _load(path: Path) -> Reason | None:
    """Loads one module; the reason why it is of no use, or None when it brought a device."""
    module = _native.load_gpu_module(str(path))
    if module.device_count > 0:
        return None
    evidence = {"module": path.name, "error": module.error}
    if not module.backend:
        return Reason(
            "gpu-module-unusable",
            Effect.WARNS,
            f"{path.name} cannot be loaded: {module.error}",
            evidence,
            DRIVER_REMEDY,
        )
    found = f": {module.error}" if module.error else ""
    return Reason(
        "gpu-without-device",
        Effect.WARNS,
        f"{path.name} was loaded and finds no GPU{found}",
        evidence,
        DRIVER_REMEDY,
    )


def _located(device: _native.GpuDevice, topology: Topology) -> FoundGpu:
    address = pci_address_of(device.pci_address)
    node_id = next((gpu.node_id for gpu in topology.accelerators if gpu.pci_address == address), None)
    return FoundGpu(device.name, device.description, device.backend, address, node_id, device.total_bytes)


def _module_missing(accelerators: Sequence[Accelerator]) -> Reason:
    addresses = ", ".join(gpu.pci_address for gpu in accelerators)
    return Reason(
        "gpu-module-missing",
        Effect.INFORMS,
        f"{addresses} looks like a GPU and there is no module to use it with: everything is computed on CPUs",
        {"accelerators": len(accelerators)},
        "run `make setup GPU=cuda|hip|vulkan`, or set gpu.mode = 'off' to say that this is meant",
    )


def _used(gpu: FoundGpu) -> Reason:
    where = gpu.pci_address or "no PCI address"
    place = "node unknown" if gpu.node_id is None else f"node {gpu.node_id}"
    return Reason(
        "gpu-used",
        Effect.INFORMS,
        f"{gpu.name} ({gpu.description}, {where}, {place}) takes part",
        {
            "gpu": gpu.name,
            "pci_address": gpu.pci_address,
            "node": gpu.node_id,
            "memory_bytes": gpu.memory_bytes,
        },
    )


@dataclass(frozen=True, slots=True)
class PinnedArenas:
    """Registrations that keep arenas pinned while they live, how many bytes, and what to tell."""

    registrations: tuple[_native.HostRegistration, ...]
    pinned_bytes: int
    reasons: tuple[Reason, ...]


def pin_arenas(arenas: Sequence[_native.Arena], backends: Sequence[str]) -> PinnedArenas:
    """Registers verified arenas with the runtime of each backend that computes; a refusal leaves them unpinned.

    Bytes count once, however many backends have them pinned.
    """
    registrations: list[_native.HostRegistration] = []
    reasons: list[Reason] = []
    pinned_bytes = 0
    for arena in arenas:
        made = {backend: _native.HostRegistration(arena, backend) for backend in dict.fromkeys(backends)}
        for backend, registration in made.items():
            if registration.state == _native.RegistrationState.PINNED:
                registrations.append(registration)
            else:
                reasons.append(_not_pinned(registration, backend, arena.size_bytes))
        pinned_bytes += max((one.pinned_bytes for one in made.values()), default=0)
    if pinned_bytes:
        names = ", ".join(dict.fromkeys(backends))
        reasons.append(
            Reason(
                "arena-pinned",
                Effect.INFORMS,
                f"{format_bytes(pinned_bytes)} of the arena are registered with {names}: GPUs read them in place, "
                "and no page is moved any more",
                {"pinned_bytes": pinned_bytes},
            )
        )
    return PinnedArenas(tuple(registrations), pinned_bytes, tuple(reasons))


def _not_pinned(registration: _native.HostRegistration, backend: str, arena_bytes: int) -> Reason:
    if registration.state == _native.RegistrationState.UNSUPPORTED:
        return Reason(
            "arena-pinning-unsupported",
            Effect.INFORMS,
            f"ggml's {backend} backend cannot register memory that it did not allocate: uploads go through a copy",
            {"backend": backend},
        )
    return Reason(
        "arena-not-pinned",
        Effect.WARNS,
        f"{backend} refused to register {format_bytes(registration.refused_chunk_bytes)} of the arena after "
        f"{format_bytes(registration.bytes_before_refusal)}: nothing stays registered, uploads go through a copy",
        {
            "backend": backend,
            "arena_bytes": arena_bytes,
            "bytes_before_refusal": registration.bytes_before_refusal,
            "refused_chunk_bytes": registration.refused_chunk_bytes,
            **memlock_limit(),
        },
        "set LimitMEMLOCK=infinity in the unit (or `ulimit -l unlimited`), raise the container's quota of locked "
        "memory, or set gpu.pin_memory = false",
    )


def measure_host_to_device(
    arena: _native.Arena,
    node_ids: Sequence[tuple[int, ...]],
    gpus: Sequence[FoundGpu],
    limit_bytes: int = 1 << 30,
) -> tuple[HostToDeviceRate, ...]:
    """The rate from each slice's own pages to each GPU, pinned or not as the arena is now.

    `node_ids` are the slices' nodes, in order. Nothing else may compute meanwhile.

    Raises:
        RuntimeError: A GPU has no room for the copies, or has failed.
    """
    return tuple(
        HostToDeviceRate(
            gpu.name,
            gpu.pci_address,
            index,
            nodes,
            arena.are_pages_held,
            _native.measure_copy_rate(arena, index, gpu.name, limit_bytes),
        )
        for gpu in gpus
        for index, nodes in enumerate(node_ids)
    )
