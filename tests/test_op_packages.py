"""QNN's op packages: libraries in the identity, in the workers' hands, and in what running needs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from support import Factory, Tree, epctx, pipeline

from hatch_epctx.config import further_inputs, load_settings
from hatch_epctx.errors import ConfigError
from hatch_epctx.manifest import Facts, Variant
from hatch_epctx.providers import check_options, find_provider
from hatch_epctx.runtime import customops

if TYPE_CHECKING:
    from pathlib import Path

MODEL = '[tool.epctx.models.detector]\nsource = "models/detector.onnx"\n'
TARGET = '[tool.epctx.targets.chip]\nep = "qnn"\nprovider-options = {{ soc_model = "60", op_packages = {value} }}\n'
ONE = '"MyAdd:libs/add.so:AddProvider:CPU"'


def project(factory: Factory, value: str = ONE) -> Tree:
    tree = factory.project(TARGET.format(value=value))
    (tree.root / "libs").mkdir()
    (tree.root / "libs/add.so").write_bytes(b"a library")
    (tree.root / "libs/sub.so").write_bytes(b"another")
    return tree


def identity(tree: Tree, value: str = ONE) -> str:
    tree.write(MODEL + TARGET.format(value=value))
    found = pipeline(tree.root).plan()[0].planned.identity
    assert found is not None
    return found.digest


@pytest.mark.ep_qnn
def test_libraries_count_by_content_and_not_by_path(factory: Factory) -> None:
    tree = project(factory)
    first = identity(tree)
    (tree.root / "libs/same.so").write_bytes(b"a library")
    assert identity(tree, '"MyAdd:libs/same.so:AddProvider:CPU"') == first
    assert identity(tree, '["MyAdd:libs/add.so:AddProvider:CPU"]') == first
    assert identity(tree, '"MyAdd:libs/add.so:AddProvider:HTP"') != first
    assert identity(tree, '"MyAdd:libs/add.so:OtherProvider:CPU"') != first
    both = identity(tree, '"MyAdd:libs/add.so:AddProvider:CPU,MySub:libs/sub.so:SubProvider"')
    assert both != first
    (tree.root / "libs/add.so").write_bytes(b"A library")
    assert identity(tree) != first


@pytest.mark.ep_qnn
def test_the_ep_gets_the_library(factory: Factory) -> None:
    run = epctx("build", cwd=project(factory).root, check=False)
    assert run.code == 5
    assert "option-op_packages-0.so" in run.err, "the EP names the library that it cannot load"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("MyAdd:libs/add.so", "'OPERATOR:LIBRARY:INTERFACE'"),
        ("MyAdd:libs/add.so:Provider:GPU", "'OPERATOR:LIBRARY:INTERFACE'"),
        ("MyAdd:libs/none.so:Provider", "does not exist"),
        ([], "'OPERATOR:LIBRARY:INTERFACE'"),
        (3, "'OPERATOR:LIBRARY:INTERFACE'"),
    ],
)
def test_what_is_no_op_package(value: object, message: str, tmp_path: Path) -> None:
    options = {"soc_model": "60", "op_packages": value}
    with pytest.raises(ConfigError, match=message):
        check_options(find_provider("qnn"), "npu", options, where="o", root=tmp_path)


def test_libraries_are_in_the_sdist(factory: Factory) -> None:
    tree = project(factory)
    target = {"ep": "qnn", "provider-options": {"soc_model": "60", "op_packages": json.loads(ONE)}}
    settings = load_settings({"package": "p", "targets": {"t": target}}, environ={}, state="sdist")
    assert further_inputs(settings, tree.root) == (tree.root / "libs/add.so",)


def test_the_lookup_says_what_the_application_has_to_bring() -> None:
    runtime = {"op_packages": [{"operator": "MyAdd", "interface": "AddProvider"}]}
    variant = Variant(name="v", ep="e", model_file="m", facts=Facts(kind="compiled", artifacts=(), runtime=runtime))
    with pytest.raises(customops.Missing, match="needs the EP's op packages for MyAdd"):
        customops.check_packages(variant, {})
    customops.check_packages(variant, {"op_packages": "MyAdd:/opt/add.so:AddProvider:HTP"})
