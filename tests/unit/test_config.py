"""The configuration file: what is accepted, and what an error says about what is not."""

from __future__ import annotations

import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from stratad.config import Configuration, load_configuration, parse_configuration, read_environment
from stratad.errors import ConfigurationError, render_error

EXAMPLE = Path(__file__).parents[2] / "etc" / "stratad.toml"


def _load(tmp_path: Path, text: str) -> Configuration:
    path = tmp_path / "stratad.toml"
    path.write_text(text, encoding="utf-8")
    return load_configuration(path)


def _refusal(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigurationError) as refused:
        _load(tmp_path, text)
    assert refused.value.exit_status == 2
    assert refused.value.remedy
    return render_error(refused.value)


def test_only_the_model_path_is_needed(tmp_path: Path) -> None:
    configuration = _load(tmp_path, '[model]\npath = "/models/a.gguf"\n')
    assert configuration.model.path == Path("/models/a.gguf")
    assert configuration.model.context_tokens == 4096
    assert configuration.placement.limit_ratio == 0.95
    assert configuration.placement.max_pool_tokens is None
    assert (configuration.server.host, configuration.server.port) == ("127.0.0.1", 8090)


def test_a_relative_model_path_counts_from_the_files_folder(tmp_path: Path) -> None:
    assert _load(tmp_path, '[model]\npath = "a.gguf"\n').model.path == tmp_path / "a.gguf"


def test_every_kind_of_value_is_read(tmp_path: Path) -> None:
    configuration = _load(
        tmp_path,
        '[model]\npath = "a"\nname = "m"\nthreads = 3\n'
        '[placement]\npolicy = "split"\nlimit_ratio = 1\nlock_memory = false\ntest_slices = 2\n'
        '[server]\nport = 0\nunix_socket = "/x/y"\nallowed_hosts = ["a", "b"]\ndrain_seconds = 1.5\n',
    )
    assert (configuration.model.name, configuration.model.threads) == ("m", 3)
    assert (configuration.placement.policy, configuration.placement.limit_ratio) == ("split", 1.0)
    assert configuration.placement.lock_memory is False
    assert configuration.server.unix_socket == Path("/x/y")
    assert configuration.server.allowed_hosts == ("a", "b")


@pytest.mark.parametrize(
    ("line", "key", "nearest"),
    [
        ("[model]\npath='a'\nbatch_token=1", "model.batch_token", "did you mean model.batch_tokens?"),
        ("[model]\npath='a'\nport=1", "model.port", "did you mean server.port?"),
        ("[model]\npth='a'", "model.pth", "did you mean model.path?"),
        ("[sever]\nport=1", "sever", "did you mean server?"),
        ("[model]\npath='a'\n[placement]\nzzzz=1", "placement.zzzz", "known there: placement.fallback"),
    ],
)
def test_an_unknown_key_names_the_nearest_known_one(
    tmp_path: Path, line: str, key: str, nearest: str
) -> None:
    message = _refusal(tmp_path, line)
    assert f"reading {key} in {tmp_path / 'stratad.toml'}" in message
    assert nearest in message


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("[model]\npath = 3", ["model.path=3", "string"]),
        ("[model]\npath='a'\ncontext_tokens='4096'", ['model.context_tokens="4096"', "integer"]),
        ("[model]\npath='a'\ncontext_tokens=4096.5", ["model.context_tokens=4096.5", "integer"]),
        ("[model]\npath='a'\n[placement]\npolicy='spilt'", ["'split'", '"spilt"']),
        ("[model]\npath='a'\n[placement]\nlock_memory='yes'", ["placement.lock_memory", '"auto"']),
        (
            "[model]\npath='a'\n[placement]\nlimit_ratio=1.01",
            ["placement.limit_ratio=1.01", "less than or equal to 1"],
        ),
        ("[model]\npath='a'\n[server]\nport=65536", ["server.port=65536", "65535"]),
        ("[model]\npath='a'\n[server]\nallowed_hosts=['a', 3]", ["server.allowed_hosts=3", "string"]),
        ("[model]\npath=2026-01-01\n[server]\nport='x'", ["server.port"]),
        ("model = 3", ["reading model in", "object"]),
        ("[server]\nport = 1", ["reading model in", "missing"]),
    ],
)
def test_a_wrong_value_says_what_was_expected_and_what_stands_there(
    tmp_path: Path, line: str, parts: list[str]
) -> None:
    message = _refusal(tmp_path, line)
    for part in parts:
        assert part in message


def test_wrong_toml_is_named_by_line_and_column(tmp_path: Path) -> None:
    assert "line 2, column 8" in _refusal(tmp_path, "[model]\npath = \n")


def test_a_missing_file_and_a_file_that_is_not_text_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file"):
        load_configuration(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match="utf-8"):
        load_configuration(tmp_path / "binary.toml")


def test_the_example_is_valid_and_shows_every_key_with_its_default() -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    shipped = load_configuration(EXAMPLE)
    # "# key = value" is a commented setting; "# words" a comment.
    uncommented = "\n".join(_uncomment(line) for line in text.splitlines())
    document = tomllib.loads(uncommented)
    shown = {f"{section}.{key}" for section, keys in document.items() for key in keys}
    known = {
        f"{section.name}.{key.name}"
        for section in fields(Configuration)
        for key in fields(getattr(shipped, section.name))
    }
    assert shown == known
    everything = parse_configuration(document, EXAMPLE)
    # Keys without a default show an example value instead.
    for key in known - {
        "gpu.backend_path",
        "gpu.devices",
        "gpu.layers",
        "model.name",
        "model.prompt_cache_bytes",
        "model.threads",
        "placement.max_pool_tokens",
        "placement.panel_tokens",
        "placement.tile_tokens",
        "placement.workers",
        "placement.test_slices",
        "server.unix_socket",
        "server.allowed_hosts",
        "server.api_keys_file",
        "server.max_tokens_default",
        "server.runtime_directory",
        "server.state_directory",
    }:
        section, name = key.split(".")
        assert getattr(getattr(everything, section), name) == getattr(getattr(shipped, section), name), key


def _uncomment(line: str) -> str:
    rest = line.removeprefix("# ")
    return rest if line.startswith("# ") and rest.partition(" = ")[0].isidentifier() else line


def test_the_environment_is_read_as_systemd_sets_it() -> None:
    environment = read_environment(
        {
            "NOTIFY_SOCKET": "/run/notify",
            "WATCHDOG_USEC": "30000000",
            "WATCHDOG_PID": "7",
            "JOURNAL_STREAM": "8:12345",
            "RUNTIME_DIRECTORY": "/run/stratad:/run/other",
            "CREDENTIALS_DIRECTORY": "/run/credentials/stratad.service",
        },
        process_id=7,
    )
    assert environment.notify_socket == "/run/notify"
    assert environment.watchdog_microseconds == 30_000_000
    assert environment.journal_stream == "8:12345"
    assert environment.runtime_directory == Path("/run/stratad")
    assert environment.credentials_directory == Path("/run/credentials/stratad.service")


def test_an_empty_environment_says_nothing_and_a_watchdog_for_another_process_is_not_ours() -> None:
    empty = read_environment({}, process_id=7)
    assert (empty.notify_socket, empty.watchdog_microseconds, empty.runtime_directory) == (None, None, None)
    assert empty.journal_stream is None
    other = read_environment({"WATCHDOG_USEC": "1000", "WATCHDOG_PID": "8"}, process_id=7)
    assert other.watchdog_microseconds is None
    assert read_environment({"WATCHDOG_USEC": "soon"}, process_id=7).watchdog_microseconds is None
