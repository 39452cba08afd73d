"""The reference of the Bazel rules is what the .bzl files say, and docs/bazel.md names rules that exist."""

from __future__ import annotations

import re
import subprocess
import sys

from support import REPOSITORY

GENERATOR = REPOSITORY / "rules" / "docs" / "generate.py"


def test_the_reference_is_made_from_the_attributes() -> None:
    done = subprocess.run([sys.executable, GENERATOR, "--check"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_guide_uses_attributes_that_exist() -> None:
    reference = (REPOSITORY / "rules" / "docs" / "rules.md").read_text()
    known = {
        name: set(re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE)) | {"name", "exec_properties"}
        for name, part in re.findall(r"^## (epctx_\w+)\n(.*?)(?=^##? |\Z)", reference, re.MULTILINE | re.DOTALL)
    }
    used = 0
    for page in ("docs/bazel.md", "rules/README.md"):
        for block in re.findall(r"```starlark\n(.*?)```", (REPOSITORY / page).read_text(), re.DOTALL):
            for name, body in re.findall(r"^(epctx_\w+)\(\n(.*?)^\)", block, re.MULTILINE | re.DOTALL):
                attributes = set(re.findall(r"^    (\w+) = ", body, re.MULTILINE))
                assert attributes <= known[name], (page, name, attributes - known[name])
                used += len(attributes)
    assert used > 20
