"""Property tests judge results, not the speed of a shared machine."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("tools", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tools")
