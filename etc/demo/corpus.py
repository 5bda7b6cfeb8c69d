"""The training text: Jane Austen's six novels, cut into chapters.

The novels are in the public domain. They come from the Debian package
`r-cran-janeaustenr`, because a Debian mirror is the one source of public-domain prose
that a build machine without the internet usually still reaches. The package carries each
novel as an R character vector, one string per printed line, in R's lazy-load file format.
Nothing of R is needed to read it: the part of the format in use is the few lines below.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import zlib
from pathlib import Path

PACKAGE_NAME = "r-cran-janeaustenr"
LAZY_LOAD_FILE = Path("usr/lib/R/site-library/janeaustenr/data/Rdata.rdb")

# Over the novels as the package holds them, before any cleaning: a new package version
# that changes a single character must be noticed, since the model's numbers depend on it.
NOVELS_SHA256 = "c4572e8622f440069b39e0c183cc43579a25689e3714bdfa23290716a8a2bc5f"

# One chapter in sixteen is never trained on. Whole chapters, because neighbouring
# paragraphs share names and phrases and would make the held-out loss look better.
HELD_OUT_EVERY = 16
HELD_OUT_OFFSET = 8

HEADING = re.compile(r"(chapter|volume)\s+[ivxlc\d]+\.?", re.IGNORECASE)
END_OF_NOVEL = re.compile(r"finis|the end|\*?a note on the text", re.IGNORECASE)
EDITORS_REMARK = re.compile(r"\[.*\]|[*\s]+|\*vide.*", re.IGNORECASE | re.DOTALL)

R_STRING_VECTOR = 16
R_TYPE_MASK = 0xFF


class CorpusError(Exception):
    """The package could not be had, or it does not hold the expected text."""


def load_chapters(cache: Path) -> tuple[list[str], list[str]]:
    """Give the chapters for training and the chapters held out.

    Args:
        cache: Folder that keeps the package between runs; made when missing.

    Returns:
        (training, held_out); each chapter is plain text with one paragraph per line.

    Raises:
        CorpusError: The package cannot be fetched, or its text has another checksum.
    """
    novels = _read_novels(_obtain_package(cache))
    digest = hashlib.sha256("\f".join("\n".join(lines) for lines in novels).encode()).hexdigest()
    if digest != NOVELS_SHA256:
        raise CorpusError(f"the novels have sha256 {digest}, expected {NOVELS_SHA256}")
    chapters = [chapter for lines in novels for chapter in split_chapters(lines)]
    training: list[str] = []
    held_out: list[str] = []
    for index, chapter in enumerate(chapters):
        is_held_out = index % HELD_OUT_EVERY == HELD_OUT_OFFSET
        (held_out if is_held_out else training).append(chapter)
    return training, held_out


def split_chapters(lines: list[str]) -> list[str]:
    """Cut one novel into chapters, and undo the printed page's line breaks.

    Title pages, headings, editors' remarks and everything after the end are left out;
    underscores, which mark italics in these transcriptions, are removed.
    """
    chapters: list[list[str]] = []
    for paragraph in re.split(r"\n\s*\n", "\n".join(lines)):
        text = " ".join(paragraph.replace("_", "").split())
        if HEADING.fullmatch(text):
            chapters.append([])
        elif chapters and END_OF_NOVEL.fullmatch(text):
            break
        elif chapters and text and not EDITORS_REMARK.fullmatch(text):
            chapters[-1].append(text)
    # "VOLUME II" directly above "CHAPTER I" opens a chapter without any text.
    return ["\n".join(paragraphs) + "\n" for paragraphs in chapters if paragraphs]


def _obtain_package(cache: Path) -> Path:
    """Give the folder of the unpacked package, and fetch it first when it is not there."""
    unpacked = cache / PACKAGE_NAME
    if (unpacked / LAZY_LOAD_FILE).is_file():
        return unpacked
    cache.mkdir(parents=True, exist_ok=True)
    try:
        if not any(cache.glob(f"{PACKAGE_NAME}_*.deb")):
            subprocess.run(["apt-get", "download", PACKAGE_NAME], cwd=cache, check=True)
        archive = max(cache.glob(f"{PACKAGE_NAME}_*.deb"))
        subprocess.run(["dpkg-deb", "--extract", archive, unpacked], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise CorpusError(
            f"cannot fetch {PACKAGE_NAME}: {error}. Run apt-get update, or put the package "
            f"file into {cache} by hand."
        ) from error
    return unpacked


def _read_novels(unpacked: Path) -> list[list[str]]:
    """Give the lines of every novel in the lazy-load file, in the file's order.

    Each record is the size of the decoded object as a big-endian 32-bit number, then the
    object, compressed by zlib.
    """
    remaining = (unpacked / LAZY_LOAD_FILE).read_bytes()
    novels = []
    while remaining:
        stream = zlib.decompressobj()
        novels.append(_decode_string_vector(stream.decompress(remaining[4:])))
        remaining = stream.unused_data
    return novels


def _decode_string_vector(record: bytes) -> list[str]:
    """Decode R's binary serialisation, version 3, of one character vector.

    Source: "Serialization Formats" in the manual "R Internals".
    """

    def number_at(offset: int) -> int:
        return int.from_bytes(record[offset : offset + 4], "big", signed=True)

    # The header is "X\n", three version numbers and the length and name of the encoding.
    offset = 14 + 4 + number_at(14)
    if record[:2] != b"X\n" or number_at(offset) & R_TYPE_MASK != R_STRING_VECTOR:
        raise CorpusError(f"{LAZY_LOAD_FILE.name} holds something other than strings")
    count = number_at(offset + 4)
    offset += 8
    strings = []
    for _ in range(count):
        # One word of flags, the length in bytes, the bytes.
        end = offset + 8 + number_at(offset + 4)
        # The pound sign of "Mansfield Park" is the only character outside ASCII.
        strings.append(record[offset + 8 : end].decode("utf-8"))
        offset = end
    return strings
