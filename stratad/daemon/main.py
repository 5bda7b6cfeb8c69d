"""The command `stratad`: arguments in, exit status out. Errors become exit statuses here and nowhere else."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import click

from stratad import journal
from stratad.config import (
    Configuration,
    Environment,
    ModelSection,
    ServerSection,
    load_configuration,
    read_environment,
)
from stratad.errors import ModelFileError, StratadError, render_error

DEFAULT_CONFIGURATION_PATH = Path("/etc/stratad/stratad.toml")

_DEMO_MODEL = Path("demo") / "demo-moe.gguf"
# What the demo model was trained for.
_DEMO_CONTEXT_TOKENS = 1024


@click.group(invoke_without_command=True)
@click.option(
    "--config",
    "configuration_path",
    type=click.Path(path_type=Path),
    default=DEFAULT_CONFIGURATION_PATH,
    show_default=True,
    help="Configuration file.",
)
@click.pass_context
def main(context: click.Context, configuration_path: Path) -> None:
    """Serve a mixture-of-experts model from host RAM, with its pages placed and verified."""
    if context.invoked_subcommand is None:
        _run(lambda: load_configuration(configuration_path))


@main.command()
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port; any free one by default.")
def demo(port: int) -> None:
    """Serve the embedded demo model with built-in settings."""
    _run(lambda: demo_configuration(port))


def demo_configuration(port: int) -> Configuration:
    """The built-in configuration of the demo on `port` (0: any free one).

    Raises:
        ModelFileError: The demo model is not where this installation should have it.
    """
    # The model's products are too small to share: on two busy CPUs one thread of ggml's decoded 2,200 tokens
    # a second, and two, which spin at every barrier, decoded 6.
    model = ModelSection(path=demo_model_path(), name="demo", context_tokens=_DEMO_CONTEXT_TOKENS, threads=1)
    return Configuration(model=model, server=ServerSection(port=port))


def demo_model_path() -> Path:
    """The demo model's file: in the checkout this module runs from, or in the installation's share folder.

    Raises:
        ModelFileError: It is in neither place.
    """
    places = (Path(__file__).parents[2] / "etc", Path(sys.prefix) / "share" / "stratad")
    for place in places:
        if (place / _DEMO_MODEL).is_file():
            return place / _DEMO_MODEL
    raise ModelFileError(
        tried="finding the demo model",
        because=f"it lies in none of {', '.join(str(place / _DEMO_MODEL) for place in places)}",
        remedy="run the demo from a complete checkout, or serve a model of your own with --config",
    )


def _run(configure: Callable[[], Configuration]) -> None:
    environment = read_environment()
    is_journal = journal.is_journal_stream(environment.journal_stream, sys.stderr.fileno())
    journal.open_journal(sys.stderr, is_journal=is_journal)
    try:
        _serve(configure, environment)
    except StratadError as error:
        journal.report_block(render_error(error))
        sys.exit(error.exit_status)


def _serve(configure: Callable[[], Configuration], environment: Environment) -> None:
    configuration = configure()
    # The native module and numpy take their time; a wrong setting is told before.
    from stratad.daemon.startup import run_daemon

    run_daemon(configuration, environment, configure)
