"""A loaded model serves: the engine on its thread, what looks after it, settings read again, and the orderly end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from planner import Effect, Plan, Reason
from stratad import journal
from stratad.chat.chat import Chat
from stratad.config import Configuration, Environment
from stratad.daemon.access import Access
from stratad.daemon.gpu_fallback import device_error
from stratad.daemon.loading import Loading, loaded
from stratad.daemon.machine_watch import MachineWatch
from stratad.daemon.pinning import PinWatch
from stratad.daemon.placement_watch import PlacementWatch
from stratad.daemon.prompt_place import loaded_reason
from stratad.daemon.reload import reloaded, settings_that_differ
from stratad.daemon.stop_signals import Request, StopSignals
from stratad.engine.engine import Engine
from stratad.engine.saved_prompts import SavedPromptsPlace
from stratad.engine.status import EngineSettings
from stratad.errors import DeviceError, StratadError, render_error
from stratad.gpu.expert_profile import SAVE_PAUSE_SECONDS, ProfileKeeper
from stratad.metrics.registry import Metrics
from stratad.native.chat import open_model_chat
from stratad.native.runner import NativeRunner
from stratad.plan.slot_memory import prompt_cache_limit
from stratad.runner.protocol import ModelRunner
from stratad.service.service import Service, ServiceLimits, ServingParts
from stratad.systemd.notify import Notifier, Watchdog

# How often a drain looks whether somebody has become impatient.
_LOOK_SECONDS = 0.5

# After draining, answers go out and memory is freed: the kernel needs seconds for hundreds of GiB.
_CLOSE_SECONDS = 30.0

# What a slow disk writes; systemd is asked for as much time as saved prompts may take at this rate.
_SAVED_BYTES_PER_SECOND = 50 * 1024**2


@dataclass(frozen=True, slots=True)
class Serving:
    """What stays while models come and go: everything but the plan and what is loaded by it."""

    loading: Loading
    environment: Environment
    access: Access
    metrics: Metrics
    saved_prompts: SavedPromptsPlace | None
    read_again: Callable[[], Configuration]


def serve(serving: Serving, plan: Plan) -> DeviceError | None:
    """Loads the model by the plan and serves until a stop signal; gives the error when a GPU has failed.

    Raises:
        StratadError: As `loaded`.
    """
    loading = serving.loading
    service = loading.service
    try:
        with (
            _pinging(serving.environment, service, loading.notifier, is_needed=not loading.is_first),
            loaded(loading, plan) as runner,
            _started_engine(serving, runner) as engine,
        ):
            loading.is_first = False
            service.serving(ServingParts(engine, runner, _chat(runner, service)))
            _say_ready(service, loading.notifier)
            with _profile_kept(loading, runner):
                _serve_until_stopped(serving, engine)
            # After that nobody can reach the runner any more.
            service.stopped()
            engine.close()
            failure = runner.device_failure
            return None if failure is None or loading.stop.is_requested else device_error(failure)
    except DeviceError as error:
        return error


def limits_of(configuration: Configuration) -> ServiceLimits:
    """What the service needs of the configuration."""
    return ServiceLimits(
        limit_ratio=configuration.placement.limit_ratio,
        placement_sample_pages=configuration.metrics.placement_sample_pages,
        stall_seconds=configuration.systemd.stall_seconds,
        placement_check_seconds=configuration.metrics.placement_check_seconds,
        max_queue=configuration.server.max_queue,
    )


@contextlib.contextmanager
def _profile_kept(loading: Loading, runner: NativeRunner) -> Iterator[None]:
    """Which experts are used is saved now and then and at the end, but for what a failed GPU leaves."""
    keeper = ProfileKeeper(loading.profile_path, loading.model, runner.expert_profile, SAVE_PAUSE_SECONDS)
    with keeper:
        yield
    if runner.device_failure is None:
        keeper.look()


@contextlib.contextmanager
def _started_engine(serving: Serving, runner: ModelRunner) -> Iterator[Engine]:
    """The engine on its own thread, after the model has answered once; closed at the end.

    Raises:
        DeviceError: A GPU has failed already.
    """
    loading, place = serving.loading, serving.saved_prompts
    configuration = loading.configuration
    settings = EngineSettings(
        max_queue=configuration.server.max_queue,
        request_timeout_seconds=configuration.server.request_timeout_seconds,
        max_tokens_default=configuration.server.max_tokens_default,
        chunk_tokens=configuration.model.chunk_tokens,
        prompt_cache_bytes=prompt_cache_limit(configuration, loading.model, loading.topology),
        saved_prompts=place,
        on_device_failure=lambda failure: loading.stop.ask_for_replacement(),
    )
    engine = Engine(runner, settings, serving.metrics)
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


def _serve_until_stopped(serving: Serving, engine: Engine) -> None:
    """Watches over a serving daemon, reads settings again when asked, and drains it at the end."""
    loading = serving.loading
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
    access.service.limited(limits_of(result))
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
        if engine.drain(min(rest_seconds, _LOOK_SECONDS)):
            return
    journal.warn("stopping", "requests were cut off", requests_running=engine.status().running)
