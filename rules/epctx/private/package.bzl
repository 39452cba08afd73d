"""epctx_package: the package folder of compiles."""

load("//epctx:providers.bzl", "EpctxPackageInfo")
load(
    "//epctx/private:actions.bzl",
    "PACKING_ATTRS",
    "TOOLCHAIN_TYPE",
    "add_contexts",
    "check_variants",
    "contexts_of",
    "run_driver",
    "shipped_sources",
)

def _epctx_package_impl(ctx):
    contexts = contexts_of(ctx.attr.contexts) + shipped_sources(ctx)
    if not contexts:
        fail("%s: neither contexts nor sources are given: the folder would be empty" % ctx.label)
    check_variants(ctx, contexts)
    folder = ctx.actions.declare_directory(ctx.attr.package.replace(".", "/") + "/_epctx")
    args = ctx.actions.args()
    args.add("package")
    args.use_param_file("@%s")
    args.set_param_file_format("multiline")
    inputs = add_contexts(args, contexts)
    args.add("--package", ctx.attr.package)
    args.add("--version", ctx.attr.version)
    args.add_all("--out", [folder], expand_directories = False)
    run_driver(
        ctx,
        args,
        inputs = inputs,
        outputs = [folder],
        mnemonic = "EpctxPackage",
        progress_message = "Packing %d compiles for %s" % (len(contexts), ctx.attr.package),
    )
    return [
        DefaultInfo(files = depset([folder]), runfiles = ctx.runfiles([folder])),
        EpctxPackageInfo(folder = folder, package = ctx.attr.package),
    ]

epctx_package = rule(
    implementation = _epctx_package_impl,
    doc = """The package folder `<package>/_epctx` of compiles, beside the sources of its Python package: as `data` of a
Python library it lies in the runfiles where `hatch_epctx.runtime.open("<package>")` looks. The plugin's own packer
makes it, and it has the plugin's bytes.""",
    attrs = PACKING_ATTRS,
    provides = [EpctxPackageInfo],
    toolchains = [TOOLCHAIN_TYPE],
)
