"""One name through all layers: a class's name and the name under which its values are stored."""

import re


def snake_case(name: str) -> str:
    """Return ``norm_test`` for ``NormTest``, ``hess_max_ev`` for ``HessMaxEV``, ``tic_diag`` for ``TICDiag``.

    >>> [snake_case(n) for n in ("NormTest", "HessMaxEV", "TICDiag", "GradHist1d", "MeanGSNR", "CABS")]
    ['norm_test', 'hess_max_ev', 'tic_diag', 'grad_hist1d', 'mean_gsnr', 'cabs']
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
