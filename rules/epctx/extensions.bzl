"""Repositories for bzlmod."""

load("//epctx/private:local_runtime.bzl", "epctx_local_runtime")

def _epctx_impl(module_ctx):
    for module in module_ctx.modules:
        for tag in module.tags.local_runtime:
            epctx_local_runtime(
                name = tag.name,
                interpreter = tag.interpreter,
                machines = tag.machines,
            )

epctx = module_extension(
    implementation = _epctx_impl,
    doc = "Runtimes as repositories.",
    tag_classes = {
        "local_runtime": tag_class(
            attrs = {
                "interpreter": attr.string(
                    doc = "Absolute path of the environment's Python; --repo_env=EPCTX_BAZEL_PYTHON when left out.",
                ),
                "machines": attr.string_list(
                    doc = "Describe this machine for these EPs and device kinds, such as [\"openvino:cpu\"].",
                ),
                "name": attr.string(
                    doc = "Name of the repository.",
                    mandatory = True,
                ),
            },
            doc = "See epctx_local_runtime.",
        ),
    },
)
