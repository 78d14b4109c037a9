"""Models of engines: fitted from ordinary logs and metrics, validated by replay, shipped as defaults."""

from __future__ import annotations

from tfanalyze.models.profile import (
    Profile,
    StepTime,
    default_names,
    from_json,
    load_profile,
    load_profiles,
    to_json,
)

__all__ = ["FitResult", "Profile", "StepTime", "default_names", "fit", "from_json", "load_profile", "load_profiles", "to_json", "validate"]


def __getattr__(name: str) -> object:
    if name in ("fit", "FitResult"):
        from tfanalyze.models import fitting

        return getattr(fitting, name)
    if name == "validate":
        from tfanalyze.models.validating import validate

        return validate
    raise AttributeError(name)
