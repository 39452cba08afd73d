"""epctx_context_group: models compiled together into shared context binaries."""

load("//epctx:providers.bzl", "EpctxContextInfo", "EpctxEpInfo", "EpctxModelInfo")
load("//epctx/private:actions.bzl", "TOOLCHAIN_TYPE", "compile_models", "context_providers")

def _epctx_context_group_impl(ctx):
    models = [target[EpctxModelInfo] for target in ctx.attr.models]
    if len(models) < 2:
        fail("%s: a group has %d model; expected two or more, or epctx_context for one" % (ctx.label, len(models)))
    names = [model.model for model in models]
    for index, name in enumerate(names):
        if name in names[:index]:
            fail("%s: two models of the group are called %r; set model_name" % (ctx.label, name))
    group = ctx.attr.group_name or ctx.label.name
    return context_providers([compile_models(ctx, ctx.label.name, models, ctx.attr.ep[EpctxEpInfo], group = group)])

epctx_context_group = rule(
    implementation = _epctx_context_group_impl,
    doc = """Models compiled together for one EP, so that they share weights: one action, in the order of `models`.

The order is part of the identity. An EP that shares nothing gives each model a binary of its own, and says so.""",
    attrs = {
        "ep": attr.label(
            doc = "The EP with its options.",
            mandatory = True,
            providers = [EpctxEpInfo],
        ),
        "group_name": attr.string(doc = "Name of the group in manifests; the rule's when left out."),
        "models": attr.label_list(
            doc = "The members in the order in which they are compiled.",
            mandatory = True,
            providers = [EpctxModelInfo],
        ),
    },
    provides = [EpctxContextInfo],
    toolchains = [TOOLCHAIN_TYPE],
)
