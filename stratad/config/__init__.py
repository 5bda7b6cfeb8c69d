"""The configuration file and the environment: the only place where either is read."""

from __future__ import annotations

from stratad.config.environment import Environment, child_environment, read_environment
from stratad.config.reading import load_configuration, parse_configuration
from stratad.config.sections import (
    ArenaSection,
    Configuration,
    DeviceFailure,
    GpuMode,
    GpuSection,
    KernelChoice,
    MetricsSection,
    ModelSection,
    Objective,
    PlacementFallback,
    PlacementSection,
    PolicyChoice,
    Scope,
    ServerSection,
    SystemdSection,
)

__all__ = [
    "ArenaSection",
    "Configuration",
    "DeviceFailure",
    "Environment",
    "GpuMode",
    "GpuSection",
    "KernelChoice",
    "MetricsSection",
    "ModelSection",
    "Objective",
    "PlacementFallback",
    "PlacementSection",
    "PolicyChoice",
    "Scope",
    "ServerSection",
    "SystemdSection",
    "child_environment",
    "load_configuration",
    "parse_configuration",
    "read_environment",
]
