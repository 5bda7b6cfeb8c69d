"""From configuration to a served model and down again: `run_daemon` is the sequence, the rest its steps."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from planner import (
    Effect,
    Plan,
    Policy,
    Reason,
    Topology,
    plan_to_dict,
)
from planner.sysfs import Tree
from stratad import journal
from stratad.access import Access
from stratad.apply import apply_process_memory, open_runner
from stratad.chat import Chat
from stratad.config import Configuration, Environment
from stratad.engine import Engine
from stratad.engine_status import EngineSettings
from stratad.errors import LoadCancelled, PlacementError, StratadError, render_error
from stratad.facts import machine_facts
from stratad.machine_view import plan_summary
from stratad.machine_watch import MachineWatch
from stratad.metrics import Metrics, Sample
from stratad.model import ModelFacts, read_model_facts
from stratad.native_chat import open_model_chat
from stratad.native_runner import NativeRunner
from stratad.own_unit import restart_count
from stratad.pinning import PinWatch
from stratad.placement_watch import PlacementWatch, log_placement, note_placement, repair, tell_repair
from stratad.prompt_place import loaded_reason, saved_prompts_place
from stratad.reason_log import inform_of, warn_of
from stratad.reload import reloaded, settings_that_differ
from stratad.runner import ModelRunner
from stratad.runtime_directory import publish_plan, published, runtime_directory
from stratad.saved_prompts import SavedPromptsPlace
from stratad.server import HttpServer, create_app, open_listener
from stratad.service import Service, ServiceLimits, ServingParts
from stratad.service_samples import node_memory_samples
from stratad.slot_memory import prompt_cache_limit, with_fitting_memory
from stratad.starting_plan import DEGRADING_CODES, decide_plan, starting_plan
from stratad.stop_signals import Request, StopSignals
from stratad.systemd import Notifier, Watchdog
from stratad.verify import PlacementCheck, check_placement
from stratad.version import stratad_version

# Native code reports progress for every tensor; nobody reads more than a few lines a second.
_PROGRESS_PAUSE_SECONDS = 0.5
# And a log that is read later wants fewer.
_LOG_PAUSE_SECONDS = 10.0


# After draining, answers go out and memory is freed: the kernel needs seconds for hundreds of GiB.
_CLOSE_SECONDS = 30.0

# What a slow disk writes; systemd is asked for as much time as saved prompts may take at this rate.
_SAVED_BYTES_PER_SECOND = 50 * 1024**2


class _StoppedWhileLoading(Exception):
    """A stop signal came before the daemon was ready; leaving early is what was asked for."""


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
    with StopSignals() as stop, contextlib.closing(notifier), contextlib.suppress(_StoppedWhileLoading):
        model = read_model_facts(configuration.model.path)
        topology = machine_facts()
        configuration, reductions = with_fitting_memory(configuration, model, topology)
        plan, findings = starting_plan(topology, model, configuration, environment)
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
            loading = _Loading(configuration, topology, model, directory, service, notifier, stop)
            with _loaded(loading, plan) as runner, _started_engine(loading, place, runner, metrics) as engine:
                service.serving(ServingParts(engine, runner, _chat(runner, service)))
                _say_ready(service, notifier)
                _serve_until_stopped(loading, environment, engine, access, read_again_fitting)
                # Answers that are cut off still go out; after that nobody can reach the runner any more.
                service.stopped()
                engine.close()
                server.stop()
    journal.inform("stopped")


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


@dataclass(slots=True)
class _Loading:
    """Opens runners for plans, with progress shown everywhere and stop signals obeyed."""

    configuration: Configuration
    topology: Topology
    model: ModelFacts
    directory: Path
    service: Service
    notifier: Notifier
    stop: StopSignals
    _shown_seconds: float = 0.0
    _shown_stage: str = ""
    _shown_fraction: float = 0.0
    _told_seconds: float = 0.0

    def open(self, plan: Plan) -> NativeRunner:
        """Loads the model by `plan`. Raises _StoppedWhileLoading when asked to stop meanwhile."""
        document = plan_to_dict(plan)
        publish_plan(self.directory, document)
        self.service.planned(plan_summary(plan, document, self.topology))
        try:
            runner = open_runner(plan, self.model, self.configuration, self._progress)
        except LoadCancelled:
            self._leave_if_asked()
            raise
        if self.stop.is_requested:
            runner.close()
        self._leave_if_asked()
        for reason in runner.reasons:
            self.note(reason)
        return runner

    def note(self, reason: Reason) -> None:
        """Logs a finding made while loading, and has the service show it."""
        log = warn_of if reason.effect is Effect.WARNS else inform_of
        log(reason)
        self.service.found(reason, degrades=reason.code in DEGRADING_CODES)

    def plan_again(self, policy: Policy) -> Plan:
        """The plan with `policy` in place of the configured one."""
        placement = replace(self.configuration.placement, policy=policy.value)
        return decide_plan(self.topology, self.model, replace(self.configuration, placement=placement))

    def _progress(self, stage: str, fraction: float) -> bool:
        """Shows how far loading has come; False tells the native side to give up."""
        now_seconds = time.monotonic()
        is_new_stage = stage != self._shown_stage
        is_due = now_seconds - self._shown_seconds > _PROGRESS_PAUSE_SECONDS
        if is_new_stage or is_due or fraction >= 1.0 > self._shown_fraction:
            self._shown_seconds = now_seconds
            self._shown_stage, self._shown_fraction = stage, fraction
            self.service.loading(stage, fraction)
            extension_seconds = self.configuration.systemd.load_extension_seconds
            self.notifier.loading(f"{stage}, {fraction:.0%}", extension_seconds)
        if is_new_stage or now_seconds - self._told_seconds > _LOG_PAUSE_SECONDS:
            self._told_seconds = now_seconds
            journal.inform("loading", stage=stage, loaded_ratio=fraction)
        return not self.stop.is_requested

    def _leave_if_asked(self) -> None:
        if self.stop.is_requested:
            self.notifier.stopping("stopped while loading")
            journal.inform("stopping", "asked to stop while loading")
            raise _StoppedWhileLoading


@contextlib.contextmanager
def _loaded(loading: _Loading, plan: Plan) -> Iterator[NativeRunner]:
    """The model in memory with its placement verified; closed at the end.

    Raises:
        PlacementError: Too few pages lie where the plan says, and no fallback is configured or helped.
    """
    with contextlib.ExitStack() as stack:
        runner = stack.enter_context(contextlib.closing(loading.open(plan)))
        check = _check(runner, loading)
        fallback = loading.configuration.placement.fallback
        if not check.is_met and fallback in (Policy.INTERLEAVE, Policy.SINGLE_SOCKET):
            stack.close()
            second_plan = _fallback_plan(loading, Policy(fallback), check)
            runner = stack.enter_context(contextlib.closing(loading.open(second_plan)))
            check = _check(runner, loading)
        if not check.is_met and fallback != "degraded":
            raise _placement_error(check)
        yield runner


def _check(runner: ModelRunner, loading: _Loading) -> PlacementCheck:
    """Samples placement before anybody is served, repairs it where that helps, and shows what it found."""
    check = _sample(runner, loading)
    if check.is_met or not loading.configuration.placement.repair:
        return check
    tell_repair(loading.service, repair(runner.repair_placement))
    return _sample(runner, loading)


def _sample(runner: ModelRunner, loading: _Loading) -> PlacementCheck:
    configuration = loading.configuration
    report = runner.placement(configuration.metrics.placement_sample_pages)
    check = check_placement(report, configuration.placement.limit_ratio)
    loading.service.checked(check)
    note_placement(loading.service, check)
    log_placement(check)
    return check


def _fallback_plan(loading: _Loading, policy: Policy, check: PlacementCheck) -> Plan:
    message = f"placement was verified at {check.worst_ratio:.4f}; planned again with {policy.value}"
    loading.service.found(Reason("placement-fallback", Effect.WARNS, message))
    journal.warn("placement", message, code="placement-fallback")
    return loading.plan_again(policy)


def _placement_error(check: PlacementCheck) -> PlacementError:
    return PlacementError(
        tried="verifying where the arena's pages lie",
        because=f"too few pages of slice {check.worst_slice} lie on its nodes",
        values={"local_ratio": round(check.worst_ratio or 0.0, 4), "limit_ratio": check.limit_ratio},
        remedy="free memory on that node, or set placement.fallback to interleave, single-socket or degraded",
    )


@contextlib.contextmanager
def _started_engine(
    loading: _Loading, place: SavedPromptsPlace | None, runner: ModelRunner, metrics: Metrics
) -> Iterator[Engine]:
    """The engine on its own thread, after the model has answered once; closed at the end."""
    configuration = loading.configuration
    settings = EngineSettings(
        max_queue=configuration.server.max_queue,
        request_timeout_seconds=configuration.server.request_timeout_seconds,
        max_tokens_default=configuration.server.max_tokens_default,
        chunk_tokens=configuration.model.chunk_tokens,
        prompt_cache_bytes=prompt_cache_limit(configuration, loading.model, loading.topology),
        saved_prompts=place,
    )
    engine = Engine(runner, settings, metrics)
    engine.start()
    if place is not None and (reason := loaded_reason(engine.loaded_prompts, place)) is not None:
        loading.note(reason)
    try:
        yield engine
    finally:
        engine.close()


def _chat(runner: ModelRunner, service: Service) -> Chat:
    """Chats by the model's template; what is odd about it is shown."""
    chat, findings = open_model_chat(runner)
    for finding in findings:
        journal.inform("chat template", finding.message, code=finding.code)
        service.found(Reason(finding.code, Effect.INFORMS, finding.message))
    return chat


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
                is_repairing=configuration.placement.repair,
            )
        )
        if environment.watchdog_microseconds is not None:
            interval_seconds = environment.watchdog_microseconds / 1_000_000
            stack.enter_context(Watchdog(notifier, interval_seconds, service.is_progressing))
        yield


def _serve_until_stopped(
    loading: _Loading,
    environment: Environment,
    engine: Engine,
    access: Access,
    read_again: Callable[[], Configuration],
) -> None:
    """Watches over a serving daemon, reads settings again when asked, and drains it at the end."""
    configuration, service, notifier = loading.configuration, loading.service, loading.notifier
    while True:
        with _watched(configuration, environment, service, notifier):
            if loading.stop.wait() is Request.STOP:
                _drain(configuration, service, engine, notifier, loading.stop)
                return
        configuration = _reload(configuration, access, notifier, read_again)


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
