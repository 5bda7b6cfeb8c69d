"""Every command that the documents show: run against a live daemon on the demo model, or parsed and the reason told.

A shell block is marked by the comment before it:

    <!-- block: runs -->             run in the file's session folder; every command must end well
    <!-- block: daemon -->           the same, and its last command is the daemon, which stays until the file's end
    <!-- block: parse, REASON -->    syntax, programs and options are checked; REASON says where it is run, or why
                                     not

The session folder looks like a checkout: etc/, .venv/ and a my.toml for the demo model. What is run differs from what
is shown in three places: the reader's model is the demo's, the port is any free one (tests run side by side), and the
small model gets one thread.
"""

from __future__ import annotations

import http
import os
import re
import shlex
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import pytest

from stratad.cli.main import COMMANDS, stratactl
from stratad.daemon.main import main as stratad
from stratad.state.runtime_directory import read_running
from tests.docs.markdown import REPOSITORY, SHELL_LANGUAGES, Block, blocks, documents, prose
from tests.serving.support.served import wait_until

LIMIT_SECONDS = 240
SHELL_BLOCKS = [block for path in documents() for block in blocks(path) if block.language in SHELL_LANGUAGES]
FILES_TO_RUN = sorted({block.path for block in SHELL_BLOCKS if block.kind in ("runs", "daemon")})
SHOWN_ADDRESS = "127.0.0.1:8090"
SHOWN_MODEL, DEMO_MODEL = "/models/model.gguf", "etc/demo/demo-moe.gguf"
# The doctor's findings are the machine's: an error among them is a sound end of the command.
PRELUDE = """
set -eo pipefail
stratactl() { command stratactl "$@" || { local status=$?; [ "$1" = doctor ] && [ $status -eq 1 ]; }; }
"""


def test_every_shell_block_says_how_it_is_tested() -> None:
    unmarked = [block.name for block in SHELL_BLOCKS if block.kind not in ("runs", "daemon", "parse")]
    assert not unmarked, f"put a mark before them (see {Path(__file__).name}): {unmarked}"
    unexplained = [block.name for block in SHELL_BLOCKS if block.kind == "parse" and not block.reason]
    assert not unexplained, f"say why they are only parsed: {unexplained}"


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_commands_stand_in_marked_blocks_only(path: Path) -> None:
    """Indented lines and blocks without a language would escape the tests."""
    command = r"(?:\$ |sudo |make |curl |git |pip |python3? |(?:\.venv/bin/)?strata(?:d|ctl) )"
    assert not re.findall(rf"^ {{4,}}{command}.*$", prose(path), re.MULTILINE)
    for block in blocks(path):
        if block.language not in SHELL_LANGUAGES:
            assert not re.search(rf"^{command}", block.text, re.MULTILINE), block.name


@pytest.mark.parametrize("block", SHELL_BLOCKS, ids=lambda block: block.name)
def test_a_shown_command_exists_with_its_options(block: Block) -> None:
    checked = subprocess.run(["bash", "-n"], input=block.text, text=True, capture_output=True, check=False)
    assert checked.returncode == 0, checked.stderr
    for words in commands(block.text):
        check_words(words)


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_options_and_targets_named_in_passing_exist(path: Path) -> None:
    spans = re.findall(r"`((?:sudo )?(?:make|stratactl|stratad) [^`\n]+)`", prose(path))
    for words in (words for span in spans for words in commands(span) if words):
        is_known = (
            words[0] != "stratactl" or len(words) < 2 or words[1].startswith("-") or words[1] in COMMANDS
        )
        if is_known and "..." not in words:
            check_words(words)


def commands(text: str) -> Iterator[list[str]]:
    """The simple commands of a script as words, without redirections, `sudo` and variables set before them."""
    joined = text.replace("\\\n", " ")
    for line in joined.splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="();<>|&")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if set(word) <= set(";|&()"):
                if words:
                    yield plain(words)
                words = []
            else:
                words.append(word)


def plain(words: list[str]) -> list[str]:
    while words and (words[0] in ("sudo", "time", "env") or re.match(r"\w+=", words[0])):
        words = words[1:]
    for index, word in enumerate(words):
        if set(word) <= set("<>"):
            return words[:index]
    return words


def check_words(words: list[str]) -> None:
    if not words:
        return
    program = Path(words[0]).name
    if program == "make":
        targets = re.search(r"^\.PHONY: (.+)$", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
        assert targets is not None
        for word in words[1:]:
            assert "=" in word or word.startswith("-") or word in targets[1].split(), f"no target {word}"
    elif program in ("stratactl", "stratad"):
        check_options(stratactl if program == "stratactl" else stratad, words[1:])
    elif words[0].startswith(("packaging/", "etc/", "tests/")):
        assert (REPOSITORY / words[0]).exists(), words[0]


def check_options(group: click.Command, words: list[str]) -> None:
    """Parse with the command's own parser; types and files are the caller's matter."""
    context = click.Context(group, info_name=group.name)
    _, rest, _ = group.make_parser(context).parse_args(list(words))
    assert isinstance(group, click.Group)
    if rest:
        command = group.get_command(context, rest[0])
        assert command is not None, f"no command {rest[0]}"
        command.make_parser(click.Context(command, parent=context)).parse_args(rest[1:])


def test_an_unknown_command_option_or_target_is_found() -> None:
    for wrong in (
        "stratactl plam",
        "sudo stratactl plan --modell x",
        "make tests",
        "stratactl status; stratad --cfg x",
    ):
        with pytest.raises((AssertionError, click.UsageError)):
            for words in commands(wrong):
                check_words(words)


@pytest.mark.parametrize("path", FILES_TO_RUN, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_the_shown_commands_run(path: Path, tmp_path: Path) -> None:
    shown = "".join(block.text for block in blocks(path) if block.kind in ("runs", "daemon"))
    if "curl " in shown and shutil.which("curl") is None:
        pytest.skip("curl is not installed: the commands of this page were not run")
    session = session_folder(tmp_path / "session")
    with daemons() as running:
        for block in blocks(path):
            if block.language not in SHELL_LANGUAGES or block.kind not in ("runs", "daemon"):
                continue
            text = block.text
            if block.kind == "daemon":
                *first, last = [line for line in text.splitlines() if line.strip()]
                run_script("\n".join(first), session, block)
                running.append(start_daemon(last, session, block))
            else:
                run_script(text, session, block)


def session_folder(folder: Path) -> Path:
    """A folder that looks like a checkout after `make setup`."""
    (folder / ".venv").mkdir(parents=True)
    (folder / "user").mkdir(mode=0o700)
    (folder / ".venv" / "bin").symlink_to(Path(sys.executable).parent)
    shutil.copytree(REPOSITORY / "etc", folder / "etc")
    (folder / "my.toml").write_text(
        '[model]\npath = "etc/demo/demo-moe.gguf"\nthreads = 1\n[server]\nport = 0\n'
    )
    return folder


def environment(session: Path) -> dict[str, str]:
    search = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("RUNTIME_DIRECTORY", "NOTIFY_SOCKET")
    }
    return {**kept, "PATH": search, "XDG_RUNTIME_DIR": str(session / "user"), "NO_COLOR": "1"}


def run_script(text: str, session: Path, block: Block) -> None:
    running = read_running(session / "user" / "stratad")
    text = text.replace(SHOWN_MODEL, DEMO_MODEL)
    if running is not None:
        text = text.replace(SHOWN_ADDRESS, running.endpoint.removeprefix("http://"))
    done = subprocess.run(
        ["bash"],
        input=PRELUDE + text,
        text=True,
        cwd=session,
        env=environment(session),
        capture_output=True,
        check=False,
        timeout=LIMIT_SECONDS,
    )
    assert done.returncode == 0, f"{block.name}:\n{text}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


def start_daemon(line: str, session: Path, block: Block) -> subprocess.Popen[bytes]:
    """Start the block's last command as it is shown; only the port of its configuration is any free one."""
    words = shlex.split(line, comments=True)
    assert Path(words[0]).name == "stratad", f"{block.name}: the last command is the daemon"
    configuration = session / words[words.index("--config") + 1]
    text = configuration.read_text()
    for key, value in (("port", 0), ("threads", 1)):
        text, count = re.subn(rf"^(?:# )?{key} = \d+$", f"{key} = {value}", text, count=1, flags=re.MULTILINE)
        assert count == 1, key
    configuration.write_text(text)
    log = (session / "log").open("wb")
    with log:
        child = subprocess.Popen(
            words, cwd=session, env=environment(session), stderr=log, stdin=subprocess.DEVNULL
        )

    def is_ready() -> bool:
        assert child.poll() is None, (session / "log").read_text()
        running = read_running(session / "user" / "stratad")
        return running is not None and is_healthy(running.endpoint)

    wait_until(is_ready)
    return child


def is_healthy(endpoint: str) -> bool:
    try:
        with urllib.request.urlopen(f"{endpoint}/health", timeout=10) as response:
            return bool(response.status == http.HTTPStatus.OK)
    except OSError:
        return False


@contextmanager
def daemons() -> Iterator[list[subprocess.Popen[bytes]]]:
    """A list of children that are stopped at the end."""
    running: list[subprocess.Popen[bytes]] = []
    try:
        yield running
    finally:
        for child in running:
            child.terminate()
        for child in running:
            assert child.wait(LIMIT_SECONDS) == 0
