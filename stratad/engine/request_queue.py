"""Requests from their submission to their end: who waits, who is computed, and what they add up to.

One lock guards all of it. Any thread submits, cancels and asks; the decode thread takes requests out, reports
progress and ends them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from stratad.engine.generation import (
    EngineFailure,
    Failed,
    Finished,
    Generation,
    NotAccepting,
    QueueFull,
    RequestError,
)
from stratad.engine.status import EngineStatus, EngineTotals, LatencyObserver
from stratad.engine.waiting_line import WaitingLine

# Without a measured rate yet, a refused client is sent away for this long.
_DEFAULT_RETRY_SECONDS = 5


class RequestQueue:
    """The requests of one engine. All methods are safe from any thread."""

    def __init__(self, max_queue: int, slot_count: int, latency: LatencyObserver) -> None:
        """At most `max_queue` requests wait for one of `slot_count` places."""
        self._max_queue = max_queue
        self._slot_count = slot_count
        self._latency = latency
        self._changed = threading.Condition()
        self._waiting = WaitingLine()
        self._running: list[Generation] = []
        self._is_accepting = False
        self._is_closed = False
        self._failure: str | None = None
        self._totals = EngineTotals()
        self._last_step_seconds = time.monotonic()

    # --- Any thread -----------------------------------------------------------------------------------

    def open(self) -> None:
        """Takes requests from now on."""
        with self._changed:
            self._is_accepting = True

    def submit(self, generation: Generation) -> None:
        """Queues a request. A full queue has room for a client with fewer waiting than another, which loses its last.

        Raises:
            QueueFull: Too many are waiting.
            NotAccepting: The queue is not open yet, or not any more.
            EngineFailure: The engine is broken.
        """
        with self._changed:
            self._require_open()
            in_flight = len(self._waiting) + len(self._running)
            crowded_out = None
            if in_flight >= self._slot_count + self._max_queue:
                refusal = QueueFull(len(self._waiting), self._retry_seconds())
                crowded_out = self._waiting.take_from_largest(generation.request.client)
                if crowded_out is None:
                    raise refusal
                self._totals.finish_reasons[refusal.code] += 1
            if in_flight == 0:
                self._last_step_seconds = time.monotonic()
            self._waiting.add(generation)
            self._changed.notify_all()
        if crowded_out is not None:
            crowded_out.deliver(Failed(refusal))

    def cancel(self, generation: Generation) -> None:
        """Ends a waiting request at once; a running one after its current step."""
        with self._changed:
            generation.is_cancelled = True
            if self._waiting.remove(generation):
                self._totals.finish_reasons["cancelled"] += 1
                self._changed.notify_all()

    def stop_accepting(self) -> None:
        """Refuses new requests from now on; queued and running ones go on."""
        with self._changed:
            self._is_accepting = False

    def wait_until_empty(self, limit_seconds: float) -> bool:
        """True as soon as no request waits or runs, False after the limit."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._running and not self._waiting, limit_seconds)

    def close(self) -> None:
        """Wakes the decode thread for its end; running requests are to end before their next step."""
        with self._changed:
            self._is_accepting = False
            self._is_closed = True
            self._changed.notify_all()

    @property
    def is_closed(self) -> bool:
        """Whether every request is to end now."""
        with self._changed:
            return self._is_closed

    def status(self) -> EngineStatus:
        """How many requests run and wait, and the totals."""
        with self._changed:
            return EngineStatus(
                running=len(self._running),
                waiting=len(self._waiting),
                slots=self._slot_count,
                held_tokens=self._totals.held_tokens,
                prompt_tokens=self._totals.prompt_tokens,
                cached_tokens=self._totals.cached_tokens,
                generation_tokens=self._totals.generation_tokens,
                decode_steps=self._totals.decode_steps,
                decode_seconds=self._totals.decode_seconds,
                prefill_seconds=self._totals.prefill_seconds,
                finish_reasons=tuple(sorted(self._totals.finish_reasons.items())),
                last_timings=self._totals.last_timings,
                failure=self._failure,
                slot_list=self._totals.slot_list,
                prompt_cache=self._totals.prompt_cache,
            )

    def stalled_seconds(self) -> float:
        """Time since the last step while a request runs or waits; 0 while there is none."""
        with self._changed:
            is_idle = not self._running and not self._waiting
            return 0.0 if is_idle else time.monotonic() - self._last_step_seconds

    def _require_open(self) -> None:
        if self._failure is not None:
            raise EngineFailure(f"the engine has failed: {self._failure}")
        if not self._is_accepting:
            raise NotAccepting("the daemon takes no new requests: it is starting or shutting down")

    def _retry_seconds(self) -> int:
        """About how long one request takes until its place is free, from the requests answered so far."""
        # Those that were crowded out of the queue never had a place.
        answered = self._totals.finish_reasons.total() - self._totals.finish_reasons[QueueFull.code]
        busy_seconds = self._totals.decode_seconds + self._totals.prefill_seconds
        return max(1, round(busy_seconds / answered)) if answered else _DEFAULT_RETRY_SECONDS

    # --- The decode thread ----------------------------------------------------------------------------

    def wait_for_work(self) -> bool:
        """Waits until a request waits or runs; False once the queue is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._running or self._is_closed)
            return not self._is_closed

    def take_next(self) -> Generation | None:
        """The request whose turn it is, which runs from now on; None when none waits."""
        with self._changed:
            generation = self._waiting.take_next(self._running)
            if generation is not None:
                self._running.append(generation)
            return generation

    def take_late(self, timeout_seconds: float) -> list[Generation]:
        """Those that have waited longer than this, which count as running until they are ended."""
        now_seconds = time.perf_counter()
        with self._changed:
            late = [one for one in self._waiting if now_seconds - one.submitted_seconds > timeout_seconds]
            for generation in late:
                self._waiting.remove(generation)
            self._running += late
        return late

    def note_progress(self) -> None:
        """The engine is about to make its next step."""
        with self._changed:
            self._last_step_seconds = time.monotonic()

    def count(self, add: Callable[[EngineTotals], None]) -> None:
        """Has `add` change the totals, under the lock."""
        with self._changed:
            add(self._totals)

    def end(self, generation: Generation, reason: str, event: Finished | Failed | None = None) -> None:
        """Counts a running request's end, frees its place, and tells its sender last."""
        self._latency.observe_request(time.perf_counter() - generation.submitted_seconds)
        with self._changed:
            self._totals.finish_reasons[reason] += 1
            if isinstance(event, Finished):
                self._totals.last_timings = event.timings
            if generation in self._running:
                self._running.remove(generation)
            self._changed.notify_all()
        if event is not None and not generation.is_cancelled:
            generation.deliver(event)

    def fail(self, failure: str) -> None:
        """No request can be answered any more; ends those that wait."""
        with self._changed:
            self._failure = failure
        self.refuse_rest()

    def refuse_rest(self) -> None:
        """Ends every queued request, because the engine stops or has failed."""
        while (generation := self.take_next()) is not None:
            error: RequestError = NotAccepting("the daemon was stopped before the request's turn")
            if (failure := self.status().failure) is not None:
                error = EngineFailure(f"the engine has failed: {failure}")
            self.end(generation, error.code, Failed(error))
