"""The local optimizer's policy, as it is configured."""

from __future__ import annotations

from daemon.config import PlacementConfig
from sbon.placement.local_optimizer import LocalPolicy


def policy_of(settings: PlacementConfig) -> LocalPolicy:
    return LocalPolicy(
        displacement_threshold_ms=settings.displacement_threshold_ms,
        minimum_saving_ratio=settings.minimum_migration_saving,
        rest_s=settings.rest_s,
    )
