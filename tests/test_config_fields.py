"""Every field of the configuration: in the identity or presentation only; available or refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from hatch_epctx.config import UNAVAILABLE, InIdentity, Presentation, Settings, expand, load_settings, walk
from hatch_epctx.config.available import used_keys
from hatch_epctx.config.project import tomllib
from hatch_epctx.errors import ConfigError
from hatch_epctx.identity import document_of, group_document

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

AVAILABLE = {
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

USES = {}
"""One use of every part that this version refuses."""

TABLE_PATTERNS = {pattern for pattern in UNAVAILABLE if not pattern.startswith("EPCTX_")}
FIELDS = {".".join(path): field for path, field in walk(Settings)}


def covering(path: str) -> set[str]:
    return {pattern for pattern in TABLE_PATTERNS if path == pattern or path.startswith(f"{pattern}.")}


def markers(field: FieldInfo) -> list[Any]:
    return [mark for mark in field.metadata if isinstance(mark, InIdentity | Presentation)]


@pytest.mark.parametrize("path", sorted(FIELDS))
def test_a_field_is_available_or_refused_never_both(path: str) -> None:
    assert (path in AVAILABLE) != bool(covering(path))


def test_the_lists_name_nothing_that_does_not_exist() -> None:
    assert set(FIELDS) >= AVAILABLE
    assert {pattern for pattern in TABLE_PATTERNS if not any(pattern in covering(path) for path in FIELDS)} == set()


@pytest.mark.parametrize("path", sorted(path for path in FIELDS if not path.startswith("overrides.")))
def test_a_field_is_in_the_identity_or_presentation_only(path: str) -> None:
    found = markers(FIELDS[path])
    assert len(found) == 1, "every field needs exactly one of InIdentity and Presentation"
    assert found[0].at if isinstance(found[0], InIdentity) else found[0].why


def test_what_the_identity_holds() -> None:
    marked = {
        path: found[0].at
        for path, field in FIELDS.items()
        if path in AVAILABLE and (found := markers(field)) and isinstance(found[0], InIdentity)
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
    for path in sorted(AVAILABLE):
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


def test_every_refused_part_has_a_use_here() -> None:
    assert USES.keys() == TABLE_PATTERNS


def test_using_a_refused_part_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every refused part, and where there is none, one that is made so: the way to refuse stays."""
    monkeypatch.setattr("hatch_epctx.config.available.UNAVAILABLE", {"executor": "somewhere else", **UNAVAILABLE})
    for pattern, use in {"executor": 'executor = "reapi"', **USES}.items():
        table = {"package": "acme", **tomllib.loads(use)}
        (_, path), *others = used_keys(table)
        assert not others
        with pytest.raises(ConfigError) as caught:
            load_settings(table, environ={}, state="wheel")
        place, what = ".".join(("tool.epctx", *path)), UNAVAILABLE.get(pattern, "somewhere else")
        assert str(caught.value) == f"{place}: not available in this version: {what}. Remove the key."
        assert caught.value.reason == "unavailable"


def test_a_refused_part_in_an_override_counts_only_where_it_applies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hatch_epctx.config.available.UNAVAILABLE", {"executor": "somewhere else"})
    table = {"package": "acme", "overrides": [{"if": {"env": {"X": True}}, "executor": "reapi"}]}
    assert load_settings(table, environ={}, state="wheel").executor == "local"
    with pytest.raises(ConfigError, match=r"^tool\.epctx\.overrides\[0\]\.executor: not available in this version"):
        load_settings(table, environ={"X": "1"}, state="wheel")
