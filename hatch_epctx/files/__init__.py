"""Files on disk: the only place that renames, removes, writes atomically, makes files durable and clones.

One module for each idea: `faults` (where tests may make a process die), `names` (which names are safe), `disk`
(atomic and durable writes, removal), `sharing` and `making` (private folders, or shared with a group), `copying`
(clones and copies), `untrusted` (bounded, strict reading of what others may have written). Standard library only.
"""

from __future__ import annotations

from hatch_epctx.files.copying import copy_and_digest, copy_file
from hatch_epctx.files.disk import (
    TEMP_PREFIX,
    atomic_write,
    fsync_dir,
    fsync_file,
    long_path,
    move,
    publish_dir,
    remove_file,
    remove_tree,
    touch,
)
from hatch_epctx.files.faults import FAULT_POINTS, fault_point
from hatch_epctx.files.making import make_dir, make_file, make_private_dir
from hatch_epctx.files.names import check_location, check_name, contained
from hatch_epctx.files.sharing import is_shared, share
from hatch_epctx.files.untrusted import open_regular, parse_json, read_bounded

__all__ = [
    "FAULT_POINTS",
    "TEMP_PREFIX",
    "atomic_write",
    "check_location",
    "check_name",
    "contained",
    "copy_and_digest",
    "copy_file",
    "fault_point",
    "fsync_dir",
    "fsync_file",
    "is_shared",
    "long_path",
    "make_dir",
    "make_file",
    "make_private_dir",
    "move",
    "open_regular",
    "parse_json",
    "publish_dir",
    "read_bounded",
    "remove_file",
    "remove_tree",
    "share",
    "touch",
]
