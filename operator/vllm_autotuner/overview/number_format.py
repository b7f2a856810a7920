"""Numbers and times of a stored status as text. Must not: turn what is unknown into a number."""

from datetime import datetime

from vllm_autotuner.api.wording import with_unit

__all__ = ["figure", "moment"]


def figure(value: float | None, unit: str) -> str:
    """Return a value with its unit; times below a second in ms, shares in percent."""
    if value is None:
        return "unknown"
    if unit == "s" and value < 1:
        return f"{value * 1000:.3g} ms"
    if unit == "share":
        return f"{value:.0%}"
    return with_unit(f"{value:.4g}", unit)


def moment(text: str | None) -> str:
    """Return a stored time to the second; "?" for none."""
    return "?" if text is None else f"{datetime.fromisoformat(text):%Y-%m-%d %H:%M:%S}Z"
