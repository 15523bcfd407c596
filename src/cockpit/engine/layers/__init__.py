"""Layer formulas, one file for each family; importing this package fills `formula.FORMULAS`.

The folder is the list: a file put here is found, nothing else is edited.
"""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__, f"{__name__}."):
    import_module(_module.name)
