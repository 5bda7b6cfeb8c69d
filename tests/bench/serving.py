"""Several streams at once: through our engine over a loop of llama.cpp's own, and what HTTP adds to a step.

The loop is that of llama.cpp's llama-batched-bench: prompts of all sequences, then one call a step with a token of
each, every token chosen beforehand and nothing sampled. Same pinned source, threads and model as ours; ours does
everything a daemon does, sampling, text and bookkeeping included. Rates are those of the time in which all streams run.
"""

from __future__ import annotations

import gc
import itertools
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from stratad import _native as native
from stratad.apply import open_runner
from stratad.chat_template import open_chat_template
from stratad.config import Configuration, ModelSection, PlacementSection
from stratad.engine import Engine
from stratad.engine_status import EngineSettings
from stratad.facts import machine_facts
from stratad.generation import Event, GenerationRequest, TextPiece
from stratad.metrics import Metrics
from stratad.model import read_model_facts
from stratad.native_runner import NativeRunner
from stratad.runner import SamplingParameters
from stratad.server import HttpServer, ServerSettings, create_app, open_listener
from stratad.service import Service, ServiceLimits, ServingParts
from stratad.starting_plan import decide_plan
from tests.bench.bars import Measured, measured
from tests.bench.end_to_end import warm_memory
from tests.bench.synthetic_model import END_TOKEN, BenchShape, cached_model

PROMPT_TOKENS = 32
CONTEXT_TOKENS = 1024
NAME = "bench"
SAMPLING = SamplingParameters(temperature=0.0, logit_bias=((END_TOKEN, -1e4),))


@dataclass(frozen=True, slots=True)
class Setting:
    """What one comparison runs."""

    weight_type: str
    streams: int
    workers: int
    tokens: int
    vocabulary: int

    def prompts(self, base: int) -> list[list[int]]:
        """A prompt for each stream; another `base`, other prompts, so that no slot holds their beginning."""
        return [
            [(base * 91 + stream * 17 + position * 31) % 250 for position in range(PROMPT_TOKENS)]
            for stream in range(self.streams)
        ]


@dataclass(slots=True)
class Samples:
    """Tokens a second of each round, and the plain reads beside ours."""

    plain: list[float] = field(default_factory=list)
    engine: list[float] = field(default_factory=list)
    http: list[float] = field(default_factory=list)
    read_rates: list[float] = field(default_factory=list)


def compare(setting: Setting, rounds: int) -> list[Measured]:
    """The bars of several streams for one setting."""
    shape = BenchShape(expert_type=setting.weight_type, vocabulary=setting.vocabulary, has_text=True)
    path, samples = cached_model(shape), Samples()
    for index in range(rounds):
        arms = [
            lambda: samples.plain.append(plain_rate(path, setting)),
            lambda: _ours(path, setting, samples),
        ]
        for arm in arms if index % 2 == 0 else reversed(arms):
            warm_memory(path.stat().st_size)
            arm()
            gc.collect()
        print(
            f"  {path.name}, {setting.streams} streams, {setting.workers} worker(s), round {index + 1}/{rounds}: "
            f"plain {samples.plain[-1]:.1f}, engine {samples.engine[-1]:.1f}, http {samples.http[-1]:.1f} tok/s; "
            f"plain read {samples.read_rates[-1] / 1e9:.1f} GB/s",
            flush=True,
        )
    name = f"{setting.weight_type}, {setting.streams} streams, {setting.workers} worker(s)"
    over_plain = [ours / plain for ours, plain in zip(samples.engine, samples.plain, strict=True)]
    added = [engine / http - 1.0 for engine, http in zip(samples.engine, samples.http, strict=True)]
    return [
        measured("streams", name, over_plain, samples.read_rates),
        measured("http", name, added, samples.read_rates),
    ]


def plain_rate(path: Path, setting: Setting) -> float:
    """Tokens a second of llama.cpp's loop, after one step that counts for nothing."""
    model = native.Model.load([str(path)], use_arena=False)
    context = native.Context(
        model,
        context_tokens=setting.streams * CONTEXT_TOKENS,
        batch_tokens=512,
        sequence_count=setting.streams,
        thread_count=setting.workers,
        cpu_ids=_cpu_ids(setting),
    )
    batch = native.Batch()
    for stream, prompt in enumerate(setting.prompts(0)):
        batch.clear()
        for position, token in enumerate(prompt):
            batch.add(token, position, stream, position == len(prompt) - 1)
        context.decode(batch)
    start_seconds = 0.0
    for step in range(setting.tokens + 1):
        if step == 1:
            start_seconds = time.perf_counter()
        batch.clear()
        for stream in range(setting.streams):
            batch.add((step * 97 + stream * 13) % 250, PROMPT_TOKENS + step, stream, True)
        context.decode(batch)
    return setting.streams * setting.tokens / (time.perf_counter() - start_seconds)


def _ours(path: Path, setting: Setting, samples: Samples) -> None:
    """One load of ours: engine and HTTP by turns, twice each, so that both see the same pages."""
    with _serving(path, setting) as (engine, port, runner):
        engine_rates, http_rates = [], []
        for base in (1, 3):
            engine_rates.append(engine_rate(engine, setting, base))
            http_rates.append(http_rate(port, setting, base + 1))
            http_rates.append(http_rate(port, setting, base + 4))
            engine_rates.append(engine_rate(engine, setting, base + 5))
        samples.engine.append(sum(engine_rates) / len(engine_rates))
        samples.http.append(sum(http_rates) / len(http_rates))
        samples.read_rates.append(native.measure_read_rate(runner._model.arenas[0], runner._pool))


@contextmanager
def _serving(path: Path, setting: Setting) -> Iterator[tuple[Engine, int, NativeRunner]]:
    """The daemon's own parts in this process: loaded model, engine, and HTTP on a port."""
    configuration = Configuration(
        ModelSection(
            path,
            slots=setting.streams,
            context_tokens=CONTEXT_TOKENS,
            threads=setting.workers,
            prompt_cache_bytes=0,
        ),
        PlacementSection(workers=setting.workers),
    )
    facts = read_model_facts(path)
    plan = decide_plan(machine_facts(), facts, configuration)
    runner = open_runner(plan, facts, configuration, lambda stage, fraction: True)
    metrics = Metrics(NAME)
    engine = Engine(runner, EngineSettings(setting.streams, 600.0, None), metrics)
    engine.start()
    service = Service(NAME, "bench", ServiceLimits(0.0, 64, 60.0))
    template, _ = open_chat_template(None, bos_text="", eos_text="")
    service.serving(ServingParts(engine, runner, template))
    listener = open_listener("127.0.0.1", 0, None)
    server = HttpServer(create_app(service, metrics, ServerSettings(1 << 20, True)), listener)
    server.start()
    try:
        yield engine, int(listener.endpoint.rpartition(":")[2]), runner
    finally:
        engine.close()
        server.stop()
        runner.close()


def engine_rate(engine: Engine, setting: Setting, base: int) -> float:
    """Tokens a second that the engine delivers while all streams run."""
    arrivals: list[list[float]] = []
    ends = []
    for prompt in setting.prompts(base):
        times: list[float] = []
        end = threading.Event()

        def deliver(event: Event, times: list[float] = times, end: threading.Event = end) -> None:
            if isinstance(event, TextPiece):
                times.append(time.monotonic())
            else:
                end.set()

        arrivals.append(times)
        ends.append(end)
        engine.submit(GenerationRequest(tuple(prompt), SAMPLING, _token_count(setting)), deliver)
    for end in ends:
        end.wait()
    return joint_rate(arrivals)


def http_rate(port: int, setting: Setting, base: int) -> float:
    """The same as a client on this machine sees it."""
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for index, prompt in enumerate(setting.prompts(base)):
            body = {
                "prompt": prompt,
                "max_tokens": _token_count(setting),
                "temperature": 0,
                "logit_bias": {str(END_TOKEN): -100},
                "stream": True,
            }
            files.append(Path(folder) / f"{index}.json")
            files[-1].write_text(json.dumps(body))
        command = [sys.executable, "-m", "tests.bench.stream_reader", str(port), *map(str, files)]
        outcome = subprocess.run(command, capture_output=True, check=True, text=True)
    return joint_rate(json.loads(outcome.stdout))


def joint_rate(arrivals: Sequence[Sequence[float]]) -> float:
    """Tokens a second of all streams, from the moment when the last of them has begun until the first one ends."""
    begin_seconds = max(times[0] for times in arrivals)
    end_seconds = min(times[-1] for times in arrivals)
    tokens = sum(begin_seconds < moment <= end_seconds for moment in itertools.chain(*arrivals))
    return tokens / (end_seconds - begin_seconds)


def _token_count(setting: Setting) -> int:
    """Those that are counted, and those of the first streams while the prompts of the others are computed."""
    return setting.tokens + 2 * setting.streams


def _cpu_ids(setting: Setting) -> list[int]:
    from os import sched_getaffinity

    return sorted(sched_getaffinity(0))[: setting.workers]
