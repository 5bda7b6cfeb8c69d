"""The status page: one self-contained document, put together from the files in `page_files`.

No build chain and nothing from elsewhere. The browser runs this script and this style only: the policy names both by
their hashes, so that not even text that found its way into the page as markup could run.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_FOLDER = Path(__file__).parent / "page_files"

# In the order in which they need each other.
_SCRIPTS = ("elements.js", "machine.js", "figures.js", "chat.js", "page.js")


@dataclass(frozen=True, slots=True)
class Page:
    """The document and the headers it must come with."""

    text: str
    headers: Mapping[str, str]


def _load_page() -> Page:
    style = (_FOLDER / "page.css").read_text(encoding="utf-8")
    script = "".join((_FOLDER / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    frame = (_FOLDER / "page.html").read_text(encoding="utf-8")
    text = frame.replace("/*STYLE*/", style).replace("/*SCRIPT*/", script)
    policy = "; ".join(
        (
            "default-src 'none'",
            f"style-src {_source(style)}",
            f"script-src {_source(script)}",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            # No text becomes markup, whatever a script tries.
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    )
    headers = {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        # After an update of the daemon the page must be the new one.
        "Cache-Control": "no-cache",
    }
    return Page(text, headers)


def _source(content: str) -> str:
    """A source expression that allows this content and no other (Content Security Policy, level 2)."""
    digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
    return f"'sha256-{digest}'"


PAGE = _load_page()
