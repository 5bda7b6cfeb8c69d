"""The decode loop: one thread that owns the runner and answers one request after the other.

Requests come from any thread and wait in a bounded queue, first come first served. What a request
produces goes through its `deliver` callable, which returns at once, so a slow reader never stalls the
loop; the events of one request are bounded by its tokens. Cancelling, deadlines and shutdown take effect
between two steps. Everything about one running request lives in `Generation`, so that several can run
side by side once the runner holds several sequences.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence

from stratad import journal
from stratad.engine_status import EngineSettings, EngineStatus, EngineTotals, LatencyObserver
from stratad.generation import (
    DeadlineExceeded,
    Deliver,
    EngineFailure,
    Failed,
    Finished,
    FinishReason,
    Generation,
    GenerationRequest,
    InvalidRequest,
    NotAccepting,
    QueueFull,
    RequestError,
)
from stratad.prompt import common_length, require_fit, require_known_biases, tokenize_prompt
from stratad.runner import ModelRunner, Sampler, SamplingParameters

# One failed decode may be the request's own fault; after this many in a row nothing works any more.
_FAILURES_UNTIL_BROKEN = 3

# Without a measured rate yet, a refused client is sent away for this long.
_DEFAULT_RETRY_SECONDS = 5


class Ticket:
    """A submitted request, as its sender holds it."""

    def __init__(self, engine: Engine, generation: Generation) -> None:
        self._engine = engine
        self._generation = generation

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self._generation.prompt)

    def cancel(self) -> None:
        """Ends the request without another event: at once while it waits, after its current step later."""
        self._engine.cancel(self._generation)


class _Cancelled(Exception):
    """The sender has gone; nobody wants to hear about it."""


class Engine:
    """Answers requests with one `ModelRunner`. All public methods may be called from any thread."""

    def __init__(self, runner: ModelRunner, settings: EngineSettings, latency: LatencyObserver) -> None:
        self._runner = runner
        self._settings = settings
        self._latency = latency
        self._changed = threading.Condition()
        self._waiting: deque[Generation] = deque()
        self._running: Generation | None = None
        self._is_accepting = False
        self._is_closed = False
        self._failure: str | None = None
        self._failures_in_row = 0
        self._totals = EngineTotals()
        self._last_step_seconds = time.monotonic()
        # What the runner's memory holds from position 0 on; only the decode thread reads or writes it.
        self._held_tokens: list[int] = []
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
        with self._changed:
            self._is_accepting = True

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
        generation = Generation(prompt, request, deliver, self._token_limit(request))
        with self._changed:
            self._require_open()
            in_flight = len(self._waiting) + (self._running is not None)
            if in_flight > self._settings.max_queue:
                raise QueueFull(len(self._waiting), self._retry_seconds())
            if in_flight == 0:
                self._last_step_seconds = time.monotonic()
            self._waiting.append(generation)
            self._changed.notify_all()
        return Ticket(self, generation)

    def cancel(self, generation: Generation) -> None:
        """See `Ticket.cancel`."""
        with self._changed:
            generation.is_cancelled = True
            if generation in self._waiting:
                self._waiting.remove(generation)
                self._totals.finish_reasons["cancelled"] += 1
                self._changed.notify_all()

    def stop_accepting(self) -> None:
        """Refuses new requests from now on; queued and running ones go on."""
        with self._changed:
            self._is_accepting = False

    def drain(self, limit_seconds: float) -> bool:
        """Refuses new requests and waits for the others; True when all ended within the limit."""
        self.stop_accepting()
        with self._changed:
            return self._changed.wait_for(lambda: self._running is None and not self._waiting, limit_seconds)

    def close(self) -> None:
        """Ends every request that is left with `NotAccepting`, and the decode thread. May be repeated."""
        with self._changed:
            self._is_accepting = False
            self._is_closed = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join()

    def status(self) -> EngineStatus:
        """How many requests run and wait, and the totals."""
        with self._changed:
            return EngineStatus(
                running=0 if self._running is None else 1,
                waiting=len(self._waiting),
                prompt_tokens=self._totals.prompt_tokens,
                generation_tokens=self._totals.generation_tokens,
                decode_steps=self._totals.decode_steps,
                decode_seconds=self._totals.decode_seconds,
                prefill_seconds=self._totals.prefill_seconds,
                finish_reasons=tuple(sorted(self._totals.finish_reasons.items())),
                last_timings=self._totals.last_timings,
                failure=self._failure,
            )

    def stalled_seconds(self) -> float:
        """Time since the last step while a request runs or waits; 0 while the engine is idle."""
        with self._changed:
            is_idle = self._running is None and not self._waiting
            return 0.0 if is_idle else time.monotonic() - self._last_step_seconds

    def _token_limit(self, request: GenerationRequest) -> int:
        wanted = request.max_tokens if request.max_tokens is not None else self._settings.max_tokens_default
        return self._runner.context_tokens if wanted is None else wanted

    def _require_open(self) -> None:
        if self._failure is not None:
            raise EngineFailure(f"the engine has failed: {self._failure}")
        if not self._is_accepting:
            raise NotAccepting("the daemon takes no new requests: it is starting or shutting down")

    def _retry_seconds(self) -> int:
        """About how long one queued request takes, from the requests answered so far."""
        answered = sum(self._totals.finish_reasons.values())
        busy_seconds = self._totals.decode_seconds + self._totals.prefill_seconds
        return max(1, round(busy_seconds / answered)) if answered else _DEFAULT_RETRY_SECONDS

    # --- The decode thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._runner.adopt_decode_thread()
            self._answer_once()
        # Whatever it is, start() raises it on the thread that can act on it.
        except BaseException as error:
            self._start_error = error
            return
        finally:
            self._started.set()
        while (generation := self._next_generation()) is not None:
            self._serve(generation)
        self._refuse_rest()

    def _answer_once(self) -> None:
        """Decodes one real token, so that a daemon that calls itself ready has answered."""
        tokens = self._runner.vocabulary.tokenize("Hello", add_special=True, parse_special=False) or [0]
        self._runner.decode(tokens[: self._runner.batch_tokens], 0)
        token = self._runner.sample(self._runner.open_sampler(SamplingParameters(temperature=0.0)))
        if not 0 <= token < self._runner.vocabulary.token_count:
            raise EngineFailure(f"the model answered with token {token}, which does not exist")
        self._runner.truncate(0)

    def _next_generation(self) -> Generation | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            if self._is_closed:
                return None
            self._running = self._waiting.popleft()
            self._last_step_seconds = time.monotonic()
            return self._running

    def _serve(self, generation: Generation) -> None:
        """Answers one request; whatever happens, the thread goes on to the next."""
        try:
            finished = self._generate(generation)
        except _Cancelled:
            self._end(generation, "cancelled")
        except RequestError as error:
            self._end(generation, error.code, Failed(error))
        # Any exception out of the native module ends this request, not the daemon.
        except Exception as error:
            self._recover(error)
            failure = EngineFailure("the engine failed; see the daemon's log")
            self._end(generation, failure.code, Failed(failure))
        else:
            self._failures_in_row = 0
            self._end(generation, finished.reason, finished)

    def _generate(self, generation: Generation) -> Finished:
        """Prompt, then token by token, until something ends the answer."""
        sampler = self._open_sampler(generation)
        self._prefill(generation)
        while True:
            self._check(generation)
            token = self._runner.sample(sampler)
            reason = self._take_token(generation, token)
            if reason is not None:
                return Finished(reason, generation.timings())
            self._step(token)

    def _open_sampler(self, generation: Generation) -> Sampler:
        try:
            return self._runner.open_sampler(generation.request.sampling)
        except ValueError as error:
            raise InvalidRequest(str(error), "grammar") from error

    def _prefill(self, generation: Generation) -> None:
        """Computes the prompt, except the beginning that the memory still holds from the request before."""
        generation.cached_tokens = self._keep_common_prefix(generation.prompt)
        rest = generation.prompt[generation.cached_tokens :]
        for start in range(0, len(rest), self._runner.batch_tokens):
            self._check(generation)
            chunk = rest[start : start + self._runner.batch_tokens]
            seconds = self._decode(chunk)
            generation.prompt_seconds += seconds
            with self._changed:
                self._totals.prefill_seconds += seconds
                self._totals.prompt_tokens += len(chunk)
        generation.first_token_seconds = time.perf_counter()

    def _keep_common_prefix(self, prompt: tuple[int, ...]) -> int:
        """Cuts the memory to what it shares with `prompt` and returns that length.

        One token at least is left to compute: its logits give the first token of the answer.
        """
        length = common_length(self._held_tokens, prompt[:-1])
        if length < len(self._held_tokens):
            try:
                self._runner.truncate(length)
            except RuntimeError:
                # Recurrent memory cannot be cut in the middle; starting over always works.
                length = 0
                self._runner.truncate(0)
        del self._held_tokens[length:]
        return length

    def _take_token(self, generation: Generation, token: int) -> FinishReason | None:
        """Accounts for one sampled token, delivers the text it completes; the reason when it is the last."""
        now_seconds = time.perf_counter()
        generation.predicted_tokens += 1
        self._observe_token(generation, now_seconds)
        if self._runner.vocabulary.is_end_of_generation(token):
            generation.deliver_text(generation.text.finish())
            return "stop"
        generation.deliver_text(generation.text.push(self._runner.vocabulary.token_bytes(token)))
        if generation.text.is_stopped:
            return "stop"
        is_full = len(self._held_tokens) >= self._runner.context_tokens
        if generation.predicted_tokens >= generation.token_limit or is_full:
            generation.deliver_text(generation.text.finish())
            return "length"
        return None

    def _observe_token(self, generation: Generation, now_seconds: float) -> None:
        if generation.predicted_tokens == 1:
            self._latency.observe_first_token(now_seconds - generation.submitted_seconds)
        else:
            self._latency.observe_token_gap(now_seconds - generation.last_token_seconds)
        generation.last_token_seconds = now_seconds
        with self._changed:
            self._totals.generation_tokens += 1

    def _step(self, token: int) -> None:
        seconds = self._decode((token,))
        with self._changed:
            self._totals.decode_steps += 1
            self._totals.decode_seconds += seconds

    def _decode(self, tokens: Sequence[int]) -> float:
        """Computes tokens after those held; returns the seconds it took."""
        start_seconds = time.perf_counter()
        self._runner.decode(tokens, len(self._held_tokens))
        self._held_tokens.extend(tokens)
        return time.perf_counter() - start_seconds

    def _check(self, generation: Generation) -> None:
        """Notes progress, and raises when the request, or the engine, is to end before the next step.

        Requests that wait need no check of their own: the one before them came earlier and ends earlier.
        """
        with self._changed:
            self._last_step_seconds = time.monotonic()
            if generation.is_cancelled:
                raise _Cancelled
            if self._is_closed:
                raise NotAccepting("the daemon was stopped before the answer was complete")
        if self._is_late(generation):
            raise DeadlineExceeded(
                f"no complete answer within {self._settings.request_timeout_seconds:g} seconds "
                f"({generation.predicted_tokens} tokens so far)"
            )

    def _is_late(self, generation: Generation) -> bool:
        return time.perf_counter() - generation.submitted_seconds > self._settings.request_timeout_seconds

    def _end(self, generation: Generation, reason: str, event: Finished | Failed | None = None) -> None:
        """Counts the request's end, frees its place, and tells its sender last."""
        self._latency.observe_request(time.perf_counter() - generation.submitted_seconds)
        with self._changed:
            self._totals.finish_reasons[reason] += 1
            if isinstance(event, Finished):
                self._totals.last_timings = event.timings
            if self._running is generation:
                self._running = None
            self._changed.notify_all()
        if event is not None and not generation.is_cancelled:
            generation.deliver(event)

    def _recover(self, error: Exception) -> None:
        """Logs a native failure and clears the memory; marks the engine failed when that does not help."""
        journal.report_exception("engine", "decoding failed", reason=str(error), kind=type(error).__name__)
        self._failures_in_row += 1
        self._held_tokens.clear()
        failure = str(error) if self._failures_in_row >= _FAILURES_UNTIL_BROKEN else None
        try:
            self._runner.truncate(0)
        except Exception as truncate_error:
            failure = f"{error}; clearing the memory failed as well: {truncate_error}"
        if failure is not None:
            self._fail(failure)

    def _fail(self, failure: str) -> None:
        journal.report_error("engine", "failed for good; restart the daemon", reason=failure)
        with self._changed:
            self._failure = failure
        self._refuse_rest()

    def _refuse_rest(self) -> None:
        """Ends every queued request, because the engine stops or has failed."""
        while True:
            with self._changed:
                if not self._waiting:
                    return
                generation = self._waiting.popleft()
                failure = self._failure
            error: RequestError = NotAccepting("the daemon was stopped before the request's turn")
            if failure is not None:
                error = EngineFailure(f"the engine has failed: {failure}")
            self._end(generation, error.code, Failed(error))
