"""`stratactl`: the command line. The root imports click only; a command's module is imported when it runs.

Exit status: 0 fine, 1 failed, 2 usage or configuration, 3 nothing suitable, 4 placement below the limit.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import click


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """Where a command lives, and the line `stratactl --help` shows without importing it."""

    module: str
    attribute: str
    summary: str


COMMANDS: Mapping[str, CommandEntry] = {
    "topology": CommandEntry(
        "stratad.cli.topology", "topology", "Show the machine: nodes, CPUs, memory, GPUs."
    ),
    "plan": CommandEntry("stratad.cli.plan", "plan", "Plan placement for a model, and say why."),
    "explain": CommandEntry("stratad.cli.explain", "explain", "Tell what a reason means and what to do."),
    "capture": CommandEntry(
        "stratad.cli.capture", "capture", "Write this machine down as one small archive."
    ),
    "apply": CommandEntry("stratad.cli.apply", "apply", "Write the plan into the service's drop-in."),
    "revert": CommandEntry("stratad.cli.revert", "revert", "Take back what apply wrote."),
    "reserve": CommandEntry("stratad.cli.reserve", "reserve", "Keep other services off the plan's CPUs."),
    "release": CommandEntry("stratad.cli.reserve", "release", "Give other services every CPU back."),
    "install-units": CommandEntry(
        "stratad.cli.install_units", "install_units", "Install the unit files for this installation."
    ),
    "status": CommandEntry("stratad.cli.status", "status", "Show what the running daemon does."),
    "watch": CommandEntry("stratad.cli.watch", "watch", "Watch the running daemon live."),
    "chat": CommandEntry("stratad.cli.chat", "chat", "Ask the model, once or in a conversation."),
    "drain": CommandEntry("stratad.cli.drain", "drain", "End running requests, then stop the daemon."),
    "verify": CommandEntry("stratad.cli.verify", "verify", "Check where the running daemon's pages lie."),
    "doctor": CommandEntry(
        "stratad.cli.doctor", "doctor", "Look for what stands in the way, and say what to do."
    ),
    "bench": CommandEntry("stratad.cli.bench", "bench", "Measure this machine for the planner."),
    "tune": CommandEntry("stratad.cli.tune", "tune", "Judge policies end to end on your model."),
}


class LazyGroup(click.Group):
    """A group that imports a command's module only when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Give the names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Give the command, or None for an unknown name."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        try:
            command = getattr(importlib.import_module(entry.module), entry.attribute)
        except ModuleNotFoundError as error:
            # Another missing module is a fault inside the command and must not be renamed.
            if error.name != entry.module:
                raise
            raise click.ClickException(f"{cmd_name} is not part of this installation") from error
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands from the table, without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="Show the traceback of a fault in stratactl itself.")
@click.version_option(package_name="stratad", prog_name="stratactl")
def stratactl(debug: bool) -> None:
    """Plan, explain and verify where stratad places a model."""


def main() -> None:
    """Run `stratactl` with the process's arguments and exit."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line and give its exit status. No traceback leaves here.

    A reader that goes away (`stratactl ... | head`) ends the process with status 1, by click and in silence.
    """
    try:
        status = stratactl.main(args=list(arguments), prog_name="stratactl", standalone_mode=False)
        return status if isinstance(status, int) else 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        click.echo("aborted", err=True)
        return 130
    # The one place where everything must end in a message.
    except Exception as error:
        return _report(error, arguments)


def _report(error: Exception, arguments: Sequence[str]) -> int:
    # Imported late: a command line that works needs neither.
    from stratad.cli.output import error_document, print_error, print_json
    from stratad.errors import StratadError

    if "--debug" in arguments:
        import traceback

        click.echo("".join(traceback.format_exception(error)), err=True, nl=False)
    if not isinstance(error, StratadError):
        error = StratadError(
            tried="running this command",
            because=f"{type(error).__name__}: {error}",
            remedy="run it again as `stratactl --debug ...` and report what it shows",
            summary="stratactl met a fault it did not expect",
        )
    if "--json" in arguments:
        # Who asked for a document gets one, whatever happened.
        print_json(error_document(error))
    else:
        print_error(error)
    return error.exit_status


if __name__ == "__main__":
    main()
