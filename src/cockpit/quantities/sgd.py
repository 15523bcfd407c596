"""A remark for criteria that were derived for plain SGD only."""

from cockpit.quantities.quantity import Observation


def status_for_sgd(o: Observation) -> str:
    """Return ``ok`` for plain SGD, else the status that says what the formula was derived for."""
    if o.optimizer.plain_sgd:
        return "ok"
    return f"derived_for_sgd: the criterion is derived for SGD without momentum, not for {o.optimizer.name}"
