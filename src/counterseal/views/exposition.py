"""Metrics as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from counterseal.views.metrics import METRICS, Metric

__all__ = ["prometheus"]

_ESCAPES = {"\\": r"\\", '"': r"\"", "\n": r"\n"}


def prometheus(metrics: Sequence[tuple[str, Sequence[Metric]]]) -> str:
    """(tenant, its metrics) for every tenant that may be told, as text.

    A metric that has nothing to divide by has no value, and no line; what it was made of has.
    """
    return "".join(f"{line}\n" for line in _lines(metrics))


def _lines(metrics: Sequence[tuple[str, Sequence[Metric]]]) -> Iterator[str]:
    found = [(tenant, one) for tenant, several in metrics for one in several]
    for name, formula in METRICS.items():
        mine = [(tenant, one) for tenant, one in found if one.name == name]
        for suffix, part, told in (
            ("", "value", f"{formula.words}: {formula.meaning}"),
            ("_numerator", "numerator", f"The numerator of {name}."),
            ("_denominator", "denominator", f"The denominator of {name}."),
        ):
            samples = [
                (tenant, one.window, value)
                for tenant, one in mine
                if (value := getattr(one, part)) is not None
            ]
            if not samples:
                continue
            yield f"# HELP counterseal_{name}{suffix} {told}"
            yield f"# TYPE counterseal_{name}{suffix} gauge"
            for tenant, window, value in samples:
                labels = f'tenant="{_label(tenant)}",window="{_label(window)}"'
                yield f"counterseal_{name}{suffix}{{{labels}}} {value:.17g}"


def _label(text: str) -> str:
    """A tenant may be called anything; nothing in it may end the label, or the line."""
    shown = "".join(_ESCAPES.get(char, char if char.isprintable() else "\ufffd") for char in text)
    return shown.encode(errors="replace").decode()
