"""Hardware: chips with sourced figures, the topologies that join them, and their names.

In: a name (`v5p:16x20x28`, `h100:64`) or a TOML file. Out: a `System` of plain numbers; a number
that no public source gives is None. Book: "How to Think About TPUs" and "How to Think About GPUs".
Level 1: imports errors and units only.
"""

from shardwise.hardware.catalog import catalog_chip, chip_names, find_chip
from shardwise.hardware.chip import MARKETS, Chip
from shardwise.hardware.difference import Difference, diff
from shardwise.hardware.figure import Figure, show_value
from shardwise.hardware.load import load_chip
from shardwise.hardware.shape import Shape, parse_shape, show_shape
from shardwise.hardware.switched import FatTree, Switched, fat_tree
from shardwise.hardware.system import System, chip_of, domain_size, parse_chip, parse_system
from shardwise.hardware.torus import Torus, legal_slices, make_slice, wrap_axes

__all__ = [
    "MARKETS",
    "Chip",
    "Difference",
    "FatTree",
    "Figure",
    "Shape",
    "Switched",
    "System",
    "Torus",
    "catalog_chip",
    "chip_names",
    "chip_of",
    "diff",
    "domain_size",
    "fat_tree",
    "find_chip",
    "legal_slices",
    "load_chip",
    "make_slice",
    "parse_chip",
    "parse_shape",
    "parse_system",
    "show_shape",
    "show_value",
    "wrap_axes",
]
