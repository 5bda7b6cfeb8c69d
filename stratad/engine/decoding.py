"""The decode loop: fills free slots from the queue and computes step after step for all that run.

It runs on one thread, which owns the runner. What a request produces goes through its `deliver` callable, which
returns at once, so a slow reader never stalls the loop. Cancelling, deadlines and shutdown take effect between
two steps. A call that fails with several requests in it is taken back, and each of them computed alone until it
has its next token: the one at fault ends, and the others go on.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from stratad import journal
from stratad.engine.generation import (
    ChosenToken,
    DeadlineExceeded,
    EngineFailure,
    Failed,
    Finished,
    FinishReason,
    Generation,
    InvalidRequest,
    LikelyToken,
    NotAccepting,
    RequestError,
)
from stratad.engine.prompt_keeping import LoadedPrompts, keep_prompts, restore_prompts
from stratad.engine.request_queue import RequestQueue
from stratad.engine.schedule import Call, Share, StepLimits, compose_step
from stratad.engine.seating import Seating
from stratad.engine.slots import Assignment, Slot
from stratad.engine.status import EngineSettings, EngineTotals, LatencyObserver
from stratad.runner.protocol import GrammarDeadEnd, ModelRunner, SamplingParameters, SequenceTokens

# One failed request may be at fault itself; after this many in a row nothing works any more.
_FAILURES_UNTIL_BROKEN = 3


class _Broken(Exception):
    """The native side is beyond recovery; the text says why."""


class DecodeLoop:
    """Computes the requests of one queue with one runner. Everything here belongs to the decode thread."""

    def __init__(
        self, runner: ModelRunner, requests: RequestQueue, settings: EngineSettings, latency: LatencyObserver
    ) -> None:
        self._runner = runner
        self._requests = requests
        self._timeout_seconds = settings.request_timeout_seconds
        self._on_device_failure = settings.on_device_failure
        self._latency = latency
        self._limits = StepLimits(runner.batch_tokens, settings.chunk_tokens, runner.pool_tokens)
        self._seating = Seating(runner, settings.prompt_cache_bytes)
        self._slots = self._seating.slots
        self._saved_prompts = settings.saved_prompts
        # What was found at the start; written before `answer_once` returns.
        self.loaded_prompts = LoadedPrompts()
        self._failures_in_row = 0
        self._tell_slots()

    def answer_once(self) -> None:
        """Decodes one real token, so that a daemon that calls itself ready has answered, and puts saved prompts back.

        Raises:
            EngineFailure: The model answers with a token that does not exist.
        """
        tokens = self._runner.vocabulary.tokenize("Hello", add_special=True, parse_special=False) or [0]
        self._runner.decode([SequenceTokens(0, 0, tokens[: self._runner.batch_tokens], True)])
        token = self._runner.sample(self._runner.open_sampler(SamplingParameters(temperature=0.0)), 0)
        if not 0 <= token < self._runner.vocabulary.token_count:
            raise EngineFailure(f"the model answered with token {token}, which does not exist")
        self._runner.truncate(0, 0)
        if self._saved_prompts is not None:
            self.loaded_prompts = restore_prompts(self._seating, self._runner, self._saved_prompts)
        self._note_prompt_cache()

    def run(self) -> None:
        """Answers requests until the queue is closed, and ends those that are left then."""
        while self._requests.wait_for_work():
            self._requests.note_progress()
            try:
                self._fill_slots()
                self._step()
            except _Broken as broken:
                self._give_up(str(broken))
        for slot in self._busy_slots():
            self._end(slot, NotAccepting("the daemon was stopped before the answer was complete"))
        self._requests.refuse_rest()
        # What a broken engine's memory holds, nobody knows.
        if self._saved_prompts is not None and self._requests.status().failure is None:
            keep_prompts(self._seating, self._runner, self._saved_prompts)

    # --- Requests come and go -------------------------------------------------------------------------

    def _fill_slots(self) -> None:
        """Gives free slots to those that have waited longest."""
        while any(slot.assignment is None for slot in self._slots):
            generation = self._requests.take_next()
            if generation is None:
                return
            try:
                sampler = self._runner.open_sampler(generation.request.sampling)
            except ValueError as error:
                refusal = InvalidRequest(str(error), generation.request.grammar_parameter)
                self._requests.end(generation, refusal.code, Failed(refusal))
                continue
            self._seat(Assignment(generation, sampler))

    def _seat(self, assignment: Assignment) -> None:
        """Puts a request into the slot that suits it best, with the beginning of its prompt that is there."""
        slot, match = self._seating.seat(assignment)
        try:
            cached_tokens = assignment.generation.cached_tokens = self._seating.fill(slot, match)
        # Any exception out of the native module ends this request, not the daemon.
        except Exception as error:
            self._fail(slot, error)
            return

        def add(totals: EngineTotals) -> None:
            totals.cached_tokens += cached_tokens

        self._requests.count(add)
        self._note_prompt_cache()

    def _note_prompt_cache(self) -> None:
        status = self._seating.status()

        def add(totals: EngineTotals) -> None:
            totals.prompt_cache = status

        self._requests.count(add)

    def _busy_slots(self) -> list[Slot]:
        """The slots that serve a request, in the order in which they got it."""
        busy = (slot for slot in self._slots if slot.assignment is not None)
        return sorted(busy, key=lambda slot: slot.last_use)

    def _end_those_that_are_over(self) -> None:
        """Ends cancelled requests and those past their deadline, waiting ones included."""
        for generation in self._requests.take_late(self._timeout_seconds):
            late = DeadlineExceeded(f"no place was free within {self._timeout_seconds:g} seconds")
            self._requests.end(generation, late.code, Failed(late))
        for slot in self._busy_slots():
            generation = slot.generation
            age_seconds = time.perf_counter() - generation.submitted_seconds
            if generation.is_cancelled:
                slot.assignment = None
                self._requests.end(generation, "cancelled")
            elif age_seconds > self._timeout_seconds:
                late = DeadlineExceeded(
                    f"no complete answer within {self._timeout_seconds:g} seconds "
                    f"({generation.predicted_tokens} tokens so far)"
                )
                self._end(slot, late)

    def _end(self, slot: Slot, error: RequestError) -> None:
        generation = slot.generation
        slot.assignment = None
        self._requests.end(generation, error.code, Failed(error))

    # --- A step ---------------------------------------------------------------------------------------

    def _step(self) -> None:
        """Computes the next token of every answer, and a part of the prompts."""
        self._end_those_that_are_over()
        busy = self._busy_slots()
        suspects = [slot for slot in busy if slot.is_suspect]
        needs = [Share(slot.sequence, slot.needed_tokens) for slot in busy if not slot.is_suspect]
        for call in compose_step(needs, self._limits):
            self._compute(call)
        for slot in suspects:
            count = min(slot.needed_tokens, self._limits.batch_tokens)
            self._compute((Share(slot.sequence, count),))
        self._tell_slots()

    def _tell_slots(self) -> None:
        """Shows what the slots hold and do now."""
        slot_list = tuple(slot.status() for slot in self._slots)

        def add(totals: EngineTotals) -> None:
            totals.slot_list = slot_list
            totals.held_tokens = sum(slot.held_tokens for slot in slot_list)

        self._requests.count(add)

    def _compute(self, call: Call) -> None:
        """Makes one decode call, and samples for every request whose tokens are all computed with it."""
        slots = [self._slots[share.sequence] for share in call]
        parts = [slot.next_part(share.token_count) for slot, share in zip(slots, call, strict=True)]
        start_seconds = time.perf_counter()
        try:
            self._runner.decode(parts)
        # Any exception out of the native module ends a request, not the daemon.
        except Exception as error:
            self._take_back(slots, error)
            return
        self._account(slots, parts, time.perf_counter() - start_seconds)
        for slot, part in zip(slots, parts, strict=True):
            if part.wants_logits:
                self._sample(slot)

    def _account(self, slots: Sequence[Slot], parts: Sequence[SequenceTokens], seconds: float) -> None:
        prompt_tokens = 0
        for slot, part in zip(slots, parts, strict=True):
            slot.held_tokens.extend(part.tokens)
            if part.position < len(slot.generation.prompt):
                prompt_tokens += len(part.tokens)
                slot.generation.prompt_seconds += seconds
        if prompt_tokens:
            self._seating.rates.note_computed(prompt_tokens, seconds)

        def add(totals: EngineTotals) -> None:
            totals.prompt_tokens += prompt_tokens
            if prompt_tokens:
                totals.prefill_seconds += seconds
            else:
                totals.decode_steps += 1
                totals.decode_seconds += seconds

        self._requests.count(add)

    def _sample(self, slot: Slot) -> None:
        """Takes the next token of one answer; the request ends when it is the last."""
        assert slot.assignment is not None
        generation, sampler = slot.assignment.generation, slot.assignment.sampler
        if generation.predicted_tokens == 0:
            generation.first_token_seconds = time.perf_counter()
        try:
            token = self._runner.sample(sampler, slot.sequence)
            self._note_likelihoods(slot, token)
            reason = self._take_token(generation, token)
        except GrammarDeadEnd as error:
            self._end(slot, InvalidRequest(str(error), generation.request.grammar_parameter))
            return
        # As in _compute.
        except Exception as error:
            self._fail(slot, error)
            return
        slot.is_suspect = False
        # From the second token on, prompt and answer have both been computed: the engine works.
        if generation.predicted_tokens > 1 or reason is not None:
            self._failures_in_row = 0
        if reason is not None:
            slot.assignment = None
            self._requests.end(generation, reason, Finished(reason, generation.timings()))

    def _note_likelihoods(self, slot: Slot, token: int) -> None:
        """Keeps the token's likelihood for the text it belongs to, when the request asks for it."""
        count = slot.generation.request.likelihood_count
        vocabulary = self._runner.vocabulary
        if count is None or vocabulary.is_end_of_generation(token):
            return
        chosen, *likeliest = (
            LikelyToken(vocabulary.token_bytes(one.token), one.log_probability)
            for one in self._runner.likelihoods(slot.sequence, token, count)
        )
        slot.generation.untold_tokens.append(ChosenToken(chosen, tuple(likeliest)))

    def _take_token(self, generation: Generation, token: int) -> FinishReason | None:
        """Accounts for one sampled token, delivers the text it completes; the reason when it is the last."""
        generation.tokens.append(token)
        self._observe_token(generation, time.perf_counter())
        mark = generation.marks.get(token)
        if self._runner.vocabulary.is_end_of_generation(token):
            text = generation.text.push(mark) if mark else ""
            generation.deliver_text(text + generation.text.finish())
            return "stop"
        generation.deliver_text(generation.text.push(mark or self._runner.vocabulary.token_bytes(token)))
        if generation.text.is_stopped:
            return "stop"
        is_full = len(generation.tokens) > self._runner.context_tokens
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

        def add(totals: EngineTotals) -> None:
            totals.generation_tokens += 1

        self._requests.count(add)

    # --- Failures -------------------------------------------------------------------------------------

    def _take_back(self, slots: Sequence[Slot], error: Exception) -> None:
        """After a failed call: its only request ends, or each of several is computed alone from where it was."""
        if self._runner.device_failure is not None:
            # Nothing can be computed any more, nor cut: the memory is on the device.
            raise _Broken(str(error)) from error
        if len(slots) == 1:
            self._fail(slots[0], error)
            return
        journal.warn("engine", "a step failed and is repeated one by one", reason=str(error))
        for slot in slots:
            slot.is_suspect = True
            try:
                slot.keep_beginning(len(slot.held_tokens), self._runner)
            except Exception as truncate_error:
                raise _Broken(f"{error}; clearing the memory failed as well: {truncate_error}") from error

    def _fail(self, slot: Slot, error: Exception) -> None:
        """Logs a native failure, ends the request and empties its slot.

        Raises:
            _Broken: The slot cannot be emptied, or too many requests have failed one after the other.
        """
        journal.report_exception("engine", "decoding failed", reason=str(error), kind=type(error).__name__)
        self._failures_in_row += 1
        self._end(slot, EngineFailure("the engine failed; see the daemon's log"))
        try:
            slot.keep_beginning(0, self._runner)
        except Exception as truncate_error:
            raise _Broken(f"{error}; clearing the memory failed as well: {truncate_error}") from error
        if self._runner.device_failure is not None or self._failures_in_row >= _FAILURES_UNTIL_BROKEN:
            raise _Broken(str(error))

    def _give_up(self, failure: str) -> None:
        """Ends every request: nothing can be computed any more."""
        journal.report_error("engine", "failed for good; restart the daemon", reason=failure)
        self._requests.fail(failure)
        for slot in self._busy_slots():
            self._end(slot, EngineFailure(f"the engine has failed: {failure}"))
        self._tell_slots()
        if self._runner.device_failure is not None:
            self._on_device_failure(self._runner.device_failure)
