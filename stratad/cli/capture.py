"""`stratactl capture`: this machine as one small archive that `--root` plans for, with nothing personal in it."""

from __future__ import annotations

from pathlib import Path

import click

from planner import TopologyUnreadable
from planner.discover import topology_of
from planner.sysfs import Tree
from stratad.cli.output import json_option, print_json
from stratad.cli.parameters import LIVE_ROOT
from stratad.doctor.reading import read_settings
from stratad.errors import StratadError
from stratad.machine.archive import Recording, archive_bytes, cleaned, machine_members


@click.command()
@click.argument("archive", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--root",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=LIVE_ROOT,
    help="Capture the machine under this directory instead of the live one.",
)
@json_option
def capture(archive: Path, root: Path, as_json: bool) -> None:
    """Write what a plan depends on of this machine to ARCHIVE, a compressed tar of small text files.

    Nothing personal is kept: no host name, no mounts but cgroups, no process but this one's CPU and memory
    masks, no serial numbers; names of cgroups are replaced. Plan for it with --root ARCHIVE.
    """
    recording = Recording(Tree(root))
    try:
        topology = topology_of(recording, str(root))
    except TopologyUnreadable as error:
        raise StratadError(
            tried=f"capturing the machine under {root}",
            because="neither /sys nor /proc there names a CPU",
            values={"root": root},
            remedy="run it on a Linux machine with /sys mounted",
            summary="there is no machine to capture",
        ) from error
    # What the doctor asks of kernel and hardware; nothing of processes, units or logs.
    read_settings(recording, topology)
    machine = cleaned(recording)
    content = archive_bytes(machine)
    try:
        archive.write_bytes(content)
    except OSError as error:
        raise StratadError(
            tried=f"writing {archive}",
            because=str(error),
            values={"path": archive},
            remedy="give a path in a directory you may write to",
            summary="the capture cannot be written",
        ) from error
    file_count = len(machine_members(machine))
    if as_json:
        print_json({"archive": str(archive), "files": file_count, "size_bytes": len(content)})
    else:
        click.echo(f"captured {file_count} files in {len(content)} bytes: {archive}")
        click.echo(f"plan for it with: stratactl plan --root {archive} --model FILE.gguf")
