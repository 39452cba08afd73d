"""Finished wheels: adding large files to them fast, reading a few, and checking all against their RECORD."""

from hatch_epctx.wheelfile.archive import Problem, Reason
from hatch_epctx.wheelfile.check import check_wheel
from hatch_epctx.wheelfile.entries import Entry
from hatch_epctx.wheelfile.fresh import create_wheel
from hatch_epctx.wheelfile.reading import extract_members, packed_sizes, read_members
from hatch_epctx.wheelfile.record import MAX_RECORD, RecordError, Row, decode_digest, encode_digest, parse_record
from hatch_epctx.wheelfile.writer import Compression, ZipTime, add_files, metadata_folder, reproducible_time

__all__ = [
    "MAX_RECORD",
    "Compression",
    "Entry",
    "Problem",
    "Reason",
    "RecordError",
    "Row",
    "ZipTime",
    "add_files",
    "check_wheel",
    "create_wheel",
    "decode_digest",
    "encode_digest",
    "extract_members",
    "metadata_folder",
    "packed_sizes",
    "parse_record",
    "read_members",
    "reproducible_time",
]
