"""Repositories for Bazel without bzlmod (WORKSPACE)."""

load("@bazel_tools//tools/build_defs/repo:http.bzl", "http_archive")
load("//epctx/private:local_runtime.bzl", _epctx_local_runtime = "epctx_local_runtime")

epctx_local_runtime = _epctx_local_runtime

_SKYLIB_SHA256 = "66ffd9315665bfaafc96b52278f57c7e2dd09f5ede279ea6d39b2be471e7e3aa"
_SKYLIB_URLS = [
    "https://mirror.bazel.build/github.com/bazelbuild/bazel-skylib/releases/download/1.4.2/bazel-skylib-1.4.2.tar.gz",
    "https://github.com/bazelbuild/bazel-skylib/releases/download/1.4.2/bazel-skylib-1.4.2.tar.gz",
]

def rules_epctx_dependencies():
    """What the rules need, unless it is defined already."""
    if not native.existing_rule("bazel_skylib"):
        http_archive(
            name = "bazel_skylib",
            sha256 = _SKYLIB_SHA256,
            urls = _SKYLIB_URLS,
        )
