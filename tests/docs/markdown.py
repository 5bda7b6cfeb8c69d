"""The repository's Markdown as the tests see it: files, fenced blocks with their marks, headings and links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
SHELL_LANGUAGES = ("sh", "bash", "shell", "console")
_FENCE = re.compile(r"^(```+)(\w*)\s*$")
_MARK = re.compile(r"^<!-- block: (\w+)(?:, (.+))? -->$")
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_BARE = re.compile(r"(?<![\w/(`.-])docs/[\w/-]+\.(?:md|json|svg)")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: where it is, its language, its text, and its mark (`<!-- block: KIND, REASON -->`) before it."""

    path: Path
    line_number: int
    language: str
    text: str
    kind: str | None
    reason: str | None

    @property
    def name(self) -> str:
        return f"{self.path.relative_to(REPOSITORY)}:{self.line_number}"


def documents() -> list[Path]:
    """Every Markdown file that people read."""
    return [
        REPOSITORY / "README.md",
        *sorted((REPOSITORY / "docs").rglob("*.md")),
        REPOSITORY / "CHANGELOG.md",
    ]


def blocks(path: Path) -> Iterator[Block]:
    """The fenced blocks of a file, in their order."""
    lines = path.read_text(encoding="utf-8").splitlines()
    number = 0
    while number < len(lines):
        opening = _FENCE.match(lines[number])
        if opening is None:
            number += 1
            continue
        end = next(i for i in range(number + 1, len(lines)) if lines[i].startswith(opening[1]))
        before = next((lines[i] for i in range(number - 1, -1, -1) if lines[i].strip()), "")
        mark = _MARK.match(before)
        yield Block(
            path,
            number + 1,
            opening[2],
            "\n".join(lines[number + 1 : end]) + "\n",
            mark[1] if mark else None,
            mark[2] if mark else None,
        )
        number = end + 1


def prose(path: Path) -> str:
    """A file's text without its fenced blocks."""
    text = path.read_text(encoding="utf-8")
    return re.sub(r"^(```+)\w*\n.*?^\1\s*$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(path: Path) -> set[str]:
    """The anchors of a file's headings, as GitHub makes them."""
    found: dict[str, int] = {}
    names = set()
    for heading in re.findall(r"^#{1,6} (.+)$", prose(path), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        names.add(slug if slug not in found else f"{slug}-{found[slug]}")
        found[slug] = found.get(slug, 0) + 1
    return names


def links(path: Path) -> Iterator[str]:
    """The targets of a file's links and pictures, but for code between backquotes."""
    yield from _LINK.findall(re.sub(r"`[^`\n]*`", "", prose(path)))


def broken_links(path: Path) -> list[str]:
    """What is wrong with a file's relative links and with the documents it names in passing; [] when nothing."""
    found = []
    for link in links(path):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        place = (path.parent / target).resolve() if target else path
        if not place.exists():
            found.append(f"{link}: there is no such file")
        elif anchor and place.suffix == ".md" and anchor not in anchors(place):
            found.append(f"{link}: there is no such heading")
    found += [
        f"{name}: there is no such file"
        for name in _BARE.findall(prose(path))
        if not (REPOSITORY / name).exists()
    ]
    return found
