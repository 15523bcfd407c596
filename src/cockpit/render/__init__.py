"""Renderers: charts become JSON for the page, figures, or text. None of them knows an instrument."""
