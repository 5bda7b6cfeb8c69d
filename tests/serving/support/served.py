"""A real HTTP server on loopback over a scripted runner."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic, sleep

from openai import OpenAI

from stratad.engine.engine import Engine
from stratad.engine.status import EngineSettings
from stratad.metrics.registry import Metrics
from stratad.native.chat import open_model_chat
from stratad.server import Administration, HttpServer, ServerSettings, create_app, open_listener
from stratad.server.api_keys import ApiKeys
from stratad.service.service import Service, ServiceLimits, ServingParts
from tests.serving.support.scripted_runner import ScriptedRunner

MODEL = "scripted"
LIMIT_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Served:
    """What a test holds of a running server."""

    service: Service
    engine: Engine
    runner: ScriptedRunner
    url: str
    make_ready: Callable[[], None]

    def client(self) -> OpenAI:
        """The real client, without its own retries: they would hide what the server answers."""
        return OpenAI(base_url=f"{self.url}/v1", api_key="unused", max_retries=0, timeout=LIMIT_SECONDS)


@contextmanager
def serve(
    runner: ScriptedRunner | None = None,
    *,
    max_queue: int = 8,
    request_timeout_seconds: float = LIMIT_SECONDS,
    max_body_bytes: int = 1 << 20,
    chunk_tokens: int = 4,
    prompt_cache_bytes: int = 0,
    is_loaded: bool = True,
    port: int = 0,
    api_keys: ApiKeys | None = None,
    metrics_need_key: bool = True,
    administration: Administration | None = None,
    allowed_hosts: tuple[str, ...] = (),
) -> Iterator[Served]:
    """Serves `runner`; with `is_loaded` False the service stays in the state of loading until `make_ready`."""
    runner = runner or ScriptedRunner()
    metrics = Metrics(MODEL)
    service = Service(MODEL, "0", ServiceLimits(0.95, 64, 60.0))
    metrics.add_source(service.samples)
    engine = Engine(
        runner,
        EngineSettings(max_queue, request_timeout_seconds, None, chunk_tokens, prompt_cache_bytes),
        metrics,
    )
    engine.start()
    runner.forget_start()
    chat, _ = open_model_chat(runner)

    def make_ready() -> None:
        service.serving(ServingParts(engine, runner, chat))

    if is_loaded:
        make_ready()
    listener = open_listener("127.0.0.1", port, None)
    settings = ServerSettings(
        max_body_bytes,
        checks_host=True,
        allowed_hosts=allowed_hosts,
        api_keys=api_keys or ApiKeys(),
        metrics_need_key=metrics_need_key,
        administration=administration,
    )
    server = HttpServer(create_app(service, metrics, settings), listener)
    server.start()
    try:
        yield Served(service, engine, runner, listener.endpoint, make_ready)
    finally:
        runner.release()
        engine.close()
        server.stop()


def wait_until(condition: Callable[[], bool]) -> None:
    """Returns as soon as `condition` holds; fails after a limit."""
    deadline_seconds = monotonic() + LIMIT_SECONDS
    while not condition():
        assert monotonic() < deadline_seconds, "the condition never became true"
        sleep(0.002)
