"""The least that a number among the settings may be."""

from .errors import ConfigurationError


def check_least(settings: object, error: type[ConfigurationError] = ConfigurationError, **least: int) -> None:
    """Raises ``error``, naming the flag, for a field of ``settings`` below its least value. None is no number."""
    for name, limit in least.items():
        value = getattr(settings, name)
        if value is not None and value < limit:
            raise error(f"--{name.replace('_', '-')} must be at least {limit}, not {value}")
