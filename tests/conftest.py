"""What holds for every test: no verdict depends on how busy the machine is, or on luck."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "shared machine", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("shared machine")
