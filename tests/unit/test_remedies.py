"""Every command that a reason, an error or the documentation tells people to run: it exists, with these options."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from planner import REASON_CODES
from stratad.cli.main import COMMANDS, stratactl

ROOT = Path(__file__).resolve().parents[2]
# In a sentence, between backquotes; `...` stands for arguments of the reader's own. Blocks: tests/docs.
_COMMAND = re.compile(r"`(?:sudo )?stratactl ([^`\n]+)`")
# What stands for a value in a sentence, and a value of that kind.
_VALUES = {"SIZE": "1GiB", "NODE": "0", "CODE": "close-call", "N": "2"}


def texts_of(path: Path) -> Iterator[str]:
    """Every text in a Python file; the gaps of an f-string hold a number, which fits most options."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "2" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def commands_in_code() -> dict[str, str]:
    """Command lines by where they stand, from all texts of our packages and the table of reasons."""
    found = {}
    for folder in ("planner", "stratad"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for text in texts_of(path):
                for match in _COMMAND.finditer(text):
                    found[match[1].strip()] = str(path.relative_to(ROOT))
    return found


def commands_in_documents() -> dict[str, str]:
    found = {}
    for path in sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")]):
        text = path.read_text(encoding="utf-8")
        for match in _COMMAND.finditer(text):
            found[match[1].strip()] = str(path.relative_to(ROOT))
    return found


def parse(line: str, folder: Path) -> None:
    """Runs the line through click's parser, without running the command. Raises click's own errors."""
    # What follows a pipe is another program's.
    words = [word for word in line.partition("|")[0].split() if word not in {"...", "\u2026"}]
    group: click.Command = stratactl
    while words and words[0].startswith("-"):
        # Options of the whole, as in `stratactl --debug ...`.
        option = words.pop(0)
        known = {name for parameter in group.params for name in parameter.opts} | {"--help", "-h"}
        assert option in known, option
    if not words:
        return
    name = words.pop(0)
    assert name in COMMANDS, f"stratactl {name} is no command"
    command = stratactl.get_command(click.Context(stratactl), name)
    assert command is not None
    values = [value_of(word, folder) for word in words]
    try:
        command.make_context(name, values)
    except click.exceptions.Exit:
        # --help ends the parsing, as it should.
        return
    except click.MissingParameter:
        # "run `stratactl explain`" means: with an argument of yours. What stands there was understood.
        return


def value_of(word: str, folder: Path) -> str:
    """The word, or for a stand-in something real: paths must exist for some options."""
    if word in _VALUES:
        return _VALUES[word]
    if word in {"DIR", "DIRECTORY"}:
        return str(folder)
    is_path = word.isupper() or "/" in word or word.endswith((".gguf", ".toml", ".json", ".xz", ".tar"))
    return str(folder / "file") if is_path and not word.startswith("-") else word


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("")
    return tmp_path


@pytest.mark.parametrize(("line", "place"), sorted(commands_in_code().items()))
def test_a_command_in_a_remedy_exists_with_its_options(line: str, place: str, folder: Path) -> None:
    parse(line, folder)


@pytest.mark.parametrize(("line", "place"), sorted(commands_in_documents().items()))
def test_a_command_in_the_documents_exists_with_its_options(line: str, place: str, folder: Path) -> None:
    parse(line, folder)


def test_remedies_do_name_the_commands_that_measure() -> None:
    """The search finds what it is for, in the table of reasons and in sentences built with numbers."""
    lines = commands_in_code()
    assert {"tune", "bench", "apply"} <= {line.split()[0] for line in lines if line}
    in_table = {match[1] for code in REASON_CODES.values() for match in _COMMAND.finditer(code.action)}
    assert {line.split()[0] for line in in_table} >= {"tune", "bench"}
    assert in_table <= set(lines)


@pytest.mark.parametrize(
    "line", ["tune --no-such-option", "bench --seconds x", "plan --policy mirror", "dance"]
)
def test_the_parser_does_refuse(line: str, folder: Path) -> None:
    with pytest.raises((click.UsageError, AssertionError)):
        parse(line, folder)
