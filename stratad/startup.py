"""From configuration to a served model and down again: `run_daemon` is the sequence, the rest its steps."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

from planner import (
    Plan,
    Topology,
)
from planner.explain import reason_log_line
from planner.sysfs import Tree
from stratad import journal
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
from stratad.loading import Loading, StoppedWhileLoading, loaded, notice_of
from stratad.metrics import Metrics
from stratad.model import read_model_facts
from stratad.native_runner import NativeRunner
from stratad.pinning import PinWatch
from stratad.placement_watch import PlacementWatch
from stratad.reload import reloaded, settings_that_differ
from stratad.runner import ModelRunner
from stratad.runtime_directory import published, runtime_directory
from stratad.server import HttpServer, ServerSettings, create_app, open_listener
from stratad.service import Notice, Service, ServiceLimits, ServingParts
from stratad.service_samples import node_memory_samples
from stratad.slot_memory import with_fitting_slots
from stratad.starting_plan import DEGRADING_CODES, decide_plan, starting_gpus, starting_plan
from stratad.stop_signals import Request, StopSignals
from stratad.systemd import Notifier, Watchdog

# Native code reports progress for every tensor; nobody reads more than a few lines a second.
_PROGRESS_PAUSE_SECONDS = 0.5


# After draining, answers go out and memory is freed: the kernel needs seconds for hundreds of GiB.
_CLOSE_SECONDS = 30.0


def run_daemon(
    configuration: Configuration, environment: Environment, read_again: Callable[[], Configuration]
) -> None:
    """Serves until a stop signal, and returns after an orderly end.

    `read_again` gives the configuration anew when SIGHUP asks for it.

    Raises:
        StratadError: Anything that keeps the daemon from serving, before it says it is ready.
    """

    def read_again_fitting() -> Configuration:
        """A file that asks for more slots than there is room for has not changed."""
        return with_fitting_slots(read_again(), model, topology)[0]

    notifier = Notifier(environment.notify_socket)
    with StopSignals() as stop, contextlib.closing(notifier), contextlib.suppress(StoppedWhileLoading):
        model = read_model_facts(configuration.model.path)
        topology = machine_facts()
        configuration, reduction = with_fitting_slots(configuration, model, topology)
        gpus = starting_gpus(topology, configuration)
        plan, findings = starting_plan(topology, model, configuration, environment, gpus)
        findings = (*gpus.reasons, *findings)
        if reduction is not None:
            journal.warn_line(reason_log_line(reduction))
            findings = (*findings, reduction)
        # Before any other thread starts: each inherits its memory policy from the one that starts it.
        apply_process_memory(plan.process_memory)
        service, metrics = _open_service(configuration, topology)
        for reason in findings:
            service.notice(notice_of(reason), degrades=reason.code in DEGRADING_CODES)
        with _listening(configuration, environment, service, metrics) as (server, directory):
            loading = Loading(configuration, topology, model, gpus, directory, service, notifier, stop)
            loading.profile_path = (environment.state_directory or STATE_DIRECTORY) / FILE_NAME
            while (failure := _serve(loading, plan, environment, metrics, read_again_fitting)) is not None:
                plan = _plan_without_gpus(loading, failure)
            # Answers that were cut off still go out.
            server.stop()
    journal.inform("stopped")


def _serve(
    loading: Loading,
    plan: Plan,
    environment: Environment,
    metrics: Metrics,
    read_again: Callable[[], Configuration],
) -> DeviceError | None:
    """Loads the model by the plan and serves until a stop signal; gives the error when a GPU has failed."""
    service = loading.service
    try:
        with (
            _pinging(environment, service, loading.notifier, is_needed=not loading.is_first),
            loaded(loading, plan) as runner,
            _started_engine(loading, runner, metrics) as engine,
        ):
            loading.is_first = False
            service.serving(ServingParts(engine, runner, _chat_template(runner, service)))
            _say_ready(service, loading.notifier)
            with _profile_kept(loading, runner):
                _serve_until_stopped(loading, environment, engine, read_again)
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


def _open_service(configuration: Configuration, topology: Topology) -> tuple[Service, Metrics]:
    """The service in its state of loading, and the metrics that read it."""
    name = configuration.model.name or configuration.model.path.stem
    service = Service(name, _version(), _limits(configuration))
    metrics = Metrics(name)
    metrics.add_source(service.samples)
    tree, node_ids = Tree(Path("/")), [node.node_id for node in topology.nodes]
    metrics.add_source(lambda: node_memory_samples(tree, node_ids))
    return service, metrics


def _limits(configuration: Configuration) -> ServiceLimits:
    return ServiceLimits(
        limit_ratio=configuration.placement.limit_ratio,
        placement_sample_pages=configuration.metrics.placement_sample_pages,
        stall_seconds=configuration.systemd.stall_seconds,
    )


@contextlib.contextmanager
def _listening(
    configuration: Configuration, environment: Environment, service: Service, metrics: Metrics
) -> Iterator[tuple[HttpServer, Path]]:
    """Listens and answers from now on, with /health saying "loading"; gives server and runtime directory."""
    settings = configuration.server
    listener = open_listener(settings.host, settings.port, settings.unix_socket)
    app_settings = ServerSettings(settings.max_body_bytes, listener.is_loopback, settings.allowed_hosts)
    server = HttpServer(create_app(service, metrics, app_settings), listener)
    server.start()
    directory = runtime_directory(settings.runtime_directory, environment)
    try:
        with published(directory, listener.endpoint):
            journal.inform("listening", endpoint=listener.endpoint)
            yield server, directory
    finally:
        server.stop()


@contextlib.contextmanager
def _started_engine(loading: Loading, runner: ModelRunner, metrics: Metrics) -> Iterator[Engine]:
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
    )
    engine = Engine(runner, settings, metrics)
    try:
        engine.start()
    except RuntimeError as error:
        if runner.device_failure is None:
            raise
        raise device_error(runner.device_failure) from error
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
        journal.inform("chat template", message)
        service.notice(Notice("chat-template-fallback", "informs", message))
    return template


@contextlib.contextmanager
def _watched(
    configuration: Configuration, environment: Environment, service: Service, notifier: Notifier
) -> Iterator[None]:
    """Placement is checked again and again, and the supervisor hears signs of life."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(PinWatch(service, configuration.placement.pin_check_seconds))
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


def _serve_until_stopped(
    loading: Loading, environment: Environment, engine: Engine, read_again: Callable[[], Configuration]
) -> None:
    """Watches over a serving daemon, reads settings again when asked, and drains it at the end."""
    configuration, service, notifier = loading.configuration, loading.service, loading.notifier
    while True:
        with _watched(configuration, environment, service, notifier):
            request = loading.stop.wait()
            if request is Request.STOP:
                _drain(configuration, service, engine, notifier, loading.stop)
            if request is not Request.RELOAD:
                return
        configuration = _reload(configuration, service, notifier, read_again)


def _reload(
    running: Configuration, service: Service, notifier: Notifier, read_again: Callable[[], Configuration]
) -> Configuration:
    """The configuration that counts after SIGHUP; a file that cannot be used changes nothing."""
    notifier.reloading()
    try:
        fresh = read_again()
    except StratadError as error:
        journal.report_block(render_error(error))
        notifier.ready("the configuration cannot be used; the former one still counts")
        return running
    result = reloaded(running, fresh)
    service.limited(_limits(result))
    journal.inform("reload", settings=",".join(settings_that_differ(running, result)) or "none")
    if later := settings_that_differ(result, fresh):
        journal.warn("reload", "these settings count after a restart", settings=",".join(later))
    _say_ready(service, notifier)
    return result


def _say_ready(service: Service, notifier: Notifier) -> None:
    notifier.ready(f"serving {service.model_name}, {service.state.value}")
    journal.inform("ready", model=service.model_name, state=service.state.value)


def _drain(
    configuration: Configuration, service: Service, engine: Engine, notifier: Notifier, stop: StopSignals
) -> None:
    """Lets running requests finish within the limit, or until a second stop signal."""
    limit_seconds = configuration.server.drain_seconds
    notifier.stopping("finishing running requests", limit_seconds + _CLOSE_SECONDS)
    service.draining()
    status = engine.status()
    journal.inform("stopping", requests_running=status.running, requests_waiting=status.waiting)
    end_seconds = time.monotonic() + limit_seconds
    while not stop.is_urgent and (rest_seconds := end_seconds - time.monotonic()) > 0:
        if engine.drain(min(rest_seconds, _PROGRESS_PAUSE_SECONDS)):
            return
    journal.warn("stopping", "requests were cut off", requests_running=engine.status().running)


def _version() -> str:
    try:
        return metadata.version("stratad")
    except metadata.PackageNotFoundError:
        return "source"
