"""The vendors of models. Each has one file here, and is found by that.

A vendor's file owns everything the rest of the mesh has to know about it: the variables of its keys, its SDK,
the name of its price list, and how a prompt is sent, read back and printed. `VENDOR` is its model's class.
The stand-in for its tests is the file of the same name in `tests/vendors/`.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from pkgutil import iter_modules

from mesh.model.vendor import VendorModel
from mesh.model.vendors.claude import HARD, ROUTING, WORK

__all__ = ["DEFAULT", "HARD", "ROUTING", "VENDORS", "WORK", "pinned", "secrets"]


def _found() -> Iterator[type[VendorModel]]:
    for module in iter_modules(__path__):
        vendor: type[VendorModel] = import_module(f"{__name__}.{module.name}").VENDOR
        yield vendor


VENDORS: Mapping[str, type[VendorModel]] = {each.vendor: each for each in _found()}
"""By name, as in `--model` and `MESH_MODEL`."""
DEFAULT = VENDORS["claude"]
"""The vendor of a pinned id that names none."""


def pinned(model: str) -> tuple[type[VendorModel], str]:
    """Return the vendor of a pinned id, and the id as the vendor knows it."""
    name, colon, rest = model.partition(":")
    return (VENDORS[name], rest) if colon and name in VENDORS else (DEFAULT, model)


def secrets() -> tuple[str, ...]:
    """Return the variables with vendors' keys. Only agents' processes are started with them."""
    return tuple(key for vendor in VENDORS.values() for key in vendor.keys)
