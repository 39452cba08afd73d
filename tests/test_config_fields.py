"""Every field of the configuration: in the identity or presentation only."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from hatch_epctx.config import InIdentity, Presentation, Settings, expand, load_settings, walk
from hatch_epctx.identity import document_of, group_document

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

ALLOWED = {
    "package",
    "report",
    "executor",
    "models.*.source",
    "models.*.free-dimensions",
    "models.*.free-dimension-denotations",
    "models.*.input-shapes",
    "models.*.matrix",
    "models.*.prepare",
    "models.*.calibration",
    "models.*.min-coverage",
    "models.*.check.inputs",
    "models.*.check.rtol",
    "models.*.check.atol",
    "models.*.check.cosine",
    "models.*.check.seed",
    "models.*.check.ranges",
    "models.*.targets",
    "models.*.ship-source",
    "models.*.license",
    "targets.*.ep",
    "targets.*.device",
    "targets.*.provider-options",
    "targets.*.session-options",
    "targets.*.runtime-options",
    "targets.*.embed",
    "targets.*.context-io",
    "targets.*.optimization",
    "targets.*.load-check",
    "targets.*.requires",
    "targets.*.env",
    "targets.*.cores",
    "models.*.custom-ops",
    "targets.*.timeout",
    "targets.*.memory-limit",
    "targets.*.matrix",
    "targets.*.required",
    "targets.*.allow-unknown-options",
    "targets.*.platform",
    "targets.*.ep-cache",
    "groups.*.models",
    "groups.*.targets",
    "wheel.platform",
    "wheel.compression",
    "wheel.max-size",
    "wheel.max-size-error",
    "wheel.max-path",
    "wheel.max-path-error",
    "wheel.companions",
    "cache.max-size",
    "cache.max-age",
    "cache.remote",
    "cache.remote-mode",
    "overrides.*.if.platform-system",
    "overrides.*.if.platform-machine",
    "overrides.*.if.env",
    "overrides.*.if.state",
}

FIELDS = {".".join(path): field for path, field in walk(Settings)}


def markers(field: FieldInfo) -> list[Any]:
    return [mark for mark in field.metadata if isinstance(mark, InIdentity | Presentation)]


def test_the_list_names_every_field() -> None:
    assert set(FIELDS) == ALLOWED


@pytest.mark.parametrize("path", sorted(path for path in FIELDS if not path.startswith("overrides.")))
def test_a_field_is_in_the_identity_or_presentation_only(path: str) -> None:
    found = markers(FIELDS[path])
    assert len(found) == 1, "every field needs exactly one of InIdentity and Presentation"
    assert found[0].at if isinstance(found[0], InIdentity) else found[0].why


def test_what_the_identity_holds() -> None:
    marked = {
        path: found[0].at
        for path, field in FIELDS.items()
        if path in ALLOWED and (found := markers(field)) and isinstance(found[0], InIdentity)
    }
    assert marked == {
        "models.*.source": "model",
        "models.*.free-dimensions": "compile.free-dimensions",
        "models.*.free-dimension-denotations": "compile.free-dimension-denotations",
        "models.*.input-shapes": "compile.input-shapes",
        "models.*.matrix": "compile.free-dimensions",
        "models.*.prepare": "compile.prepare",
        "models.*.calibration": "compile.calibration",
        "targets.*.ep": "target.ep",
        "targets.*.device": "target.device",
        "targets.*.provider-options": "target.provider-options",
        "targets.*.matrix": "target.provider-options",
        "targets.*.session-options": "compile.session-options",
        "targets.*.runtime-options": "target.runtime-options",
        "targets.*.embed": "compile.embed",
        "targets.*.context-io": "compile.context-io",
        "targets.*.optimization": "compile.optimization",
        "targets.*.load-check": "target.load-check",
        "targets.*.env": "target.env",
        "targets.*.cores": "toolchain.cores",
        "targets.*.ep-cache": "compile.ep-cache",
        "models.*.custom-ops": "model.custom-ops",
        "groups.*.models": "members",
    }


def test_the_identity_document_has_every_marked_place() -> None:
    table = {
        "package": "acme",
        "models": {"m": {"source": "m.onnx"}},
        "targets": {"t": {"ep": "openvino", "ep-cache": True}},
    }
    (variant,) = expand(load_settings(table, environ={}, state="wheel"), Path("/project"))
    library = SimpleNamespace(document=lambda: {"content": "0" * 64})
    source: Any = SimpleNamespace(digest="0" * 64, external=(), custom_ops=(library,))
    toolchain: Any = SimpleNamespace(document=lambda: {"cores": None})
    document = document_of(variant, source, toolchain, {})
    document |= {"members": group_document([document, document])["members"]}
    for path in sorted(ALLOWED):
        for mark in markers(FIELDS[path]):
            if isinstance(mark, InIdentity):
                section, _, key = mark.at.partition(".")
                assert section in document
                assert not key or key in document[section], mark.at


@pytest.mark.parametrize("path", sorted(FIELDS))
def test_every_field_has_a_docstring(path: str) -> None:
    description = FIELDS[path].description
    assert description
    assert description.rstrip().endswith(".")
