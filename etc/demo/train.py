#!/usr/bin/env python3
"""Train the demo model from nothing and write `demo-moe.gguf` beside this script.

    python -m venv demo-venv && demo-venv/bin/pip install -r etc/demo/requirements.txt
    demo-venv/bin/python etc/demo/train.py

A run that is cut short continues from its last checkpoint when started again. The same seed
draws the same batches whether or not a run was cut. `docs/DEMO_MODEL.md` has the numbers.
"""

from __future__ import annotations

import argparse
import logging
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy
import torch
from check import check_export, held_out_loss
from corpus import load_chapters
from export import write_gguf
from model import LanguageModel, Shape
from torch import Tensor
from torch.nn import functional
from vocabulary import encode_chapters, load_or_train_tokenizer, vocabulary_of

log = logging.getLogger("train")


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that decides the result, besides the shape and the text."""

    seed: int = 1813
    step_count: int = 1100
    tokens_per_step: int = 4096
    # Short windows are cheaper, so most steps use them. The last steps see the whole
    # context length, which the file then states without extrapolating.
    short_window: int = 256
    long_window_share: float = 0.2
    # Muon for the matrices inside the layers, AdamW for the rest. The rates come from
    # pilot runs of 200 steps, see docs/DEMO_MODEL.md.
    matrix_rate: float = 1.5e-2
    other_rate: float = 1e-2
    weight_decay: float = 0.1
    warmup_steps: int = 50
    # The rate stays level for this share of the steps, then falls to zero in a line.
    level_share: float = 0.6
    dropout: float = 0.05
    # Small: enough that all experts are used, too little to cost held-out loss.
    balance_weight: float = 0.01
    gradient_limit: float = 1.0

    def window(self, step: int, context_length: int) -> int:
        """Give the length in tokens of the sequences in this step."""
        is_long = step >= self.step_count * (1 - self.long_window_share)
        return context_length if is_long else self.short_window

    def rate_factor(self, step: int) -> float:
        """Give the share of the full learning rate that this step uses."""
        warmup = (step + 1) / self.warmup_steps
        decay = (self.step_count - step) / (self.step_count * (1 - self.level_share))
        return min(1.0, warmup, decay)


def main() -> None:
    arguments = parse_arguments()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    torch.set_num_threads(arguments.threads)
    shape, recipe = Shape(), Recipe(step_count=arguments.steps, **dict(arguments.set))
    arguments.work.mkdir(parents=True, exist_ok=True)

    training, held_out = load_chapters(arguments.work)
    tokenizer = load_or_train_tokenizer(arguments.work / "tokenizer.json", training, shape.token_count)
    training_ids = encode_chapters(tokenizer, training)
    held_out_ids = encode_chapters(tokenizer, held_out)
    held_out_bytes = sum(len(chapter.encode()) for chapter in held_out)
    log.info("%d training tokens, %d held out", len(training_ids), len(held_out_ids))

    model = train(shape, recipe, training_ids, held_out_ids, arguments.work)
    write_gguf(arguments.output, model, vocabulary_of(tokenizer))
    log.info("wrote %s, %d bytes", arguments.output, arguments.output.stat().st_size)
    check_export(arguments.output, model, held_out_ids, held_out_bytes)


def parse_arguments() -> argparse.Namespace:
    here = Path(__file__).resolve().parent
    default_work = Path.home() / ".cache" / "stratad-demo-model"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=here / "demo-moe.gguf")
    parser.add_argument("--work", type=Path, default=default_work, help="text and checkpoints")
    parser.add_argument("--steps", type=int, default=Recipe().step_count)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--set",
        type=parse_setting,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="another value for a number of the recipe, for experiments",
    )
    return parser.parse_args()


def parse_setting(text: str) -> tuple[str, int | float]:
    """Give (name, value) of one `--set`."""
    name, _, value = text.partition("=")
    return name, int(value) if value.isdigit() else float(value)


def train(
    shape: Shape,
    recipe: Recipe,
    training_ids: numpy.ndarray,
    held_out_ids: numpy.ndarray,
    work: Path,
) -> LanguageModel:
    """Train to the recipe's last step, from the checkpoint in `work` when there is one."""
    torch.manual_seed(recipe.seed)
    model = LanguageModel(shape, recipe.dropout)
    optimizers = make_optimizers(model, recipe)
    checkpoint = work / "checkpoint.pt"
    first_step = load_checkpoint(checkpoint, model, optimizers, recipe)
    started, recent_loss = time.monotonic(), 0.0
    for step in range(first_step, recipe.step_count):
        loss = take_step(model, optimizers, recipe, training_ids, step)
        recent_loss = loss if step == first_step else 0.95 * recent_loss + 0.05 * loss
        done = step + 1
        if done % 50 == 0:
            step_seconds = (time.monotonic() - started) / (done - first_step)
            log.info(
                "step %d/%d loss %.3f, %.0f tokens/s, %.1f minutes left",
                done,
                recipe.step_count,
                recent_loss,
                recipe.tokens_per_step / step_seconds,
                step_seconds * (recipe.step_count - done) / 60,
            )
        if done % 100 == 0 or done == recipe.step_count:
            save_checkpoint(checkpoint, model, optimizers, recipe, done)
        if done % 500 == 0:
            log.info("held-out loss %.4f", held_out_loss(model, held_out_ids, recipe.short_window))
    return model.eval()


def make_optimizers(model: LanguageModel, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the matrices that map one hidden state to another, AdamW for the rest.

    The router is left to AdamW: Muon gives all directions of a matrix the same weight, and
    a router that turns that quickly keeps moving tokens between experts.
    """
    matrices: list[torch.nn.Parameter] = []
    others: list[torch.nn.Parameter] = []
    for name, parameter in model.named_parameters():
        is_hidden = parameter.ndim == 2 and "embedding" not in name and "router" not in name
        (matrices if is_hidden else others).append(parameter)
    return [
        torch.optim.Muon(
            matrices,
            lr=recipe.matrix_rate,
            weight_decay=recipe.weight_decay,
            adjust_lr_fn="match_rms_adamw",
        ),
        torch.optim.AdamW(others, lr=recipe.other_rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def take_step(
    model: LanguageModel,
    optimizers: list[torch.optim.Optimizer],
    recipe: Recipe,
    training_ids: numpy.ndarray,
    step: int,
) -> float:
    """Update the weights once and give the batch's loss per token."""
    # Batch and dropout depend on the step alone, so that a continued run is the same run.
    torch.manual_seed(recipe.seed + step)
    window = recipe.window(step, model.shape.context_length)
    batch = draw_batch(training_ids, recipe, step, window)
    for optimizer, rate in zip(optimizers, (recipe.matrix_rate, recipe.other_rate), strict=True):
        optimizer.zero_grad()
        for group in optimizer.param_groups:
            group["lr"] = rate * recipe.rate_factor(step)
    model.train()
    logits, imbalance = model(batch[:, :-1])
    loss = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
    (loss + recipe.balance_weight * imbalance).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.gradient_limit)
    for optimizer in optimizers:
        optimizer.step()
    return loss.item()


def draw_batch(training_ids: numpy.ndarray, recipe: Recipe, step: int, window: int) -> Tensor:
    """Give (sequence, window + 1) token ids from random places in the training text."""
    random = numpy.random.default_rng((recipe.seed, step))
    starts = random.integers(0, len(training_ids) - window, recipe.tokens_per_step // window)
    return torch.from_numpy(numpy.stack([training_ids[s : s + window + 1] for s in starts]))


def save_checkpoint(
    path: Path,
    model: LanguageModel,
    optimizers: list[torch.optim.Optimizer],
    recipe: Recipe,
    steps_done: int,
) -> None:
    """Write the run's state, in such a way that a cut leaves the older file whole."""
    state = {
        "recipe": asdict(recipe),
        "shape": asdict(model.shape),
        "steps_done": steps_done,
        "model": model.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
    }
    unfinished = path.with_suffix(".unfinished")
    torch.save(state, unfinished)
    unfinished.replace(path)


def load_checkpoint(
    path: Path,
    model: LanguageModel,
    optimizers: list[torch.optim.Optimizer],
    recipe: Recipe,
) -> int:
    """Restore the state kept at `path` and give the steps done; 0 when there is none.

    Raises:
        SystemExit: The checkpoint belongs to another recipe or shape.
    """
    if not path.is_file():
        return 0
    state = torch.load(path, weights_only=True)
    if (state["recipe"], state["shape"]) != (asdict(recipe), asdict(model.shape)):
        raise SystemExit(f"{path} is from another recipe or shape: move it away to start anew")
    model.load_state_dict(state["model"])
    for optimizer, optimizer_state in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(optimizer_state)
    log.info("continuing after step %d", state["steps_done"])
    return int(state["steps_done"])


if __name__ == "__main__":
    main()
