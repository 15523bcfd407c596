"""A session: what watches one training, from the losses in to the records out."""

from cockpit.session.cockpit import Cockpit, attach

__all__ = ["Cockpit", "attach"]
