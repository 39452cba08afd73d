"""The remote cache that builds in this folder use: whether it answers, what it does, whether it executes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hatch_epctx.config import load_project, read_environment
from hatch_epctx.errors import EpctxError
from hatch_epctx.pipeline import remote_url
from hatch_epctx.remote import examine_remote

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hatch_epctx.store import Store

__all__ = ["lines", "look"]


def look(_store: Store) -> dict[str, Any]:
    """What EPCTX_REMOTE_CACHE names, else the project in the current folder; `name` is empty where neither does."""
    try:
        url, where, executor = _declared()
        if not url:
            return {"name": "", "executor": executor}
        found = examine_remote(url, environ=read_environment(os.environ).remote, where=where)
    except EpctxError as error:
        return {"name": "", "state": "wrong", "message": str(error)}
    return {**found, "where": where, "executor": executor}


def lines(facts: Mapping[str, Any]) -> Iterator[str]:
    """One line, or two; none where there is no remote cache."""
    if facts.get("state") == "wrong":
        yield f"remote cache: {facts['message']}"
    elif facts["name"]:
        if facts["state"] != "answers":
            yield f"remote cache {facts['name']} ({facts['where']}) {facts['state']}: {facts['message']}"
        else:
            yield f"remote cache {facts['name']} ({facts['where']}) answers in {facts['seconds']:.3f} s{_said(facts)}"
        if facts["executor"] == "reapi" and facts["state"] == "answers" and not facts["executes"]:
            yield 'compiles are to run there (executor = "reapi"), and it executes nothing'


def _said(facts: Mapping[str, Any]) -> str:
    words = {"writes": ("takes results", "takes no results"), "executes": ("executes", "executes nothing")}
    told = [yes if facts[name] else no for name, (yes, no) in words.items() if facts[name] is not None]
    told += ["compresses"] if facts["compresses"] else []
    return f"; {', '.join(told)}" if told else ""


def _declared() -> tuple[str, str, str]:
    """URL, its place, executor."""
    root = Path.cwd()
    if (root / "pyproject.toml").is_file():
        try:
            project = load_project(root, environ=os.environ, state="wheel")
        except EpctxError:  # no project of ours, or one whose faults a build will say
            pass
        else:
            return (*remote_url(project), project.settings.executor)
    return read_environment(os.environ).remote_cache or "", "EPCTX_REMOTE_CACHE", "local"
