"""Several streams at once: through our engine over a loop of llama.cpp's own, and what HTTP adds to a step.

The loop is that of llama.cpp's llama-batched-bench: prompts of all sequences, then one call a step with a token of
each, every token chosen beforehand and nothing sampled. Same pinned source, threads and model as ours; ours does
everything a daemon does, sampling, text and bookkeeping included. Rates are those of the time in which all streams run.

usage: python -m tests.bench.serving [--rounds N] [--streams N ...] [--workers N] [--tokens N] [--type TYPE] ...

Exit status 1 when a bar is below its "must" on a machine that was quiet enough to judge.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from stratad import _native as native
from stratad.chat.chat import open_chat
from stratad.config import Configuration, ModelSection, PlacementSection
from stratad.daemon.starting_plan import decide_plan
from stratad.engine.engine import Engine
from stratad.engine.generation import Event, GenerationRequest, TextPiece
from stratad.engine.status import EngineSettings
from stratad.gguf.model import read_model_facts
from stratad.gpu.runtime import GpuFindings
from stratad.metrics.registry import Metrics
from stratad.native.apply import open_runner
from stratad.native.chat import NativeChatKnowledge
from stratad.native.runner import NativeRunner
from stratad.plan.facts import machine_facts
from stratad.runner.protocol import SamplingParameters
from stratad.server import HttpServer, ServerSettings, create_app, open_listener
from stratad.service.service import Service, ServiceLimits, ServingParts
from tests.bench.__main__ import raise_priority
from tests.bench.bars import Measured, Verdict, measured, table
from tests.bench.end_to_end import warm_memory
from tests.bench.native_programs import cpu_count
from tests.bench.synthetic_model import END_TOKEN, BenchShape, cached_model

PROMPT_TOKENS = 32
CONTEXT_TOKENS = 1024
# So often engine, HTTP twice and engine follow each other after one load.
TURNS = 2
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

    @property
    def name(self) -> str:
        """The setting as the table shows it."""
        return f"{self.weight_type}, {self.streams} streams, {self.workers} worker(s)"

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
    # Of the server's thread, for a token.
    http_cpu_seconds: list[float] = field(default_factory=list)
    read_rates: list[float] = field(default_factory=list)

    def last(self) -> str:
        """The last round's figures."""
        return (
            f"plain {self.plain[-1]:.1f}, engine {self.engine[-1]:.1f}, http {self.http[-1]:.1f} tok/s; "
            f"server {self.http_cpu_seconds[-1] * 1e6:.0f} us of CPU a token; "
            f"plain read {self.read_rates[-1] / 1e9:.1f} GB/s"
        )


def compare(setting: Setting, rounds: int) -> list[Measured]:
    """The bars of several streams for one setting."""
    shape = BenchShape(expert_type=setting.weight_type, vocabulary=setting.vocabulary, has_text=True)
    path, samples = cached_model(shape), Samples()
    for index in range(rounds):
        arms: list[Callable[[], None]] = [
            lambda: samples.plain.append(plain_rate(path, setting)),
            lambda: _ours(path, setting, samples),
        ]
        for arm in arms if index % 2 == 0 else reversed(arms):
            warm_memory(path.stat().st_size)
            arm()
            gc.collect()
        print(f"  {path.name}, {setting.name}, round {index + 1}/{rounds}: {samples.last()}", flush=True)
    over_plain = [ours / plain for ours, plain in zip(samples.engine, samples.plain, strict=True)]
    added = [engine / http - 1.0 for engine, http in zip(samples.engine, samples.http, strict=True)]
    # A step makes one token of every stream: what the server computes for one, over the time that a token takes.
    computed = [
        cpu_seconds * engine
        for cpu_seconds, engine in zip(samples.http_cpu_seconds, samples.engine, strict=True)
    ]
    return [
        measured("streams", setting.name, over_plain, samples.read_rates),
        measured("http", setting.name, added, samples.read_rates),
        measured("http-cpu", setting.name, computed, samples.read_rates),
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
    """One load of ours, with engine and HTTP by turns, so that both see the same pages and the same neighbours."""
    with _serving(path, setting) as (engine, port, runner):
        # The first steps after a load are slower, whoever asks for them.
        engine_rate(engine, setting, 0)
        http_rate(port, setting, 5)
        engine_rates, http_rates = [], []
        cpu_seconds = -_http_cpu_seconds()
        for base in range(6, 6 + 4 * TURNS, 4):
            engine_rates.append(engine_rate(engine, setting, base + 1))
            http_rates += [http_rate(port, setting, base + 2), http_rate(port, setting, base + 3)]
            engine_rates.append(engine_rate(engine, setting, base + 4))
        cpu_seconds += _http_cpu_seconds()
        samples.engine.append(statistics.median(engine_rates))
        samples.http.append(statistics.median(http_rates))
        token_count = 2 * TURNS * setting.streams * _token_count(setting)
        samples.http_cpu_seconds.append(cpu_seconds / token_count)
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
    plan = decide_plan(machine_facts(), facts, configuration, GpuFindings())
    runner = open_runner(plan, facts, configuration, lambda stage, fraction: True)
    metrics = Metrics(NAME)
    engine = Engine(runner, EngineSettings(setting.streams, 600.0, None), metrics)
    engine.start()
    service = Service(NAME, "bench", ServiceLimits(0.0, 64, 60.0))
    chat, _ = open_chat(None, bos_text="", eos_text="", knowledge=NativeChatKnowledge())
    service.serving(ServingParts(engine, runner, chat))
    listener = open_listener("127.0.0.1", 0, None)
    server = HttpServer(create_app(service, metrics, ServerSettings(1 << 20, True)), listener)
    server.start()
    try:
        yield engine, int(listener.endpoint.rpartition(":")[2]), runner
    finally:
        engine.close()
        server.stop()
        runner.close()


def _http_cpu_seconds() -> float:
    """CPU time of the server's thread so far."""
    (thread,) = (thread for thread in threading.enumerate() if thread.name == "http")
    spent = Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()[0]
    return int(spent) * 1e-9


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
    """Tokens a second of all streams, from the moment when the last of them has begun until the first one ends.

    Each stream's own rate, summed: counting tokens between two moments would cut the last step in two.
    """
    begin_seconds = max(times[0] for times in arrivals)
    end_seconds = min(times[-1] for times in arrivals)
    rates = []
    for times in arrivals:
        inside = [moment for moment in times if begin_seconds <= moment <= end_seconds]
        rates.append((len(inside) - 1) / (inside[-1] - inside[0]))
    return sum(rates)


def _token_count(setting: Setting) -> int:
    """Those that are counted, and those of the first streams while the prompts of the others are computed."""
    return setting.tokens + 2 * setting.streams


def _cpu_ids(setting: Setting) -> list[int]:
    return sorted(os.sched_getaffinity(0))[: setting.workers]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs all settings, prints the table and gives the exit status."""
    parser = argparse.ArgumentParser(prog="tests.bench.serving", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--workers", type=int, default=cpu_count())
    parser.add_argument("--tokens", type=int, default=24, help="tokens of each stream that count")
    parser.add_argument("--type", default="Q4_K_M", help="weights of the synthetic model")
    parser.add_argument("--vocabulary", type=int, default=512, help="its tokens; sampling looks at each")
    options = parser.parse_args(arguments)
    print(f"scheduler priority {'raised' if raise_priority() else 'ordinary (a busy machine will show)'}")
    results = []
    for streams in options.streams:
        setting = Setting(options.type, streams, options.workers, options.tokens, options.vocabulary)
        results += compare(setting, options.rounds)
    print(table(results))
    return 1 if any(result.verdict is Verdict.BELOW for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
