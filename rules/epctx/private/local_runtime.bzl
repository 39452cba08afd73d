"""epctx_local_runtime: an installed Python environment as a repository, with a toolchain and machine descriptions."""

_VARIABLE = "EPCTX_BAZEL_PYTHON"

_TOOLCHAIN = """\
load("@rules_epctx//epctx:defs.bzl", "epctx_toolchain")

package(default_visibility = ["//visibility:public"])

epctx_toolchain(
    name = "epctx_toolchain",
    interpreter_path = {interpreter},
    runtime = [":runtime"],
)

toolchain(
    name = "toolchain",
    toolchain = ":epctx_toolchain",
    toolchain_type = "@rules_epctx//epctx:toolchain_type",
)
"""

def _epctx_local_runtime_impl(repository_ctx):
    interpreter = repository_ctx.attr.interpreter or repository_ctx.os.environ.get(_VARIABLE, "")
    if not interpreter.startswith("/"):
        fail("epctx_local_runtime %s: interpreter is %r; expected the absolute path of a Python with hatch-epctx[build], here or by --repo_env=%s" % (
            repository_ctx.name,
            interpreter,
            _VARIABLE,
        ))
    helper = repository_ctx.path(repository_ctx.attr._helper)
    run = repository_ctx.execute(
        [interpreter, "-I", "-B", helper, str(repository_ctx.path("."))] +
        ["--machine=" + machine for machine in repository_ctx.attr.machines],
        timeout = 600,
    )
    if run.return_code:
        fail("epctx_local_runtime %s: %s%s" % (repository_ctx.name, run.stdout, run.stderr))
    repository_ctx.file(
        "BUILD.bazel",
        _TOOLCHAIN.format(interpreter = json.encode(interpreter)) + run.stdout,
        executable = False,
    )

epctx_local_runtime = repository_rule(
    implementation = _epctx_local_runtime_impl,
    doc = """An environment of this machine into which hatch-epctx[build] and EPs were installed, as a repository.

It holds `:toolchain` to register; a filegroup for every installed distribution that brings an EP, for
`epctx_ep(runtime = ...)`, named as the distribution; and for every entry of `machines` the file `<ep>-<device>.json`
for `epctx_ep(machine = ...)`. For builds on other machines, make those files there and check them in.""",
    attrs = {
        "interpreter": attr.string(
            doc = "Absolute path of the environment's Python; --repo_env=EPCTX_BAZEL_PYTHON when left out.",
        ),
        "machines": attr.string_list(
            doc = "Describe this machine for these EPs and device kinds, such as [\"openvino:cpu\"].",
        ),
        "_helper": attr.label(
            allow_single_file = True,
            default = "//epctx/private:local_runtime.py",
        ),
    },
    configure = True,
    environ = [_VARIABLE],
    local = True,
)
