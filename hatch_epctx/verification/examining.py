"""One examination: what was found so far, package folder by package folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hatch_epctx.errors import VerificationError
from hatch_epctx.manifest import MANIFEST_NAME, read_manifest
from hatch_epctx.verification.bill import bill_problems, read_bill
from hatch_epctx.verification.fitting import verdicts
from hatch_epctx.verification.packages import folder_problems
from hatch_epctx.verification.records import PackageReport, Problem, Report, VariantReport

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from typing import Any

    from hatch_epctx.manifest import Manifest, Variant
    from hatch_epctx.store import Store
    from hatch_epctx.verification.places import Files
    from hatch_epctx.verification.records import Kind

__all__ = ["Examination"]


class Examination:
    """Gathers problems, reports and notes.

    Args:
        store: gives folders to work in.
        fit: ask this machine's EPs which variants they can run.
    """

    def __init__(self, store: Store, *, fit: bool) -> None:
        self.problems: list[Problem] = []
        self.checked: list[str] = []
        self.notes: list[str] = []
        self._packages: list[PackageReport] = []
        self._store = store
        self._fit = fit

    def package(self, files: Files, data: bytes, *, base: str, bills: Sequence[tuple[str, bytes]]) -> None:
        """Examine one package folder.

        Args:
            files: of the folder.
            data: its manifest's content.
            base: path of the folder in its wheel, with a slash at its end; empty where that is not known.
            bills: name and content of each bill of materials.
        """
        where = f"{files.place}/{MANIFEST_NAME}"
        try:
            manifest = read_manifest(data, where=where)
        except VerificationError as error:
            text = f"{error.found}{f'; expected {error.expected}' if error.expected else ''}"
            self.problems.append(Problem(where=error.where or where, reason=error.reason, text=text))
            return
        # A file that is not what one record says is said once, whatever the other records say.
        known = {problem.where for problem in self.problems}
        found = folder_problems(files, manifest, self._store)
        self.problems += [
            item for item in found if not base or item.where.replace(files.place + "/", base) not in known
        ]
        self.checked += ["manifest", "references inside the ONNX files"]
        listed = bool(base) and self._bills(bills, base, manifest)
        self.checked += ["bill of materials"] if listed else []
        verdict: Mapping[str, Mapping[str, Any]] = {}
        if self._fit:
            verdict, note = verdicts(data, self._store)
            self.notes += [note] if note else []
        wrong = {problem.where.rpartition("/")[2] for problem in self.problems}
        variants = [
            _variant(f"{component.name}.{variant.name}", variant, verdict, wrong)
            for component in manifest.components
            for variant in component.variants
        ]
        self._packages.append(
            PackageReport(
                place=files.place,
                name=manifest.package_name,
                version=manifest.package_version,
                variants=tuple(variants),
                bill=listed,
            )
        )

    def _bills(self, bills: Sequence[tuple[str, bytes]], base: str, manifest: Manifest) -> bool:
        """Hold bills of materials against the manifest; whether one lists this package's files."""
        listed = False
        for name, data in bills:
            try:
                components = read_bill(data)
            except ValueError as error:
                self.problems.append(Problem(where=name, reason="bill-malformed", text=str(error)))
                continue
            if any(str(item.get("name", "")).startswith(base) for item in components if item.get("type") == "file"):
                listed = True
                self.problems += bill_problems(name, components, base, manifest)
        return listed

    def report(self, path: str, kind: Kind) -> Report:
        """Everything that was found, each thing once."""
        return Report(
            path=path,
            kind=kind,
            problems=tuple(dict.fromkeys(self.problems)),
            packages=tuple(self._packages),
            checked=tuple(dict.fromkeys(self.checked)),
            notes=tuple(dict.fromkeys(self.notes)),
        )


def _variant(
    name: str, variant: Variant, verdicts: Mapping[str, Mapping[str, Any]], wrong: AbstractSet[str]
) -> VariantReport:
    """The report of a variant; `wrong` are names of files that are not as recorded."""
    facts, verdict = variant.facts, verdicts.get(name, {})
    artifacts = facts.artifacts if facts else ()
    if verdict.get("fits") and (bad := sorted(wrong & {artifact.path for artifact in artifacts})):
        verdict = {"fits": False, "reason": "damaged", "text": f"{bad[0]} is not as recorded"}
    return VariantReport(
        name=name,
        ep=variant.ep,
        device=(facts.device if facts else None) or variant.device,
        identity=facts.identity if facts else None,
        files=len(artifacts),
        size=sum(artifact.size for artifact in artifacts),
        fits=verdict.get("fits"),
        verdict=str(verdict.get("text", "")),
        reason=str(verdict.get("reason", "")),
    )
