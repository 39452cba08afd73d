"""epctx_test: a compile against the CPU EP."""

load("//epctx:providers.bzl", "EpctxContextInfo")
load(
    "//epctx/private:actions.bzl",
    "TOOLCHAIN_TYPE",
    "contexts_of",
    "model_arguments",
    "site_in_runfiles",
    "toolchain_of",
)

_SCRIPT = """\
#!/bin/sh
# The driver's arguments stand in a file, one a line.
exec {interpreter} -I -S -B {driver} @{sites} -- test @{arguments}
"""

def _epctx_test_impl(ctx):
    contexts = contexts_of([ctx.attr.context])
    if len(contexts) != 1:
        fail("%s: context: %s holds %d compiles; expected one" % (
            ctx.label,
            ctx.attr.context.label,
            len(contexts),
        ))
    context = contexts[0]
    toolchain = toolchain_of(ctx)
    trees = depset(transitive = [toolchain.runtime] + ([context.ep.runtime] if context.ep else []))

    sites = ctx.actions.args()
    sites.set_param_file_format("multiline")
    sites.add_all(trees, map_each = site_in_runfiles, uniquify = True, format_each = "--site=%s")
    sites_file = ctx.actions.declare_file(ctx.label.name + ".sites")
    ctx.actions.write(sites_file, sites)

    lines, files = model_arguments(context)
    lines += ["--context", context.manifest.short_path, context.folder.short_path]
    for flag, text in [("--rtol", ctx.attr.rtol), ("--atol", ctx.attr.atol), ("--cosine", ctx.attr.cosine)]:
        if text:
            lines += [flag, text]
    lines += ["--seed", str(ctx.attr.seed)]
    if ctx.file.inputs:
        lines += ["--inputs", ctx.file.inputs.short_path]
        files = files + [ctx.file.inputs]
    if ctx.attr.allow_not_run:
        lines.append("--allow-not-run")
    arguments = ctx.actions.declare_file(ctx.label.name + ".arguments")
    ctx.actions.write(arguments, "".join([line + "\n" for line in lines]))

    # With a folder in front, or the shell would look for it in PATH.
    interpreter = "./" + toolchain.interpreter.short_path if toolchain.interpreter else toolchain.interpreter_path
    script = ctx.actions.declare_file(ctx.label.name)
    ctx.actions.write(
        script,
        _SCRIPT.format(
            arguments = _quoted(arguments.short_path),
            driver = _quoted(toolchain.driver.short_path),
            interpreter = _quoted(interpreter),
            sites = _quoted(sites_file.short_path),
        ),
        is_executable = True,
    )
    direct = files + [context.manifest, context.folder, toolchain.driver, sites_file, arguments]
    if toolchain.interpreter:
        direct.append(toolchain.interpreter)
    return [DefaultInfo(
        executable = script,
        runfiles = ctx.runfiles(files = direct, transitive_files = trees),
    )]

def _quoted(text):
    return "'" + text.replace("'", "'\\''") + "'"

epctx_test = rule(
    implementation = _epctx_test_impl,
    doc = """Runs a compile and its source on the CPU EP; outputs must agree within the tolerance, each element within
`atol + rtol * |expected|`. Inputs are generated from the seed, unless `inputs` names some.""",
    attrs = {
        "allow_not_run": attr.bool(
            doc = "Pass where the EP's device is not on the machine. A test that could not run fails otherwise.",
        ),
        "atol": attr.string(
            default = "0.01",
            doc = "Absolute tolerance.",
        ),
        "context": attr.label(
            doc = "The compile: an epctx_context or an epctx_context_group.",
            mandatory = True,
            providers = [EpctxContextInfo],
        ),
        "cosine": attr.string(doc = "Lowest cosine similarity of a floating-point output, such as 0.99."),
        "inputs": attr.label(
            allow_single_file = [".npz"],
            doc = "Inputs by name: several samples along a further first axis, or one.",
        ),
        "rtol": attr.string(
            default = "0.05",
            doc = "Relative tolerance.",
        ),
        "seed": attr.int(doc = "Of generated inputs."),
    },
    test = True,
    toolchains = [TOOLCHAIN_TYPE],
)
