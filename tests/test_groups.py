"""Weight-sharing groups: declared, one identity, one compile, one generation. The stub EP stands in for faults."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import onnx
import pytest
from support import Factory, Tree, epctx, save, small_model
from test_config_expand import error_of, variants

from hatch_epctx.config import load_project
from hatch_epctx.errors import CompileError, ModelError
from hatch_epctx.manifest import MANIFEST_NAME, read_manifest
from hatch_epctx.pipeline import Build, Pipeline
from hatch_epctx.process import worker_runs
from hatch_epctx.store import Store
from hatch_epctx.wheel import write_package

if TYPE_CHECKING:
    from pathlib import Path

MODELS = "".join(f'[models.{name}]\nsource = "{name}.onnx"\n' for name in ("a", "b", "c"))
TARGETS = '[targets.x]\nep = "stub"\n[targets.y]\nep = "stub"\n'
GROUP = '[tool.epctx.groups.llm]\nmodels = ["prefill", "decode"]\n'
STUB = '[tool.epctx.targets.stub]\nep = "stub"\nprovider-options = { mode = "share" }\n'


def members(text: str, name: str, **environ: str) -> list[str]:
    found = next(variant for variant in variants(text, **environ) if variant.name == name)
    assert found.group is not None
    assert all(member.group is None for member in found.group.members)
    assert found.group.members[found.group.position(found)].name == name
    return [member.name for member in found.group.members]


class TestDeclaration:
    def test_members_stand_in_the_groups_own_order(self) -> None:
        text = MODELS + TARGETS + '[groups.g]\nmodels = ["c", "a"]\ntargets = ["x"]\n'
        assert members(text, "a.x") == members(text, "c.x") == ["c.x", "a.x"]
        others = {variant.name: variant.group for variant in variants(text)}
        assert others["a.y"] is others["b.x"] is None

    def test_a_glob_takes_models_as_they_are_declared(self) -> None:
        assert members(MODELS + TARGETS + '[groups.g]\nmodels = ["c", "*"]\n', "b.y") == ["c.y", "a.y", "b.y"]

    def test_without_targets_a_group_has_those_that_all_members_have(self) -> None:
        text = MODELS.replace('"b.onnx"\n', '"b.onnx"\ntargets = ["y"]\n') + TARGETS
        text += '[groups.g]\nmodels = ["a", "b"]\n'
        grouped = {variant.name for variant in variants(text) if variant.group}
        assert grouped == {"a.y", "b.y"}

    def test_every_size_of_a_model_is_a_member(self) -> None:
        text = '[models.a]\nsource = "a.onnx"\nmatrix = { n = [1, 64] }\n' + TARGETS + '[groups.g]\nmodels = ["a"]\n'
        assert members(text, "a.x-n64") == ["a.x-n1", "a.x-n64"]

    def test_a_target_with_a_matrix_has_a_group_for_each_value(self) -> None:
        text = MODELS + '[targets.q]\nep = "qnn"\nmatrix = { soc_model = [60, 88] }\n'
        text += '[groups.g]\nmodels = ["a", "b"]\ntargets = ["q"]\n'
        assert members(text, "a.q-60") == ["a.q-60", "b.q-60"]
        assert members(text, "b.q-88") == ["a.q-88", "b.q-88"]

    @pytest.mark.parametrize("environ", [{"EPCTX_MODELS": "b"}, {"EPCTX_TARGETS": "x"}])
    def test_selection_leaves_the_members_as_they_are(self, environ: dict[str, str]) -> None:
        assert members(MODELS + TARGETS + '[groups.g]\nmodels = ["a", "b"]\n', "b.x", **environ) == ["a.x", "b.x"]

    @pytest.mark.parametrize(
        ("group", "message"),
        [
            ('models = ["a"]', "tool.epctx.groups.g.models: the group has one member, 'a'; expected at least two"),
            ('models = ["a", "no"]', "tool.epctx.groups.g.models[1]: 'no' matches no model"),
            ('models = ["a", "b"]\ntargets = ["z"]', "tool.epctx.groups.g.targets[0]: 'z' matches no target"),
            ('models = ["a", "b"]\n[groups.h]\nmodels = ["b", "c"]', "'b' is in the group 'g' too, for the target 'x'"),
        ],
    )
    def test_a_group_that_cannot_be_is_refused(self, group: str, message: str) -> None:
        assert message in error_of(f"{MODELS}{TARGETS}[groups.g]\n{group}\n")

    def test_a_member_without_the_groups_target_is_refused(self) -> None:
        text = MODELS.replace('"b.onnx"\n', '"b.onnx"\ntargets = ["y"]\n') + TARGETS
        message = error_of(text + '[groups.g]\nmodels = ["a", "b"]\ntargets = ["x"]\n')
        assert "the member 'b' is not compiled for the target 'x'. Add it to the targets of 'b'" in message

    def test_members_without_a_common_target_are_refused(self) -> None:
        text = MODELS.replace('"a.onnx"\n', '"a.onnx"\ntargets = ["x"]\n')
        text = text.replace('"b.onnx"\n', '"b.onnx"\ntargets = ["y"]\n') + TARGETS
        assert "no target is common to a, b" in error_of(text + '[groups.g]\nmodels = ["a", "b"]\n')

    def test_embedding_and_sharing_exclude_each_other(self) -> None:
        text = MODELS + '[targets.x]\nep = "stub"\nembed = true\n[groups.g]\nmodels = ["a", "b"]\n'
        assert error_of(text).startswith("tool.epctx.targets.x.embed: the group 'g' shares context binaries")


def project(factory: Factory, table: str = GROUP + STUB, **settings: Any) -> Tree:
    return factory.project(table, models=("prefill", "decode"), **settings)


def pipeline(tree: Tree, store: Path, **environ: str) -> Pipeline:
    project = load_project(tree.root, environ={**os.environ, **environ}, state="wheel")
    return Pipeline(project, Store(store))


def build(tree: Tree, store: Path, **environ: str) -> Build:
    return pipeline(tree, store, **environ).build()


class TestBuild:
    def test_one_compile_gives_one_generation_that_every_member_takes_its_part_of(
        self, factory: Factory, tmp_path: Path
    ) -> None:
        before = worker_runs().get("share", 0)
        with build(project(factory), tmp_path / "store") as built:
            built.raise_for_failures()
            first, second = built.entries
            assert worker_runs()["share"] == before + 1
            assert first.generation is not None
            assert first.generation is second.generation
            assert first.planned.identity == second.planned.identity
            contexts = [[item.path for item in entry.artifacts if item.role == "context"] for entry in built.entries]
            assert contexts[0] == contexts[1]
            assert len(contexts[0]) == 1
            models = [[item.path for item in entry.artifacts if item.role == "model"] for entry in built.entries]
            assert models == [["model-0_ctx.onnx"], ["model-1_ctx.onnx"]]
            assert first.facts["shared"] is True
            plan = write_package(built, tmp_path / "package", version="1")
        assert len(list((tmp_path / "package").glob("*.bin"))) == 1
        facts = [component.variants[0].facts for component in plan.manifest.components]
        assert all(found is not None for found in facts)
        group = {"name": "llm", "members": ["prefill.stub", "decode.stub"], "shared": True}
        assert [dict(found.group) for found in facts if found] == [group, group]
        assert read_manifest((tmp_path / "package" / MANIFEST_NAME).read_bytes()) == plan.manifest

    def test_a_warm_store_starts_no_worker(self, factory: Factory, tmp_path: Path) -> None:
        tree = project(factory)
        build(tree, tmp_path / "store").close()
        before = worker_runs()
        with build(tree, tmp_path / "store") as built:
            assert [entry.status for entry in built.entries] == ["hit", "hit"]
        assert worker_runs() == before

    @pytest.mark.parametrize("changed", ["prefill", "decode"])
    def test_case_19_a_change_in_any_member_rebuilds_the_group(
        self, factory: Factory, tmp_path: Path, changed: str
    ) -> None:
        tree = project(factory)
        with build(tree, tmp_path / "store") as built:
            old = built.entries[0].planned.identity
        tree.model(changed, seed=77)
        with build(tree, tmp_path / "store") as built:
            built.raise_for_failures()
            assert [entry.status for entry in built.entries] == ["compiled", "compiled"]
            assert built.entries[0].planned.identity != old

    def test_one_selected_member_has_the_groups_identity_and_ships_alone(
        self, factory: Factory, tmp_path: Path
    ) -> None:
        tree = project(factory)
        with build(tree, tmp_path / "store", EPCTX_MODELS="decode") as built:
            built.raise_for_failures()
            (entry,) = built.entries
            identity = entry.planned.identity
            write_package(built, tmp_path / "package", version="1")
        assert sorted(path.suffix for path in (tmp_path / "package").iterdir()) == [".bin", ".json", ".onnx"]
        with build(tree, tmp_path / "store") as built:
            assert [entry.status for entry in built.entries] == ["hit", "hit"]
            assert built.entries[0].planned.identity == identity

    def test_order_and_members_count_and_names_do_not(self, factory: Factory, tmp_path: Path) -> None:
        tree = project(factory)
        (first, _) = pipeline(tree, tmp_path / "store").prepare()
        tree.write(_models("prefill", "decode") + GROUP.replace('"prefill", "decode"', '"decode", "prefill"') + STUB)
        (swapped, _) = pipeline(tree, tmp_path / "store").prepare()
        tree.write(_models("prefill", "decode") + STUB)
        (alone, _) = pipeline(tree, tmp_path / "store").prepare()
        identities = {item.identity.digest for item in (first, swapped, alone) if item.identity}
        assert len(identities) == 3
        renamed = f'[tool.epctx.models.one]\nsource = "models/prefill.onnx"\n{_models("decode")}'
        tree.write(renamed + GROUP.replace("prefill", "one").replace("llm", "other") + STUB)
        (other, _) = pipeline(tree, tmp_path / "store").prepare()
        assert other.identity == first.identity

    def test_a_group_that_fails_publishes_nothing_and_stops_no_other_target(
        self, factory: Factory, tmp_path: Path
    ) -> None:
        other = '[tool.epctx.targets.alone]\nep = "stub"\n'
        group = f'{GROUP}targets = ["stub"]\n'
        tree = project(factory, group + STUB.replace("share", "crash-before") + other)
        with build(tree, tmp_path / "store") as built:
            status = {entry.variant.name: entry.status for entry in built.entries}
            assert status == {
                "prefill.stub": "failed",
                "prefill.alone": "compiled",
                "decode.stub": "failed",
                "decode.alone": "compiled",
            }
            with pytest.raises(CompileError) as caught:
                built.raise_for_failures()
        assert str(caught.value).count("exit status 3") == 1, "one failure, said once"
        assert caught.value.where == "prefill.stub + decode.stub"
        assert len(list((tmp_path / "store" / "v1" / "generations").iterdir())) == 2

    def test_a_members_own_fault_names_it(self, factory: Factory, tmp_path: Path) -> None:
        tree = project(factory)
        tree.write(
            f'[tool.epctx.models.prefill]\nsource = "models/prefill.onnx"\n'
            f'[tool.epctx.models.decode]\nsource = "models/decode.onnx"\n'
            f'free-dimensions = {{ no = 1 }}\nprepare = ["infer-shapes"]\n{GROUP}{STUB}'
        )
        with build(tree, tmp_path / "store") as built, pytest.raises(ModelError) as caught:
            built.raise_for_failures()
        assert caught.value.where == "decode.stub"
        assert caught.value.reason == "unknown-dimension"

    def test_two_members_with_one_partition_are_refused(self, factory: Factory, tmp_path: Path) -> None:
        with build(project(factory, GROUP + STUB.replace("share", "share-clash")), tmp_path / "store") as built:
            with pytest.raises(CompileError, match="two members name the same partition 'stub_0'") as caught:
                built.raise_for_failures()
            assert caught.value.reason == "invalid-output"

    def test_external_data_of_one_name_in_two_members_does_not_clash(self, factory: Factory, tmp_path: Path) -> None:
        tree = project(factory)
        for seed, name in enumerate(("prefill", "decode"), start=1):
            save(small_model(seed=seed, weights="weights.bin"), tree.root / "models" / name / "model.onnx")
        declared = "".join(
            f'[tool.epctx.models.{name}]\nsource = "models/{name}/model.onnx"\n' for name in ("prefill", "decode")
        )
        tree.write(f"{declared}{GROUP}{STUB}")
        with build(tree, tmp_path / "store") as built:
            built.raise_for_failures()

    def test_a_locked_group_is_built_as_it_was_locked(self, factory: Factory) -> None:
        tree = project(factory)
        epctx("lock", cwd=tree.root)
        epctx("build", "--locked", "--out", tree.root / "one", cwd=tree.root)
        other = {"EPCTX_CACHE_DIR": str(tree.root / "other-store")}
        epctx("build", "--locked", "--out", tree.root / "two", cwd=tree.root, env=other)
        one, two = ({path.name: path.read_bytes() for path in (tree.root / out).iterdir()} for out in ("one", "two"))
        assert one == two
        tree.model("decode", seed=9)
        run = epctx("build", "--locked", cwd=tree.root, check=False)
        assert run.code == 8
        assert "prefill.stub: member 2 of the group: the model's ONNX file changed" in run.err

    def test_an_ep_that_does_not_share_says_so(self, factory: Factory) -> None:
        tree = project(factory, GROUP + '[tool.epctx.targets.stub]\nep = "stub"\n')
        run = epctx("build", "--out", tree.root / "out", cwd=tree.root)
        line = "warning: the group llm shares nothing: the stub EP wrote a context binary for each of its members"
        assert line in run.err
        manifest = json.loads((tree.root / "out" / MANIFEST_NAME).read_text())
        found = manifest["components"]["decode"]["variants"]["stub"]["executor_info"]["epctx"]
        assert found["group"]["shared"] is False
        assert len(list((tree.root / "out").glob("*.bin"))) == 2

    def test_plan_explain_and_inspect_know_groups(self, factory: Factory) -> None:
        tree = project(factory)
        epctx("build", "--out", tree.root / "out", cwd=tree.root)
        shown = epctx("inspect", "-v", tree.root / "out").out
        assert shown.count("group llm shares: prefill.stub, decode.stub") == 2
        planned = epctx("plan", "--json", cwd=tree.root).json["variants"]
        assert {item["group"] for item in planned} == {"llm"}
        assert len({item["identity"] for item in planned}) == 1
        tree.model("decode", seed=9)
        assert "member 2 of the group: the model's ONNX file changed" in epctx("plan", cwd=tree.root).out
        assert "member 2 of the group" in epctx("explain", "prefill.stub", cwd=tree.root).out


def _models(*names: str) -> str:
    return "".join(f'[tool.epctx.models.{name}]\nsource = "models/{name}.onnx"\n' for name in names)


def references(path: Path) -> list[str]:
    """What the EPContext nodes of the ONNX file refer to."""
    model = onnx.load(path, load_external_data=False)
    return [
        attribute.s.decode()
        for node in model.graph.node
        for attribute in node.attribute
        if attribute.name == "ep_cache_context"
    ]


def partitions(path: Path) -> list[str]:
    model = onnx.load(path, load_external_data=False)
    return [
        attribute.s.decode()
        for node in model.graph.node
        for attribute in node.attribute
        if attribute.name == "partition_name"
    ]


QNN = '[tool.epctx.targets.snapdragon]\nep = "qnn"\nprovider-options = { soc_model = "60" }\n'


@pytest.mark.ep_qnn
class TestQnn:
    def test_case_19_one_binary_ships_and_every_member_refers_to_it(self, factory: Factory, tmp_path: Path) -> None:
        tree = project(factory, GROUP + QNN)
        with build(tree, tmp_path / "store") as built:
            built.raise_for_failures()
            facts = [entry.facts for entry in built.entries]
            write_package(built, tmp_path / "package", version="1")
        (binary,) = (tmp_path / "package").glob("*.bin")
        models = sorted((tmp_path / "package").glob("*_ctx.onnx"))
        assert [references(model) for model in models] == [[binary.name], [binary.name]]
        # Graphs of one context are told apart by this name: two pieces of one model must not clash.
        names = [name for model in models for name in partitions(model)]
        assert len(set(names)) == 2
        assert all(name.encode() in binary.read_bytes() for name in names)
        assert all(found["shared"] for found in facts)
        assert all(found["load_check"].startswith("not run here: the x86 simulator") for found in facts)

    def test_a_check_in_the_simulator_is_not_run(self, factory: Factory, tmp_path: Path) -> None:
        tree = project(factory, GROUP + QNN)
        table = (tree.root / "pyproject.toml").read_text().replace('.onnx"\n', '.onnx"\ncheck = {}\n')
        (tree.root / "pyproject.toml").write_text(table)
        with build(tree, tmp_path / "store") as built:
            built.raise_for_failures()
            for entry in built.entries:
                assert entry.check is not None
                assert entry.check["outcome"] == "not-run"
                assert "x86 simulator" in entry.check["why"]

    def test_the_lookup_does_not_open_shared_binaries_in_the_simulator(self, factory: Factory, tmp_path: Path) -> None:
        from hatch_epctx import runtime
        from hatch_epctx.errors import LookupFailure

        with build(project(factory, GROUP + QNN), tmp_path / "store") as built:
            built.raise_for_failures()
            write_package(built, tmp_path / "package", version="1")
        with pytest.raises(LookupFailure) as caught:
            runtime.open(tmp_path / "package").session("prefill")
        assert caught.value.reason == "not-simulated"

    def test_a_group_is_compiled_to_the_same_bytes_again(self, factory: Factory, tmp_path: Path) -> None:
        found = []
        for store in ("one", "two"):
            with build(project(factory, GROUP + QNN, name=store), tmp_path / store) as built:
                built.raise_for_failures()
                found.append([item.digest for entry in built.entries for item in entry.artifacts])
        assert found[0] == found[1]

    def test_equal_weights_are_shared(self, factory: Factory, tmp_path: Path) -> None:
        """Two sizes of one model: their common binary is smaller than the two that they get by themselves."""
        sizes = {}
        for name, group in (("shared", GROUP), ("alone", "")):
            tree = project(factory, group + QNN, name=name)
            for model, size in (("prefill", 16), ("decode", 8)):
                tree.model(model, seed=1, channels=256, size=size)
            with build(tree, tmp_path / name) as built:
                built.raise_for_failures()
                contexts = {
                    item.digest: item.size
                    for entry in built.entries
                    for item in entry.artifacts
                    if item.role == "context"
                }
                sizes[name] = sum(contexts.values())
        assert sizes["shared"] < sizes["alone"]


@pytest.mark.ep_openvino
def test_members_are_prepared_and_checked_each_by_itself(factory: Factory, tmp_path: Path) -> None:
    tree = project(factory, GROUP + '[tool.epctx.targets.cpu]\nep = "openvino"\n')
    more = 'prepare = ["infer-shapes"]\ncheck = { rtol = 0.1, atol = 0.1 }\n'
    table = (tree.root / "pyproject.toml").read_text().replace('.onnx"\n', f'.onnx"\n{more}')
    (tree.root / "pyproject.toml").write_text(table)
    with build(tree, tmp_path / "store") as built:
        built.raise_for_failures()
        assert [entry.check and entry.check["outcome"] for entry in built.entries] == ["passed", "passed"]
        prepared = [entry.prepared for entry in built.entries]
        assert all(path is not None and path.is_file() for path in prepared)
        assert len(set(prepared)) == 2
    runs = worker_runs()
    with build(tree, tmp_path / "store") as built:
        assert [entry.status for entry in built.entries] == ["hit", "hit"]
        assert [entry.check and entry.check["outcome"] for entry in built.entries] == ["passed", "passed"]
    assert worker_runs() == runs


@pytest.mark.ep_openvino
def test_a_member_that_fails_its_demands_stops_no_other(factory: Factory, tmp_path: Path) -> None:
    tree = project(factory, GROUP + '[tool.epctx.targets.cpu]\nep = "openvino"\n')
    check = "check = { rtol = 0, atol = 0, cosine = 1 }\n"
    table = (tree.root / "pyproject.toml").read_text().replace('decode.onnx"\n', f'decode.onnx"\n{check}')
    (tree.root / "pyproject.toml").write_text(table)
    with build(tree, tmp_path / "store") as built:
        assert [entry.status for entry in built.entries] == ["compiled", "failed"]
        error = built.entries[1].error
        assert error is not None
        assert error.reason == "check-failed"


@pytest.mark.ep_openvino
def test_openvino_compiles_groups_and_shares_nothing(factory: Factory, tmp_path: Path) -> None:
    tree = project(factory, GROUP + '[tool.epctx.targets.cpu]\nep = "openvino"\n')
    with build(tree, tmp_path / "store") as built:
        built.raise_for_failures()
        assert [entry.facts["shared"] for entry in built.entries] == [False, False]
        assert [entry.facts["load_check"] for entry in built.entries] == ["passed", "passed"]
        write_package(built, tmp_path / "package", version="1")
    assert len(list((tmp_path / "package").glob("*.bin"))) == 2
