"""Checks the links of every document: `python -m tests.docs.links`, part of `make lint`."""

from __future__ import annotations

import sys

from tests.docs.markdown import REPOSITORY, broken_links, documents


def main() -> int:
    """Print what is broken; exit status 1 when anything is."""
    problems = [
        f"{path.relative_to(REPOSITORY)}: {problem}" for path in documents() for problem in broken_links(path)
    ]
    print("\n".join(problems) if problems else f"links of {len(documents())} documents hold")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
