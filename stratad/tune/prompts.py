"""What the arms are asked: the same prompts with the same greedy answers, so that all of them compute the same."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stratad.errors import ConfigurationError

SEPARATOR = "---"
DEFAULT_ANSWER_TOKENS = 96
MOST_PROMPTS = 64

# Thrown away: pages are touched, caches filled, and its beginning is no other prompt's.
WARM_UP = "Before anything else is measured, the first request of a fresh start warms the machine up."

_BUILT_IN = (
    "In the harbour of the old town three ships lay side by side. The first had come from the north with timber, "
    "the second from the south with oil and figs, and the third carried nothing that anybody could name. Its captain "
    "went ashore every evening, sat down at the same table, and told the same story to whoever would listen. It began",
    "A recipe for bread asks for flour, water, salt and time. Of these, time is the one that most kitchens lack, and "
    "the one that nothing can replace. The dough is mixed in the evening, folded twice before midnight, and left in "
    "a cold room until morning. What happens in it meanwhile can be described as follows:",
    "The committee met on a Tuesday to decide about the bridge. Half of its members wanted a new one, of steel, two "
    "hundred metres upstream; the others wanted the stone bridge repaired, which would take longer and cost about as "
    "much. The engineer, who had been asked to say nothing until the end, stood up and said that",
)


@dataclass(frozen=True, slots=True)
class Questions:
    """The prompts of one trial, each answered greedily with up to so many tokens."""

    prompts: tuple[str, ...] = _BUILT_IN
    answer_tokens: int = DEFAULT_ANSWER_TOKENS


def read_questions(path: Path | None, answer_tokens: int) -> Questions:
    """Give the prompts of a file, separated by lines of three dashes; the built-in ones without a file.

    Raises:
        ConfigurationError: The file cannot be read, or holds no prompt, too many, or one twice.
    """
    if path is None:
        return Questions(answer_tokens=answer_tokens)
    tried = f"reading prompts from {path}"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        because = getattr(error, "strerror", None) or str(error)
        raise ConfigurationError(tried, because, remedy="name a readable text file") from error
    prompts = tuple(part for part in map(str.strip, _parts(text)) if part)
    remedy = f"write one prompt or more, with a line {SEPARATOR} between two"
    if not prompts or len(prompts) > MOST_PROMPTS:
        values = {"prompts": len(prompts), "most": MOST_PROMPTS}
        raise ConfigurationError(tried, "that is no number of prompts to measure with", values, remedy)
    if len(set(prompts)) < len(prompts):
        # The second would be answered out of the first one's memory.
        raise ConfigurationError(tried, "a prompt stands there twice", remedy="write each once")
    return Questions(prompts, answer_tokens)


def _parts(text: str) -> list[str]:
    parts = [""]
    for line in text.splitlines(keepends=True):
        if line.strip() == SEPARATOR:
            parts.append("")
        else:
            parts[-1] += line
    return parts
