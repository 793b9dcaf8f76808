"""Due work: unknown outcomes, verification, compensation, approved calls, expiry, sealing."""

from __future__ import annotations

from counterseal.reconcile.reconciler import Reconciler, Retention, Tally

__all__ = ["Reconciler", "Retention", "Tally"]
