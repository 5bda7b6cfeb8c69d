"""Captured machines: the few files of /sys and /proc a plan depends on, in one archive with nothing personal.

A capture records what the topology reader asks for while it reads the live machine, so it holds exactly what a
plan needs and a new question of the reader is captured without a list to keep.
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from planner.sysfs import LARGEST_FILE_BYTES, MachineFiles
from stratad.errors import StratadError

# A captured machine of 1024 CPUs has about 6,000 small files.
MOST_MEMBERS = 200_000
MOST_BYTES = 256 * 1024 * 1024
# Names of cgroups that say nothing of their owner. Others may hold user names and container ids.
PLAIN_GROUPS = frozenset({"system.slice", "user.slice", "init.scope", "stratad.slice", "machine.slice"})
MOUNT_FILES = ("/proc/mounts", "/proc/self/mounts")
# Where the reader looks when no mount is listed.
USUAL_MOUNTS = ("/sys/fs/cgroup", "/sys/fs/cgroup/cpuset", "/sys/fs/cgroup/memory")
PROCESSOR_FIELDS = (
    "processor|vendor_id|cpu family|model|model name|stepping|physical id|core id|siblings|cpu cores"
)
_FIELD = re.compile(rf"(?:{PROCESSOR_FIELDS})\s*:")


@dataclass(slots=True)
class Recording:
    """A view of a machine that keeps what was asked: texts, link targets, names that exist and empty folders."""

    source: MachineFiles
    texts: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)

    def text(self, path: str) -> str | None:
        """Give a file's text and keep it."""
        found = self.source.text(path)
        if found is not None:
            self.texts[path] = found
        return found

    def names(self, path: str) -> tuple[str, ...] | None:
        """Give the names in a directory and keep all of them: which CPUs there are may rest on the names alone."""
        found = self.source.names(path)
        if found is not None:
            self.folders.update((path, *(f"{path}/{name}" for name in found)))
        return found

    def has(self, path: str) -> bool:
        """Say whether the path exists and keep it as a folder when it does."""
        found = self.source.has(path)
        if found:
            self.folders.add(path)
        return found

    def link_name(self, path: str) -> str | None:
        """Give the last part of a link's target and keep it."""
        found = self.source.link_name(path)
        if found is not None:
            self.links[path] = found
        return found


class ArchivedMachine:
    """The files of a captured machine, held in memory; a `MachineFiles`."""

    def __init__(self, texts: Mapping[str, str], links: Mapping[str, str], folders: frozenset[str]) -> None:
        self._texts = dict(texts)
        self._links = dict(links)
        self._children: dict[str, set[str]] = {path: set() for path in folders}
        for path in (*self._texts, *self._links, *folders):
            parts = path.split("/")
            for count in range(1, len(parts)):
                self._children.setdefault("/".join(parts[:count]), set()).add(parts[count])

    def text(self, path: str) -> str | None:
        """Give a file's text, or None when the capture has none."""
        found = self._texts.get(path)
        return None if found is None else found.strip()

    def names(self, path: str) -> tuple[str, ...] | None:
        """Give the sorted names in a directory, or None when there is no such directory."""
        return tuple(sorted(self._children[path])) if path in self._children else None

    def has(self, path: str) -> bool:
        """Say whether the capture has this path."""
        return path in self._texts or path in self._children

    def link_name(self, path: str) -> str | None:
        """Give the last part of a link's target, or None."""
        return self._links.get(path)


def cleaned(recording: Recording) -> ArchivedMachine:
    """Give what was recorded without what tells of the owner: mounts, group names, serial numbers, kernel builds."""
    names = _GroupNames(_cgroup_mounts(recording))
    texts = {names.path(path): _cleaned_text(path, text, names) for path, text in recording.texts.items()}
    # A name that was listed and then read is a file or a link; one that was only listed stays an empty folder.
    folders = frozenset(
        names.path(path)
        for path in recording.folders
        if path not in recording.texts and path not in recording.links
    )
    return ArchivedMachine(texts, recording.links, folders)


def archive_bytes(machine: ArchivedMachine) -> bytes:
    """Give the machine as a compressed tar; the same machine gives the same bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:xz", preset=6) as archive:
        for path, content in sorted(machine_members(machine).items()):
            archive.addfile(*_member(path, content))
    return buffer.getvalue()


def machine_members(machine: ArchivedMachine) -> dict[str, str | PurePosixPath | None]:
    """Give every member by path: text for a file, a path for a link, None for an empty folder."""
    members: dict[str, str | PurePosixPath | None] = dict(machine._texts)
    members |= {path: PurePosixPath("..", name) for path, name in machine._links.items()}
    empty = [path for path, names in machine._children.items() if not names and path not in members]
    return members | dict.fromkeys(empty)


def _member(path: str, content: str | PurePosixPath | None) -> tuple[tarfile.TarInfo, io.BytesIO | None]:
    # Owner, group and times stay at their zeros: they are nobody's business and would change the bytes.
    entry = tarfile.TarInfo(path.lstrip("/"))
    entry.mode = 0o644
    if content is None:
        entry.type, entry.mode = tarfile.DIRTYPE, 0o755
        return entry, None
    if isinstance(content, PurePosixPath):
        entry.type, entry.linkname = tarfile.SYMTYPE, str(content)
        return entry, None
    encoded = (content.rstrip("\n") + "\n").encode()
    entry.size = len(encoded)
    return entry, io.BytesIO(encoded)


def read_archive(path: Path) -> ArchivedMachine:
    """Give the machine of an archive; nothing is unpacked to a disk.

    Raises:
        StratadError: When the file is no archive, is damaged, or is larger than any machine.
    """
    texts: dict[str, str] = {}
    links: dict[str, str] = {}
    folders: set[str] = set()
    total_bytes = 0
    try:
        with tarfile.open(path) as archive:
            for count, entry in enumerate(archive):
                name = "/" + entry.name.removeprefix("./").strip("/")
                total_bytes += entry.size
                if count >= MOST_MEMBERS or entry.size > LARGEST_FILE_BYTES or total_bytes > MOST_BYTES:
                    raise _unreadable(path, "it is larger than any captured machine")
                if entry.issym():
                    links[name] = PurePosixPath(entry.linkname).name
                elif entry.isdir():
                    folders.add(name)
                elif entry.isreg() and (content := archive.extractfile(entry)) is not None:
                    texts[name] = content.read().decode("utf-8", errors="replace").strip("\x00")
    except (OSError, EOFError, tarfile.TarError) as error:
        raise _unreadable(path, str(error)) from error
    return ArchivedMachine(texts, links, frozenset(folders))


def _unreadable(path: Path, because: str) -> StratadError:
    return StratadError(
        tried=f"reading the captured machine {path}",
        because=because,
        values={"path": path},
        remedy="give an archive that `stratactl capture` wrote, or a directory with its sys/ and proc/",
        summary="the machine cannot be read",
    )


def _cgroup_mounts(recording: Recording) -> tuple[str, ...]:
    lines = (line.split() for name in MOUNT_FILES for line in recording.texts.get(name, "").splitlines())
    listed = {fields[1].rstrip("/") for fields in lines if _is_cgroup_mount(fields)}
    return tuple(sorted(listed)) or USUAL_MOUNTS


def _is_cgroup_mount(fields: list[str]) -> bool:
    return len(fields) > 2 and fields[2] in ("cgroup", "cgroup2", "cpuset")


class _GroupNames:
    """Renames cgroups that may tell of their owner, the same name the same way wherever it stands."""

    def __init__(self, mounts: tuple[str, ...]) -> None:
        # The innermost mount first: version 1 mounts its controllers below the common directory.
        self._mounts = sorted(mounts, key=lambda mount: (-len(mount), mount))
        self._new_names: dict[str, str] = {}

    def path(self, path: str) -> str:
        """Give a file's path with the groups between a cgroup mount and the file renamed."""
        mount = next((mount for mount in self._mounts if path.startswith(f"{mount}/")), None)
        if mount is None:
            return path
        *groups, name = path.removeprefix(f"{mount}/").split("/")
        return "/".join((mount, *map(self._group, groups), name))

    def group_path(self, path: str) -> str:
        """Give a group's path with every part renamed."""
        return "/".join(map(self._group, path.split("/")))

    def group_lines(self, text: str) -> str:
        """Give /proc/self/cgroup with every group renamed."""
        lines = (line.split(":", 2) for line in text.splitlines())
        return "\n".join(":".join((*head, self.group_path(group))) for *head, group in lines)

    def _group(self, name: str) -> str:
        if not name or name in PLAIN_GROUPS or name == "..":
            return name
        return self._new_names.setdefault(name, f"group-{len(self._new_names) + 1}")


def _cleaned_text(path: str, text: str, names: _GroupNames) -> str:
    cleaners: Mapping[str, Callable[[str], str]] = {
        **dict.fromkeys(MOUNT_FILES, _cgroup_lines),
        "/proc/self/status": _mask_lines,
        "/proc/self/cgroup": names.group_lines,
        "/proc/self/cpuset": names.group_path,
        "/proc/cpuinfo": _cleaned_processors,
        "/proc/sys/kernel/osrelease": _version_number,
    }
    return cleaners.get(path, str)(text)


def _cgroup_lines(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if _is_cgroup_mount(line.split()))


def _mask_lines(text: str) -> str:
    wanted = ("Cpus_allowed_list:", "Mems_allowed_list:")
    return "\n".join(line for line in text.splitlines() if line.startswith(wanted))


def _version_number(text: str) -> str:
    match = re.match(r"\d+(?:\.\d+)*", text)
    return match[0] if match else ""


def _cleaned_processors(text: str) -> str:
    """Give the fields the reader uses; of the flags only whether this is a guest."""
    blocks = []
    for block in text.split("\n\n"):
        lines = [line for line in block.splitlines() if _FIELD.match(line)]
        if re.search(r"^(?:flags|Features)\s*:.*\bhypervisor\b", block, re.MULTILINE):
            lines.append("flags\t\t: hypervisor")
        blocks.append("\n".join(lines))
    return "\n\n".join(block for block in blocks if block)
