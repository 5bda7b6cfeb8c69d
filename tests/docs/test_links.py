"""Links of the documents hold, and the check finds those that do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.markdown import REPOSITORY, anchors, broken_links, documents, links


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_every_link_leads_somewhere(path: Path) -> None:
    assert broken_links(path) == []


def test_broken_files_and_headings_are_found(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text("# One `two`, three\n# One two three\n```sh\n# no heading\n```\n")
    page = tmp_path / "a.md"
    page.write_text(
        "[a](b.md) [a](b.md#one-two-three) [a](b.md#one-two-three-1) [a](#mine) [a](https://example.org/x)\n"
        "[a](c.md) [a](b.md#no-heading) `[a](d.md)`, see docs/ABSENT.md and docs/adr/README.md\n# Mine\n"
    )
    assert anchors(tmp_path / "b.md") == {"one-two-three", "one-two-three-1"}
    assert broken_links(page) == [
        "c.md: there is no such file",
        "b.md#no-heading: there is no such heading",
        "docs/ABSENT.md: there is no such file",
    ]


def test_every_document_can_be_reached_from_the_index() -> None:
    seen: set[Path] = set()
    waiting = [REPOSITORY / "README.md"]
    while waiting:
        path = waiting.pop()
        if path in seen or path.suffix != ".md":
            continue
        seen.add(path)
        targets = (link.partition("#")[0] for link in links(path) if ":" not in link)
        waiting += [(path.parent / target).resolve() for target in targets if target]
    left = {path for path in documents() if path not in seen and path.parent.name != "adr"}
    assert not left, f"not linked from README.md or docs/README.md: {sorted(map(str, left))}"
