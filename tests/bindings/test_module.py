"""The native module from Python: errors, lifetimes, the GIL, state, samplers and models in several files."""

from __future__ import annotations

import errno
import gc
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader, GGUFValueType, GGUFWriter

from stratad import _native as native
from tests.support import gguf_models
from tests.support.native import all_logits, load_placed, load_plain, make_pool

PROMPT = (5, 99, 200, 7)


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_models.write_model(tmp_path_factory.mktemp("models") / "model.gguf", vocabulary="bytes")


@pytest.fixture(scope="module")
def model(model_path: Path) -> native.Model:
    return load_placed(model_path, make_pool(2, 2))


def split_in_two(path: Path, folder: Path) -> list[Path]:
    """The model's tensors over two files, the way llama.cpp splits them."""
    reader = GGUFReader(path)
    parts = [folder / f"part-0000{index + 1}-of-00002.gguf" for index in range(2)]
    for index, part in enumerate(parts):
        writer = GGUFWriter(part, "qwen3moe")
        for field in reader.fields.values() if index == 0 else ():
            if field.name.startswith("GGUF.") or field.name == "general.architecture":
                continue
            kind = field.types[0]
            item = field.types[-1] if kind is GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), kind, item)
        writer.add_uint16("split.no", index)
        writer.add_uint16("split.count", 2)
        writer.add_int32("split.tensors.count", len(reader.tensors))
        for tensor in reader.tensors[index::2]:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return parts


def test_a_model_in_two_files_gives_the_logits_of_the_whole_one(model_path: Path, tmp_path: Path) -> None:
    parts = split_in_two(model_path, tmp_path)
    split = native.Model.load([str(part) for part in parts], make_pool(2, 3))
    assert np.array_equal(all_logits(split, PROMPT, (1,)), all_logits(load_plain(model_path), PROMPT, (1,)))


def test_tensors_have_their_own_names_again_after_loading(model_path: Path, model: native.Model) -> None:
    """While loading they go by another name; a second model from the same file must find them all the same."""
    again = load_placed(model_path, make_pool(1, 1))
    assert np.array_equal(all_logits(again, PROMPT, ()), all_logits(model, PROMPT, ()))


def test_a_truncated_file_is_refused_with_the_tensor_and_the_sizes(model_path: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(model_path.read_bytes()[:-100_000])
    with pytest.raises(
        ValueError, match=r"cut\.gguf is truncated: tensor .* ends at byte \d+, the file has \d+"
    ):
        load_placed(cut, make_pool(1, 1))


def test_a_missing_file_is_an_oserror_with_its_errno(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"absent\.gguf") as caught:
        load_placed(tmp_path / "absent.gguf", make_pool(1, 1))
    assert caught.value.errno == errno.ENOENT


def test_an_unknown_architecture_is_refused_in_llama_cpps_words(tmp_path: Path) -> None:
    path = tmp_path / "odd.gguf"
    writer = GGUFWriter(path, "no-such-architecture")
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(native.ModelLoadError, match="no-such-architecture"):
        load_placed(path, make_pool(1, 1))


def test_loading_shows_its_stages_and_stops_when_told_to(model_path: Path) -> None:
    seen: list[tuple[str, float]] = []

    def watch(stage: str, fraction: float) -> bool:
        seen.append((stage, fraction))
        return True

    native.Model.load([str(model_path)], make_pool(2, 2), progress=watch)
    assert {stage for stage, _ in seen} >= {"loading weights", "placing pages", "loading experts"}
    assert all(0.0 <= fraction <= 1.0 for _, fraction in seen)
    for stop_at in ("loading weights", "placing pages", "loading experts"):
        with pytest.raises(native.LoadCancelled):
            native.Model.load(
                [str(model_path)], make_pool(1, 1), progress=lambda stage, _, stop=stop_at: stage != stop
            )


def test_an_exception_in_the_progress_callback_comes_out_of_load(model_path: Path) -> None:
    def fail(stage: str, fraction: float) -> bool:
        raise KeyError(stage)

    with pytest.raises(KeyError, match="loading weights"):
        native.Model.load([str(model_path)], make_pool(1, 1), progress=fail)
    load_placed(model_path, make_pool(1, 1))  # and the next load works


def test_a_worker_on_a_cpu_that_is_not_there_is_an_oserror() -> None:
    with pytest.raises(OSError, match="CPU 8000") as caught:
        native.Pool([native.SliceSeat()], [native.WorkerSeat(None), native.WorkerSeat(8000)])
    assert caught.value.errno == errno.EINVAL


@pytest.mark.parametrize(
    ("slices", "workers"),
    [
        ([], [native.WorkerSeat()]),
        ([native.SliceSeat()], []),
        ([native.SliceSeat()], [native.WorkerSeat(None, 1)]),
        ([native.SliceSeat(weight=0)], [native.WorkerSeat()]),
    ],
)
def test_a_layout_that_does_not_hold_is_a_valueerror(
    slices: list[native.SliceSeat], workers: list[native.WorkerSeat]
) -> None:
    with pytest.raises(ValueError, match=r"slice|worker"):
        native.Pool(slices, workers)


def test_a_context_outlives_the_name_of_its_model(model_path: Path) -> None:
    model = load_placed(model_path, make_pool(2, 1))
    expected = all_logits(model, PROMPT, ())
    context = native.Context(model, context_tokens=64, batch_tokens=16)
    arena = model.arenas[0]
    del model
    gc.collect()
    batch = native.Batch()
    for position, token in enumerate(PROMPT):
        batch.add(token, position, 0, True)
    context.decode(batch)
    assert np.array_equal(context.logits(-1), expected[-1])
    del context
    gc.collect()
    assert (arena.sample_placement(0, 8) >= 0).all()


LONG_CONTEXT = 2048


def long_decode(model: native.Model) -> tuple[native.Context, native.Batch]:
    """A prompt that takes long enough for another thread to get its turn many times."""
    context = native.Context(model, context_tokens=LONG_CONTEXT, batch_tokens=LONG_CONTEXT)
    batch = native.Batch()
    for position in range(LONG_CONTEXT - 1):
        batch.add(position % 300, position, 0, position == LONG_CONTEXT - 2)
    return context, batch


def test_other_python_threads_run_while_a_batch_is_decoded(model: native.Model) -> None:
    context, batch = long_decode(model)
    decoding = threading.Thread(target=context.decode, args=(batch,))
    turns = 0
    decoding.start()
    while decoding.is_alive():
        turns += 1
        time.sleep(0)
    assert turns > 50


def test_a_decode_can_be_aborted_from_another_thread(model: native.Model) -> None:
    context, batch = long_decode(model)
    statuses: list[int] = []

    def decode() -> None:
        try:
            context.decode(batch)
            statuses.append(0)
        except native.DecodeError as error:
            statuses.append(error.status)

    decoding = threading.Thread(target=decode)
    decoding.start()
    while decoding.is_alive():
        context.abort()
    assert statuses == [2]
    context.forget(0)
    batch.clear()
    batch.add(1, 0, 0, True)
    context.decode(batch)  # the next one runs to its end


def test_a_batch_that_does_not_fit_is_refused_before_decoding(model: native.Model) -> None:
    context = native.Context(model, context_tokens=64, batch_tokens=4)
    batch = native.Batch()
    with pytest.raises(ValueError, match="empty"):
        context.decode(batch)
    for position in range(5):
        batch.add(1, position)
    with pytest.raises(ValueError, match="batch_tokens = 4"):
        context.decode(batch)
    with pytest.raises(ValueError, match="no logits"):
        context.logits(0)


def test_tokens_beyond_the_context_are_a_decode_error(model: native.Model) -> None:
    context = native.Context(model, context_tokens=256, batch_tokens=512)
    batch = native.Batch()
    for position in range(200):
        batch.add(1, position)
    context.decode(batch)
    with pytest.raises(native.DecodeError) as caught:
        context.decode(shifted(200))
    assert caught.value.status == 1


def shifted(position: int) -> native.Batch:
    batch = native.Batch()
    for offset in range(100):
        batch.add(1, position + offset)
    return batch


@pytest.mark.parametrize(
    ("token", "position", "sequence"), [(99999, 0, 0), (-1, 0, 0), (1, 0, 5), (1, 0, -1)]
)
def test_tokens_and_sequences_out_of_range_are_a_decode_error(
    model: native.Model, token: int, position: int, sequence: int
) -> None:
    context = native.Context(model, context_tokens=256)
    batch = native.Batch()
    batch.add(token, position, sequence, True)
    with pytest.raises(native.DecodeError) as caught:
        context.decode(batch)
    assert caught.value.status == -1


def test_a_context_counts_its_calls_tokens_and_seconds(model: native.Model) -> None:
    context = decoded(model)
    batch = native.Batch()
    batch.add(1, len(PROMPT), 0, True)
    before = context.counters.seconds
    context.decode(batch)
    counters = context.counters
    assert (counters.calls, counters.tokens) == (2, len(PROMPT) + 1)
    assert counters.seconds > before > 0.0


def test_a_saved_sequence_goes_on_where_it_was(model: native.Model) -> None:
    first, second = (native.Context(model, context_tokens=64, batch_tokens=16) for _ in range(2))
    batch = native.Batch()
    for position, token in enumerate(PROMPT):
        batch.add(token, position, 0, True)
    first.decode(batch)
    state = bytearray(first.state_bytes(0))
    first.save_state(0, state)
    second.restore_state(0, state)
    rows = []
    for context in (first, second):
        batch.clear()
        batch.add(42, len(PROMPT), 0, True)
        context.decode(batch)
        rows.append(context.logits(-1))
    assert np.array_equal(rows[0], rows[1])
    with pytest.raises(ValueError, match="fit"):
        first.save_state(0, bytearray(len(state) - 1))
    for damaged in (b"nonsense", bytes(state[:-1]), bytes(state) + b"more"):
        with pytest.raises(ValueError, match="state"):
            second.restore_state(0, damaged)
        # Nothing of it is left: the sequence begins anew.
        assert (second.first_cut(0), second.cut(0, 0)) == (0, True)
        assert second.state_bytes(0) < 100


def decoded(model: native.Model) -> native.Context:
    context = native.Context(model, context_tokens=64, batch_tokens=16)
    batch = native.Batch()
    for position, token in enumerate(PROMPT):
        batch.add(token, position, 0, position == len(PROMPT) - 1)
    context.decode(batch)
    return context


def test_temperature_zero_takes_the_likeliest_token(model: native.Model) -> None:
    context = decoded(model)
    assert native.Sampler(model, temperature=0.0).sample(context) == int(np.argmax(context.logits(-1)))


def test_one_seed_gives_one_sequence_of_choices(model: native.Model) -> None:
    context = decoded(model)

    def draws(seed: int) -> list[int]:
        sampler = native.Sampler(model, temperature=2.0, top_k=0, top_p=1.0, min_p=0.0, seed=seed)
        return [sampler.sample(context) for _ in range(12)]

    assert draws(7) == draws(7)
    assert draws(7) != draws(8)


def test_top_k_and_logit_bias_limit_the_choice(model: native.Model) -> None:
    context = decoded(model)
    likeliest = int(np.argmax(context.logits(-1)))
    assert native.Sampler(model, temperature=5.0, top_k=1, seed=3).sample(context) == likeliest
    forbidden = native.Sampler(model, temperature=0.0, logit_bias=[(likeliest, -100.0)])
    assert forbidden.sample(context) != likeliest
    with pytest.raises(ValueError, match="logit_bias names token 99999"):
        native.Sampler(model, logit_bias=[(99999, 1.0)])


def test_a_repeat_penalty_turns_away_from_what_was_said(model: native.Model) -> None:
    context = decoded(model)
    plain = native.Sampler(model, temperature=0.0)
    penalised = native.Sampler(model, temperature=0.0, presence_penalty=100.0)
    assert plain.sample(context) == plain.sample(context)
    assert len({penalised.sample(context) for _ in range(5)}) == 5


def test_a_grammar_allows_nothing_else(model: native.Model) -> None:
    context = decoded(model)
    sampler = native.Sampler(
        model, temperature=1.0, seed=1, grammar=native.Grammar('root ::= ("y" | "n") "!"')
    )
    said = b"".join(model.token_bytes(sampler.sample(context)) for _ in range(2))
    assert said in (b"y!", b"n!")
    with pytest.raises(ValueError, match="grammar"):
        native.Sampler(model, grammar=native.Grammar("root ::= ("))


def test_text_survives_the_way_through_tokens(model: native.Model) -> None:
    text = "Straße, 数, 🙂 the"
    tokens = model.tokenize(text, add_special=False, parse_special=False)
    assert b"".join(model.token_bytes(token) for token in tokens).decode() == text
    assert model.tokenize("", add_special=False, parse_special=False) == []
    assert model.is_end_of_generation(model.eos_token)
    assert not model.is_end_of_generation(tokens[0])


def test_slices_share_the_arena_and_every_page_has_a_node(model: native.Model) -> None:
    (arena,) = model.arenas
    assert arena.slice_count == 2
    sizes = [arena.slice_bytes(index) for index in range(2)]
    assert sum(sizes) <= arena.size_bytes
    assert min(sizes) > 0.4 * max(sizes)
    for index in range(2):
        assert (arena.sample_placement(index, 64) >= 0).all()


def worker_states() -> list[str]:
    """The scheduler's state letter of every pool worker of this process."""
    states = []
    for task in Path("/proc/self/task").iterdir():
        name, fields = (task / "stat").read_text().split("(", 1)[1].rsplit(")", 1)
        if name.startswith("stratad-w"):
            states.append(fields.split()[0])
    return states


IDLE_CHECK = """
import sys, time
from pathlib import Path
from tests.bindings.test_module import worker_states
from tests.support.native import all_logits, load_placed, make_pool
pool = make_pool(4, 2)
model = load_placed(Path(sys.argv[1]), pool)
all_logits(model, [1, 2, 3], [4])
deadline = time.monotonic() + 30
while worker_states() != ["S"] * 3:
    if time.monotonic() > deadline:
        sys.exit(f"workers still run: {worker_states()}")
"""


def test_idle_workers_sleep(model_path: Path) -> None:
    outcome = subprocess.run(
        [sys.executable, "-c", IDLE_CHECK, str(model_path)], check=False, capture_output=True
    )
    assert outcome.returncode == 0, outcome.stderr.decode()


def test_this_process_may_place_memory_or_is_told_which_call_is_refused() -> None:
    for failure in native.probe_memory_policy():
        assert failure.call in {"get_mempolicy", "set_mempolicy", "mbind", "move_pages"}
        assert os.strerror(failure.error_number)


@pytest.mark.parametrize(("slice_count", "expected"), [(1, True), (2, False)])
def test_huge_pages_are_asked_for_only_where_one_slice_owns_all(
    model_path: Path, slice_count: int, expected: bool
) -> None:
    place = native.PlaceOptions(allow_huge_pages=True, huge_page_bytes=1 << 40)
    before = _huge_page_mappings()
    loaded = native.Model.load([str(model_path)], make_pool(slice_count, slice_count), place=place)
    assert loaded.arenas[0].size_bytes >= 2 << 20, "smaller than one huge page"
    assert (_huge_page_mappings() > before) == expected


def _huge_page_mappings() -> int:
    """Mappings of this process with the flag that MADV_HUGEPAGE sets (proc(5), VmFlags "hg")."""
    flags = re.findall(r"^VmFlags:(.*)$", Path("/proc/self/smaps").read_text(), re.MULTILINE)
    return sum("hg" in line.split() for line in flags)


def test_the_read_rate_of_an_arena_is_a_rate(model: native.Model) -> None:
    assert native.measure_read_rate(model.arenas[0], make_pool(2, 2)) > 0


def fill(context: native.Context, sequence: int, tokens: list[int], *, position: int = 0) -> np.ndarray:
    """Computes tokens one by one, as an answer is, and gives the last one's logits."""
    batch = native.Batch()
    for offset, token in enumerate(tokens):
        batch.clear()
        batch.add(token, position + offset, sequence, True)
        context.decode(batch)
    return context.logits(-1)


def test_a_sequence_that_was_cut_goes_on_as_if_it_had_ended_there(model: native.Model) -> None:
    context = native.Context(model, context_tokens=512, batch_tokens=16, sequence_count=2)
    straight = fill(context, 0, [*PROMPT, 42])
    fill(context, 1, [*PROMPT, 7, 8, 9])
    assert context.cut(1, len(PROMPT))
    assert np.array_equal(fill(context, 1, [42], position=len(PROMPT)), straight)
    assert context.cut(1, len(PROMPT) + 1), "nothing stands there: nothing to cut"
    assert not context.cut(1, len(PROMPT) + 2), "a gap would come before it"
    assert context.cut(1, 0)
    assert np.array_equal(fill(context, 1, [*PROMPT, 42]), straight)


def test_every_sequence_of_a_batch_has_its_own_logits_and_choice(model: native.Model) -> None:
    context = native.Context(model, context_tokens=768, batch_tokens=16, sequence_count=3)
    alone = [fill(context, sequence, [5 + sequence, 6]) for sequence in range(3)]
    for sequence in range(3):
        assert context.cut(sequence, 1)
    batch = native.Batch()
    for sequence in range(3):
        batch.add(6, 1, sequence, True)
    context.decode(batch)
    sampler = native.Sampler(model, temperature=0.0)
    for sequence in range(3):
        # ggml multiplies several rows at once in another order than one: the last bits may differ.
        logits = context.logits(sequence)
        assert (
            np.abs(logits - alone[sequence]).max()
            < 1e-2 * np.abs(alone[sequence] - alone[sequence - 1]).max()
        )
        assert sampler.sample(context, sequence) == int(np.argmax(logits))


@pytest.mark.parametrize(("family", "window"), [("qwen3moe", None), ("gpt-oss", 128)])
def test_a_cut_before_which_something_is_missing_is_refused(
    family: str, window: int | None, tmp_path: Path
) -> None:
    model = load_plain(gguf_models.write_model(tmp_path / "model.gguf", family))
    context = native.Context(model, context_tokens=256, batch_tokens=240)
    batch = native.Batch()
    for position in range(240):
        batch.add((7 * position + 3) % 300, position)
    context.decode(batch)
    # As a window leaves it that has moved on: the positions from 100 on are there.
    assert context.forget(0, 0, 100)
    if window is None:
        assert not context.cut(0, 239)
        return
    # The token at p reads from p - window + 1 on.
    assert not context.cut(0, 100 + window - 2)
    assert context.cut(0, 100 + window - 1)
