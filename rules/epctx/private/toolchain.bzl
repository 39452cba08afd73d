"""epctx_toolchain: what runs the actions."""

load("//epctx:providers.bzl", "EpctxToolchainInfo")

def _epctx_toolchain_impl(ctx):
    if bool(ctx.file.interpreter) == bool(ctx.attr.interpreter_path):
        fail("%s: give either interpreter or interpreter_path" % ctx.label)
    if ctx.attr.interpreter_path and not ctx.attr.interpreter_path.startswith("/"):
        fail("%s: interpreter_path is %r; expected an absolute path" % (ctx.label, ctx.attr.interpreter_path))
    runtime = depset(transitive = [
        depset(transitive = [target[DefaultInfo].files, target[DefaultInfo].default_runfiles.files])
        for target in ctx.attr.runtime
    ])
    info = EpctxToolchainInfo(
        driver = ctx.file.driver,
        interpreter = ctx.file.interpreter,
        interpreter_path = ctx.attr.interpreter_path,
        runtime = runtime,
    )
    return [
        platform_common.ToolchainInfo(epctx = info),
        DefaultInfo(files = depset([ctx.file.driver])),
    ]

epctx_toolchain = rule(
    implementation = _epctx_toolchain_impl,
    doc = """What runs the actions: a Python interpreter, ONNX Runtime with hatch-epctx and all they need, and the driver.

The trees are inputs of every action, so that another version of any of them is another key. Register it with
`toolchain(toolchain_type = "@rules_epctx//epctx:toolchain_type", ...)`; `epctx_local_runtime` writes both.""",
    attrs = {
        "driver": attr.label(
            allow_single_file = [".py"],
            default = "//epctx/private:driver.py",
            doc = "The program that an action starts. Leave it as it is, unless you debug it.",
        ),
        "interpreter": attr.label(
            allow_single_file = True,
            cfg = "exec",
            doc = "The Python interpreter as a file: 3.11 or later, able to start from where it lies.",
        ),
        "interpreter_path": attr.string(
            doc = "Absolute path of a Python interpreter that every executing machine has. Its version is not in the " +
                  "key of an action by itself: name it in the path, as /usr/bin/python3.11 does.",
        ),
        "runtime": attr.label_list(
            allow_files = True,
            cfg = "exec",
            doc = "Trees of site-packages with hatch-epctx[build] and all it needs, as files whose paths have a " +
                  "folder `site-packages`: filegroups, or the libraries of rules_python's pip repositories.",
            mandatory = True,
        ),
    },
)
