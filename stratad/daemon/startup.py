"""From configuration to a served model and down again: `run_daemon` is the sequence, the rest its steps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from planner import Plan, Topology
from planner.sysfs import Tree
from stratad import journal
from stratad.config import Configuration, Environment
from stratad.daemon.access import Access
from stratad.daemon.gpu_fallback import go_on_without_gpus
from stratad.daemon.loading import Loading, StoppedWhileLoading
from stratad.daemon.prompt_place import saved_prompts_place
from stratad.daemon.serving import Serving, limits_of, serve
from stratad.daemon.starting_limits import starting_limits
from stratad.daemon.starting_plan import DEGRADING_CODES, decide_plan, starting_gpus, starting_plan
from stratad.daemon.stop_signals import StopSignals
from stratad.errors import DeviceError
from stratad.gguf.model import read_model_facts
from stratad.gpu.expert_profile import FILE_NAME
from stratad.gpu.runtime import GpuFindings
from stratad.metrics.registry import Metrics, Sample
from stratad.native.apply import apply_process_memory, chosen_kernels
from stratad.plan.facts import STATE_DIRECTORY, machine_facts
from stratad.plan.reason_log import tell, warn_of
from stratad.plan.slot_memory import with_fitting_memory
from stratad.server import HttpServer, create_app, open_listener
from stratad.service.samples import node_memory_samples
from stratad.service.service import Service
from stratad.state.runtime_directory import published, runtime_directory
from stratad.systemd.notify import Notifier
from stratad.systemd.own_unit import restart_count
from stratad.version import stratad_version


def run_daemon(
    configuration: Configuration, environment: Environment, read_again: Callable[[], Configuration]
) -> None:
    """Serves until a stop signal, and returns after an orderly end.

    `read_again` gives the configuration anew when SIGHUP asks for it.

    Raises:
        StratadError: Anything that keeps the daemon from serving, before it says it is ready.
    """

    def read_again_fitting() -> Configuration:
        """A file that asks for more than there is room for has not changed."""
        return with_fitting_memory(read_again(), model, topology)[0]

    notifier = Notifier(environment.notify_socket)
    with StopSignals() as stop, contextlib.closing(notifier), contextlib.suppress(StoppedWhileLoading):
        model = read_model_facts(configuration.model.path)
        topology = machine_facts()
        configuration, reductions = with_fitting_memory(configuration, model, topology)
        gpus = starting_gpus(topology, configuration)
        plan, findings = starting_plan(topology, model, configuration, environment, gpus)
        state_directory = environment.state_directory or STATE_DIRECTORY
        limits, limited = starting_limits(
            configuration.placement,
            chosen_kernels(configuration.placement.kernels),
            topology,
            state_directory,
        )
        if limited is not None:
            tell(limited)
            findings = (*findings, limited)
        place, no_place = saved_prompts_place(configuration, environment, model, limits)
        reductions = (*reductions, *([no_place] if no_place else []))
        for reduction in reductions:
            warn_of(reduction)
        findings = (*gpus.reasons, *findings, *reductions)
        # Before any other thread starts: each inherits its memory policy from the one that starts it.
        apply_process_memory(plan.process_memory)
        service, metrics = _open_service(configuration, environment, topology)
        for reason in findings:
            service.found(reason, degrades=reason.code in DEGRADING_CODES)
        access = Access(service, environment.credentials_directory, stop.request_stop)
        access.read(configuration)
        with _listening(configuration, environment, access, metrics) as (server, directory):
            profile = state_directory / FILE_NAME
            loading = Loading(
                configuration,
                topology,
                model,
                gpus,
                directory,
                service,
                notifier,
                stop,
                profile_path=profile,
                limits=limits,
            )
            serving = Serving(loading, environment, access, metrics, place, read_again_fitting)
            while (failure := serve(serving, plan)) is not None:
                plan = _plan_without_gpus(loading, failure)
            # Answers that were cut off still go out.
            server.stop()
    journal.inform("stopped")


def _plan_without_gpus(loading: Loading, failure: DeviceError) -> Plan:
    """The plan for the CPUs alone. Raises the failure where the configuration wants the daemon to end."""
    go_on_without_gpus(failure, loading.configuration.gpu.on_failure, loading.service)
    loading.gpus = GpuFindings()
    plan = decide_plan(loading.topology, loading.model, loading.configuration, loading.gpus)
    apply_process_memory(plan.process_memory)
    return plan


def _open_service(
    configuration: Configuration, environment: Environment, topology: Topology
) -> tuple[Service, Metrics]:
    """The service in its state of loading, and the metrics that read it."""
    name = configuration.model.name or configuration.model.path.stem
    service = Service(name, stratad_version(), limits_of(configuration))
    metrics = Metrics(name)
    metrics.add_source(service.samples)
    tree, node_ids = Tree(Path("/")), [node.node_id for node in topology.nodes]
    metrics.add_source(lambda: node_memory_samples(tree, node_ids))
    restarts = restart_count(tree) if environment.notify_socket else None
    if restarts is not None:
        metrics.add_source(lambda: [Sample("stratad_service_restarts_total", restarts)])
    return service, metrics


@contextlib.contextmanager
def _listening(
    configuration: Configuration, environment: Environment, access: Access, metrics: Metrics
) -> Iterator[tuple[HttpServer, Path]]:
    """Listens and answers from now on, with /health saying "loading"; gives server and runtime directory."""
    settings = configuration.server
    listener = open_listener(settings.host, settings.port, settings.unix_socket)
    app_settings = access.server_settings(configuration, listener)
    server = HttpServer(create_app(access.service, metrics, app_settings), listener)
    server.start()
    directory = runtime_directory(settings.runtime_directory, environment)
    try:
        with published(directory, listener.endpoint, access.token):
            journal.inform("listening", endpoint=listener.endpoint)
            yield server, directory
    finally:
        server.stop()
