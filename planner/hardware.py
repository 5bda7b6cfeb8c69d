"""What a CPU generation is good for when nothing was measured: memory and link bandwidth, one core's rate.

Rows and their sources are those of docs/PLANNER.md, "Machine defaults". A row is a starting value with a wide
error bar; `stratactl bench` replaces it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from planner.topology import CpuModel

GIGABYTE = 1_000_000_000
CHANNEL_BYTES = 8
# A sourced row rests on one machine's published table; an assumed one on the vendor's data sheet and a guess.
SOURCED_UNCERTAINTY = 0.25
ASSUMED_UNCERTAINTY = 0.50


class Generation(StrEnum):
    """Server CPU generations whose memory systems differ enough to matter."""

    HASWELL = "e5-v3-v4"
    CASCADE_LAKE = "cascade-lake"
    ICE_LAKE = "ice-lake"
    SAPPHIRE_RAPIDS = "sapphire-rapids"
    EMERALD_RAPIDS = "emerald-rapids"
    XEON_6 = "xeon-6"
    ROME = "epyc-rome"
    MILAN = "epyc-milan"
    GENOA = "epyc-genoa"
    TURIN = "epyc-turin"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class GenerationRow:
    """Defaults for one generation.

    `channel_share` is the part of the pin rate that reads reach, `link_bandwidth` bytes a second between two
    packages in one direction, `core_rate` bytes of 4-bit weights one core multiplies in a second.
    """

    channels_per_package: int
    megatransfers: int
    channel_share: float
    link_bandwidth: float
    core_rate: float
    uncertainty: float
    basis: str


GENERATION_ROWS: Mapping[Generation, GenerationRow] = {
    Generation.HASWELL: GenerationRow(
        channels_per_package=4,
        megatransfers=2400,
        channel_share=0.80,
        link_bandwidth=20 * GIGABYTE,
        core_rate=2.7 * GIGABYTE,
        uncertainty=ASSUMED_UNCERTAINTY,
        basis="seed 2684: about 19 GB/s link; share assumed",
    ),
    Generation.CASCADE_LAKE: GenerationRow(
        channels_per_package=6,
        megatransfers=2933,
        channel_share=0.80,
        link_bandwidth=34 * GIGABYTE,
        core_rate=4.5 * GIGABYTE,
        uncertainty=SOURCED_UNCERTAINTY,
        basis="MLC: 113 GB/s local, 34.3 remote",
    ),
    Generation.ICE_LAKE: GenerationRow(
        channels_per_package=8,
        megatransfers=3200,
        channel_share=0.86,
        link_bandwidth=55 * GIGABYTE,
        core_rate=4.5 * GIGABYTE,
        uncertainty=SOURCED_UNCERTAINTY,
        basis="MLC: 176 GB/s local, 55.7 remote",
    ),
    Generation.SAPPHIRE_RAPIDS: GenerationRow(
        channels_per_package=8,
        megatransfers=4800,
        channel_share=0.80,
        link_bandwidth=70 * GIGABYTE,
        core_rate=4.5 * GIGABYTE,
        uncertainty=ASSUMED_UNCERTAINTY,
        basis="link and share assumed",
    ),
    Generation.EMERALD_RAPIDS: GenerationRow(
        channels_per_package=8,
        megatransfers=5200,
        channel_share=0.80,
        link_bandwidth=70 * GIGABYTE,
        core_rate=4.5 * GIGABYTE,
        uncertainty=ASSUMED_UNCERTAINTY,
        basis="pub-colibri-537-bw: 62.9 GB/s on two channels; link assumed",
    ),
    Generation.XEON_6: GenerationRow(
        channels_per_package=12,
        megatransfers=6400,
        channel_share=0.82,
        link_bandwidth=248 * GIGABYTE,
        core_rate=4.5 * GIGABYTE,
        uncertainty=SOURCED_UNCERTAINTY,
        basis="pub-ik-201-mlc: 248 GB/s remote; share assumed",
    ),
    Generation.ROME: GenerationRow(
        channels_per_package=8,
        megatransfers=3200,
        channel_share=0.66,
        link_bandwidth=60 * GIGABYTE,
        core_rate=4.0 * GIGABYTE,
        uncertainty=SOURCED_UNCERTAINTY,
        basis="pub-kt-2175-bw: 113.4 of 170.6 GB/s; link assumed",
    ),
    Generation.MILAN: GenerationRow(
        channels_per_package=8,
        megatransfers=3200,
        channel_share=0.72,
        link_bandwidth=60 * GIGABYTE,
        core_rate=4.0 * GIGABYTE,
        uncertainty=ASSUMED_UNCERTAINTY,
        basis="assumed",
    ),
    Generation.GENOA: GenerationRow(
        channels_per_package=12,
        megatransfers=4800,
        channel_share=0.78,
        link_bandwidth=110 * GIGABYTE,
        core_rate=4.5 * GIGABYTE,
        uncertainty=ASSUMED_UNCERTAINTY,
        basis="assumed",
    ),
    Generation.TURIN: GenerationRow(
        channels_per_package=12,
        megatransfers=6000,
        channel_share=0.80,
        link_bandwidth=120 * GIGABYTE,
        core_rate=4.5 * GIGABYTE,
        uncertainty=ASSUMED_UNCERTAINTY,
        basis="assumed",
    ),
    Generation.UNKNOWN: GenerationRow(
        channels_per_package=6,
        megatransfers=2933,
        channel_share=0.75,
        link_bandwidth=45 * GIGABYTE,
        core_rate=4.0 * GIGABYTE,
        uncertainty=ASSUMED_UNCERTAINTY,
        basis="assumed: the CPU is none of the rows",
    ),
}

# (vendor, family, model) as /proc/cpuinfo states them; Skylake-SP shares number and memory system with
# Cascade Lake.
_BY_NUMBER: Mapping[tuple[str, int, int], Generation] = {
    ("GenuineIntel", 6, 63): Generation.HASWELL,
    ("GenuineIntel", 6, 79): Generation.HASWELL,
    ("GenuineIntel", 6, 85): Generation.CASCADE_LAKE,
    ("GenuineIntel", 6, 106): Generation.ICE_LAKE,
    ("GenuineIntel", 6, 143): Generation.SAPPHIRE_RAPIDS,
    ("GenuineIntel", 6, 207): Generation.EMERALD_RAPIDS,
    ("GenuineIntel", 6, 173): Generation.XEON_6,
    ("GenuineIntel", 6, 175): Generation.XEON_6,
    ("AuthenticAMD", 23, 49): Generation.ROME,
    ("AuthenticAMD", 25, 1): Generation.MILAN,
    ("AuthenticAMD", 25, 17): Generation.GENOA,
    ("AuthenticAMD", 25, 160): Generation.GENOA,
    ("AuthenticAMD", 26, 2): Generation.TURIN,
    ("AuthenticAMD", 26, 17): Generation.TURIN,
}
# Where a guest hides the numbers, the name still tells: the second digit of a Xeon Scalable, the last of an
# EPYC.
_BY_NAME: tuple[tuple[str, Generation], ...] = (
    (r"\bE[57]-\d{4}\w* v[34]\b", Generation.HASWELL),
    (r"\b6[79]\d\d[PE]\b", Generation.XEON_6),
    (r"\b(?:Bronze|Silver|Gold|Platinum) \d[12]\d\d", Generation.CASCADE_LAKE),
    (r"\b(?:Bronze|Silver|Gold|Platinum) \d3\d\d", Generation.ICE_LAKE),
    (r"\b(?:Bronze|Silver|Gold|Platinum) \d4\d\d", Generation.SAPPHIRE_RAPIDS),
    (r"\b(?:Bronze|Silver|Gold|Platinum) \d5\d\d", Generation.EMERALD_RAPIDS),
    (r"\bEPYC 7\w\w2", Generation.ROME),
    (r"\bEPYC 7\w\w3", Generation.MILAN),
    (r"\bEPYC (?:9\w\w|8\w\w)4", Generation.GENOA),
    (r"\bEPYC 9\w\w5", Generation.TURIN),
)


def generation_of(model: CpuModel | None) -> Generation:
    """Give the generation of a CPU, `UNKNOWN` when neither its numbers nor its name are in the table."""
    if model is None:
        return Generation.UNKNOWN
    if model.vendor is not None and model.family is not None and model.model is not None:
        found = _BY_NUMBER.get((model.vendor, model.family, model.model))
        if found is not None:
            return found
    name = " ".join(re.sub(r"\((?:R|TM)\)", "", model.name or "", flags=re.IGNORECASE).split())
    # Patterns are compiled only here: most machines are told by number.
    return next(
        (found for pattern, found in _BY_NAME if re.search(pattern, name, re.IGNORECASE)), Generation.UNKNOWN
    )
