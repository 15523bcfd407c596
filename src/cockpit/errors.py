"""The two ways something can go wrong: the caller's mistake, and a value that does not exist."""


class CockpitError(ValueError):
    """A mistake in the call: the text says what happened, where, and what to do."""


class Gap(Exception):  # noqa: N818  # not an error: a missing value is normal
    """A value that cannot be had at this step; becomes a recorded gap, never a crash.

    The text is the status stored with the record, so it begins with one machine-readable word
    (``zero_gradient``, ``batch_size_1``, …), optionally followed by ``: `` and an explanation.
    """
