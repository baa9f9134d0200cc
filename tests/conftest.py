"""Settings of all tests."""

from hypothesis import HealthCheck, settings

# Nothing that depends on how busy the machine is may fail a test.
settings.register_profile("fuselane", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fuselane")
