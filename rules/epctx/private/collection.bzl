"""epctx_contexts: several compiles under one label."""

load("//epctx:providers.bzl", "EpctxContextInfo")
load("//epctx/private:actions.bzl", "context_providers", "contexts_of")

def _epctx_contexts_impl(ctx):
    return context_providers(contexts_of(ctx.attr.contexts))

epctx_contexts = rule(
    implementation = _epctx_contexts_impl,
    doc = "Several compiles under one label, for the attribute `contexts` of epctx_package and epctx_wheel.",
    attrs = {
        "contexts": attr.label_list(
            doc = "The compiles, in the order of preference of their targets.",
            mandatory = True,
            providers = [EpctxContextInfo],
        ),
    },
    provides = [EpctxContextInfo],
)
