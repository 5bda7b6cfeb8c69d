"""The engine as the service sees it: requests go in from any thread, one thread computes them side by side.

The parts: `request_queue` holds the requests, `schedule` says what a step computes, `slots` what the model's
memory holds, and `decoding` makes the steps.
"""

from __future__ import annotations

import threading

from stratad.engine.decoding import DecodeLoop
from stratad.engine.generation import Deliver, Generation, GenerationRequest
from stratad.engine.prompt import mark_tokens, require_fit, require_known_biases, tokenize_prompt
from stratad.engine.prompt_keeping import LoadedPrompts
from stratad.engine.request_queue import RequestQueue
from stratad.engine.status import EngineSettings, EngineStatus, LatencyObserver
from stratad.runner.protocol import ModelRunner


class Ticket:
    """A submitted request, as its sender holds it."""

    def __init__(self, requests: RequestQueue, generation: Generation) -> None:
        self._requests = requests
        self._generation = generation

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self._generation.prompt)

    def cancel(self) -> None:
        """Ends the request without another event: at once while it waits, after its current step later."""
        self._requests.cancel(self._generation)


class Engine:
    """Answers requests with one `ModelRunner`. All public methods may be called from any thread."""

    def __init__(self, runner: ModelRunner, settings: EngineSettings, latency: LatencyObserver) -> None:
        self._runner = runner
        self._settings = settings
        self._requests = RequestQueue(settings.max_queue, runner.sequence_count, latency)
        self._loop = DecodeLoop(runner, self._requests, settings, latency)
        self._start_error: BaseException | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="decode", daemon=True)

    def start(self) -> None:
        """Starts the decode thread, pins it, has the model answer once and opens the queue.

        Raises whatever kept the thread from its seat or the model from answering.
        """
        self._thread.start()
        self._started.wait()
        if self._start_error is not None:
            self._thread.join()
            raise self._start_error
        self._requests.open()

    def submit(self, request: GenerationRequest, deliver: Deliver) -> Ticket:
        """Queues a request; its events go to `deliver`, the last one being `Finished` or `Failed`.

        Raises:
            InvalidRequest: The prompt is empty or too long, or a token is named that does not exist.
            QueueFull: Too many are waiting.
            NotAccepting: The engine is not started, drains or is closed.
            EngineFailure: The engine is broken.
        """
        prompt = tokenize_prompt(request, self._runner.vocabulary, self._runner.bos_text)
        require_fit(prompt, self._runner.context_tokens, "messages" if request.is_rendered else "prompt")
        require_known_biases(request.sampling, self._runner.vocabulary)
        marks = mark_tokens(request.marks, self._runner.vocabulary)
        generation = Generation(prompt, request, deliver, self._token_limit(request), marks)
        self._requests.submit(generation)
        return Ticket(self._requests, generation)

    def stop_accepting(self) -> None:
        """Refuses new requests from now on; queued and running ones go on."""
        self._requests.stop_accepting()

    def start_accepting(self) -> None:
        """Takes requests again after `stop_accepting`."""
        self._requests.open()

    def drain(self, limit_seconds: float) -> bool:
        """Refuses new requests and waits for the others; True when all ended within the limit."""
        self._requests.stop_accepting()
        return self._requests.wait_until_empty(limit_seconds)

    def close(self) -> None:
        """Ends every request that is left with `NotAccepting`, and the decode thread. May be repeated."""
        self._requests.close()
        if self._thread.ident is not None:
            self._thread.join()

    def status(self) -> EngineStatus:
        """How many requests run and wait, and the totals."""
        return self._requests.status()

    @property
    def loaded_prompts(self) -> LoadedPrompts:
        """What `start` found of prompts saved by an earlier daemon."""
        return self._loop.loaded_prompts

    def stalled_seconds(self) -> float:
        """Time since the last step while a request runs or waits; 0 while the engine is idle."""
        return self._requests.stalled_seconds()

    def _token_limit(self, request: GenerationRequest) -> int:
        wanted = request.max_tokens if request.max_tokens is not None else self._settings.max_tokens_default
        return self._runner.context_tokens if wanted is None else wanted

    def _run(self) -> None:
        try:
            self._runner.adopt_decode_thread()
            self._loop.answer_once()
        # Whatever it is, start() raises it on the thread that can act on it.
        except BaseException as error:
            self._start_error = error
            return
        finally:
            self._started.set()
        self._loop.run()
