"""From configuration to a served model and down again: `run_daemon` is the sequence, the rest its steps."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from planner import Effect, Plan, Reason, Topology
from planner.sysfs import Tree
from stratad import journal
from stratad.access import Access
from stratad.apply import apply_process_memory
from stratad.chat_template import FALLBACK_TEMPLATE_NAME, ChatTemplate, open_chat_template
from stratad.config import Configuration, Environment
from stratad.engine import Engine
from stratad.engine_status import EngineSettings
from stratad.errors import DeviceError, StratadError, render_error
from stratad.expert_profile import FILE_NAME, SAVE_PAUSE_SECONDS, ProfileKeeper
from stratad.facts import STATE_DIRECTORY, machine_facts
from stratad.gpu_fallback import device_error, go_on_without_gpus
from stratad.gpu_runtime import GpuFindings
from stratad.loading import Loading, StoppedWhileLoading, loaded
from stratad.machine_watch import MachineWatch
from stratad.metrics import Metrics, Sample
from stratad.model import read_model_facts
from stratad.native_runner import NativeRunner
from stratad.own_unit import restart_count
from stratad.pinning import PinWatch
from stratad.placement_watch import PlacementWatch
from stratad.prompt_place import loaded_reason, saved_prompts_place
from stratad.reason_log import warn_of
from stratad.reload import reloaded, settings_that_differ
from stratad.runner import ModelRunner
from stratad.runtime_directory import published, runtime_directory
from stratad.saved_prompts import SavedPromptsPlace
from stratad.server import HttpServer, create_app, open_listener
from stratad.service import Service, ServiceLimits, ServingParts
from stratad.service_samples import node_memory_samples
from stratad.slot_memory import prompt_cache_limit, with_fitting_memory
from stratad.starting_plan import DEGRADING_CODES, decide_plan, starting_gpus, starting_plan
from stratad.stop_signals import Request, StopSignals
from stratad.systemd import Notifier, Watchdog
from stratad.version import stratad_version

# How long one wait for running requests takes while the daemon drains.
_PROGRESS_PAUSE_SECONDS = 0.5


# After draining, answers go out and memory is freed: the kernel needs seconds for hundreds of GiB.
_CLOSE_SECONDS = 30.0

# What a slow disk writes; systemd is asked for as much time as saved prompts may take at this rate.
_SAVED_BYTES_PER_SECOND = 50 * 1024**2


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
        findings = (*gpus.reasons, *findings)
        place, no_place = saved_prompts_place(configuration, environment, model)
        reductions = (*reductions, *([no_place] if no_place else []))
        for reduction in reductions:
            warn_of(reduction)
        findings = (*findings, *reductions)
        # Before any other thread starts: each inherits its memory policy from the one that starts it.
        apply_process_memory(plan.process_memory)
        service, metrics = _open_service(configuration, environment, topology)
        for reason in findings:
            service.found(reason, degrades=reason.code in DEGRADING_CODES)
        access = Access(service, environment.credentials_directory, stop.request_stop)
        access.read(configuration)
        with _listening(configuration, environment, access, metrics) as (server, directory):
            loading = Loading(configuration, topology, model, gpus, directory, service, notifier, stop)
            loading.profile_path = (environment.state_directory or STATE_DIRECTORY) / FILE_NAME
            serving = _Serving(environment, metrics, access, place, read_again_fitting)
            while (failure := _serve(loading, plan, serving)) is not None:
                plan = _plan_without_gpus(loading, failure)
            # Answers that were cut off still go out.
            server.stop()
    journal.inform("stopped")


@dataclass(frozen=True, slots=True)
class _Serving:
    """What stays the same when a model is loaded anew in place of one whose GPU has failed."""

    environment: Environment
    metrics: Metrics
    access: Access
    saved_prompts: SavedPromptsPlace | None
    read_again: Callable[[], Configuration]


def _serve(loading: Loading, plan: Plan, serving: _Serving) -> DeviceError | None:
    """Loads the model by the plan and serves until a stop signal; gives the error when a GPU has failed."""
    service = loading.service
    try:
        with (
            _pinging(serving.environment, service, loading.notifier, is_needed=not loading.is_first),
            loaded(loading, plan) as runner,
            _started_engine(loading, serving.saved_prompts, runner, serving.metrics) as engine,
        ):
            loading.is_first = False
            service.serving(ServingParts(engine, runner, _chat_template(runner, service)))
            _say_ready(service, loading.notifier)
            with _profile_kept(loading, runner):
                _serve_until_stopped(loading, engine, serving)
            # After that nobody can reach the runner any more.
            service.stopped()
            engine.close()
            failure = runner.device_failure
            return None if failure is None or loading.stop.is_requested else device_error(failure)
    except DeviceError as error:
        return error


def _plan_without_gpus(loading: Loading, failure: DeviceError) -> Plan:
    """The plan for the CPUs alone. Raises the failure where the configuration wants the daemon to end."""
    go_on_without_gpus(failure, loading.configuration.gpu.on_failure, loading.service)
    loading.gpus = GpuFindings()
    plan = decide_plan(loading.topology, loading.model, loading.configuration, loading.gpus)
    apply_process_memory(plan.process_memory)
    return plan


@contextlib.contextmanager
def _profile_kept(loading: Loading, runner: NativeRunner) -> Iterator[None]:
    """Which experts are used is saved now and then and at the end, but for what a failed GPU leaves."""
    keeper = ProfileKeeper(loading.profile_path, loading.model, runner.expert_profile, SAVE_PAUSE_SECONDS)
    with keeper:
        yield
    if runner.device_failure is None:
        keeper.look()


def _open_service(
    configuration: Configuration, environment: Environment, topology: Topology
) -> tuple[Service, Metrics]:
    """The service in its state of loading, and the metrics that read it."""
    name = configuration.model.name or configuration.model.path.stem
    service = Service(name, stratad_version(), _limits(configuration))
    metrics = Metrics(name)
    metrics.add_source(service.samples)
    tree, node_ids = Tree(Path("/")), [node.node_id for node in topology.nodes]
    metrics.add_source(lambda: node_memory_samples(tree, node_ids))
    restarts = restart_count(tree) if environment.notify_socket else None
    if restarts is not None:
        metrics.add_source(lambda: [Sample("stratad_service_restarts_total", restarts)])
    return service, metrics


def _limits(configuration: Configuration) -> ServiceLimits:
    return ServiceLimits(
        limit_ratio=configuration.placement.limit_ratio,
        placement_sample_pages=configuration.metrics.placement_sample_pages,
        stall_seconds=configuration.systemd.stall_seconds,
        placement_check_seconds=configuration.metrics.placement_check_seconds,
        max_queue=configuration.server.max_queue,
    )


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


@contextlib.contextmanager
def _started_engine(
    loading: Loading, place: SavedPromptsPlace | None, runner: ModelRunner, metrics: Metrics
) -> Iterator[Engine]:
    """The engine on its own thread, after the model has answered once; closed at the end.

    Raises:
        DeviceError: A GPU has failed already.
    """
    configuration = loading.configuration
    settings = EngineSettings(
        max_queue=configuration.server.max_queue,
        request_timeout_seconds=configuration.server.request_timeout_seconds,
        max_tokens_default=configuration.server.max_tokens_default,
        chunk_tokens=configuration.model.chunk_tokens,
        on_device_failure=lambda failure: loading.stop.ask_for_replacement(),
        prompt_cache_bytes=prompt_cache_limit(configuration, loading.model, loading.topology),
        saved_prompts=place,
    )
    engine = Engine(runner, settings, metrics)
    try:
        engine.start()
    except RuntimeError as error:
        if runner.device_failure is None:
            raise
        raise device_error(runner.device_failure) from error
    if place is not None and (reason := loaded_reason(engine.loaded_prompts, place)) is not None:
        loading.tell((reason,))
    try:
        yield engine
    finally:
        engine.close()


def _chat_template(runner: ModelRunner, service: Service) -> ChatTemplate:
    template, problem = open_chat_template(
        runner.chat_template, bos_text=runner.bos_text, eos_text=runner.eos_text
    )
    if problem is not None:
        message = f"{problem}; {FALLBACK_TEMPLATE_NAME} is used"
        journal.inform("chat template", message, code="chat-template-fallback")
        service.found(Reason("chat-template-fallback", Effect.INFORMS, message))
    return template


@contextlib.contextmanager
def _watched(
    configuration: Configuration, environment: Environment, service: Service, notifier: Notifier
) -> Iterator[None]:
    """Placement is checked again and again, and the supervisor hears signs of life."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(PinWatch(service, configuration.placement.pin_check_seconds))
        stack.enter_context(MachineWatch(service, configuration.metrics.placement_check_seconds))
        stack.enter_context(
            PlacementWatch(
                service,
                configuration.metrics.placement_check_seconds,
                is_repairing=configuration.placement.repair and not service.has_pinned_pages(),
            )
        )
        stack.enter_context(_pinging(environment, service, notifier))
        yield


@contextlib.contextmanager
def _pinging(
    environment: Environment, service: Service, notifier: Notifier, *, is_needed: bool = True
) -> Iterator[None]:
    """The supervisor hears signs of life where it asked for them."""
    if environment.watchdog_microseconds is None or not is_needed:
        yield
        return
    interval_seconds = environment.watchdog_microseconds / 1_000_000
    with Watchdog(notifier, interval_seconds, service.is_progressing):
        yield


def _serve_until_stopped(loading: Loading, engine: Engine, serving: _Serving) -> None:
    """Watches over a serving daemon, reads settings again when asked, and drains it at the end."""
    configuration, service, notifier = loading.configuration, loading.service, loading.notifier
    while True:
        with _watched(configuration, serving.environment, service, notifier):
            request = loading.stop.wait()
            if request is Request.STOP:
                _drain(configuration, service, engine, notifier, loading.stop)
            if request is not Request.RELOAD:
                return
        configuration = _reload(configuration, serving.access, notifier, serving.read_again)


def _reload(
    running: Configuration, access: Access, notifier: Notifier, read_again: Callable[[], Configuration]
) -> Configuration:
    """The configuration that counts after SIGHUP; a file that cannot be used changes nothing."""
    notifier.reloading()
    try:
        fresh = read_again()
        result = reloaded(running, fresh)
        access.read(result)
    except StratadError as error:
        journal.report_block(render_error(error))
        notifier.ready("the configuration cannot be used; the former one still counts")
        return running
    access.service.limited(_limits(result))
    journal.inform("reload", settings=",".join(settings_that_differ(running, result)) or "none")
    if later := settings_that_differ(result, fresh):
        journal.warn("reload", "these settings count after a restart", settings=",".join(later))
    _say_ready(access.service, notifier)
    return result


def _say_ready(service: Service, notifier: Notifier) -> None:
    notifier.ready(f"serving {service.model_name}, {service.state.value}")
    journal.inform("ready", model=service.model_name, state=service.state.value)


def _drain(
    configuration: Configuration, service: Service, engine: Engine, notifier: Notifier, stop: StopSignals
) -> None:
    """Lets running requests finish within the limit, or until a second stop signal."""
    limit_seconds = configuration.server.drain_seconds
    saving_seconds = (
        configuration.model.save_slots * configuration.model.save_slots_bytes / _SAVED_BYTES_PER_SECOND
    )
    notifier.stopping("finishing running requests", limit_seconds + saving_seconds + _CLOSE_SECONDS)
    service.draining()
    status = engine.status()
    journal.inform("stopping", requests_running=status.running, requests_waiting=status.waiting)
    end_seconds = time.monotonic() + limit_seconds
    while not stop.is_urgent and (rest_seconds := end_seconds - time.monotonic()) > 0:
        if engine.drain(min(rest_seconds, _PROGRESS_PAUSE_SECONDS)):
            return
    journal.warn("stopping", "requests were cut off", requests_running=engine.status().running)
