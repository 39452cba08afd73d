"""epctx_context: one model compiled for one execution provider."""

load("//epctx:providers.bzl", "EpctxContextInfo", "EpctxEpInfo", "EpctxModelInfo")
load("//epctx/private:actions.bzl", "TOOLCHAIN_TYPE", "compile_models", "context_providers")

def _epctx_context_impl(ctx):
    context = compile_models(ctx, ctx.label.name, [ctx.attr.model[EpctxModelInfo]], ctx.attr.ep[EpctxEpInfo])
    return context_providers([context])

epctx_context = rule(
    implementation = _epctx_context_impl,
    doc = """One model compiled for one EP: one action.

Its outputs are a flat folder `<name>.epctx` with the EPContext model and the files that it refers to, named by
content, and the manifest `<name>.epctx.json` with identity, digests and facts of the compile. The bytes are those
that the hatch plugin makes for the same identity.""",
    attrs = {
        "ep": attr.label(
            doc = "The EP with its options.",
            mandatory = True,
            providers = [EpctxEpInfo],
        ),
        "model": attr.label(
            doc = "The model.",
            mandatory = True,
            providers = [EpctxModelInfo],
        ),
    },
    provides = [EpctxContextInfo],
    toolchains = [TOOLCHAIN_TYPE],
)
