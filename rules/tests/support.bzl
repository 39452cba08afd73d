"""Targets and helpers that the analysis tests share."""

load("@bazel_skylib//lib:unittest.bzl", "analysistest")
load("//epctx:defs.bzl", "epctx_ep", "epctx_model")

def declare_model(name, src = "models/detector.onnx", **kwargs):
    epctx_model(
        name = name,
        testonly = True,
        src = src,
        tags = ["manual"],
        **kwargs
    )

def _with_runfiles_impl(ctx):
    return [DefaultInfo(files = depset(ctx.files.srcs), runfiles = ctx.runfiles(ctx.files.data))]

with_runfiles = rule(
    implementation = _with_runfiles_impl,
    attrs = {
        "data": attr.label_list(allow_files = True),
        "srcs": attr.label_list(allow_files = True),
    },
)

def declare_ep(name, **kwargs):
    epctx_ep(
        name = name,
        testonly = True,
        ep = kwargs.pop("ep", "qnn"),
        runtime = [":ep_tree"],
        tags = ["manual"],
        **kwargs
    )

def action_of(env, mnemonic):
    """The only action of this mnemonic; others of it fail the test.

    Args:
        env: of an analysis test.
        mnemonic: of the action.

    Returns:
        The action.
    """
    found = [action for action in analysistest.target_actions(env) if action.mnemonic == mnemonic]
    if len(found) != 1:
        fail("%d actions %s; expected one" % (len(found), mnemonic))
    return found[0]

def content_of(env, suffix):
    """Content of the file with this suffix that the target writes.

    Args:
        env: of an analysis test.
        suffix: of the file's name.

    Returns:
        Its text.
    """
    for action in analysistest.target_actions(env):
        if action.mnemonic in ("FileWrite", "ParameterFileWrite") and action.outputs.to_list()[0].basename.endswith(suffix):
            return action.content
    fail("no file %s is written" % suffix)

def short_paths(files):
    """Short paths in order.

    Args:
        files: depset of File.

    Returns:
        A sorted list.
    """
    return sorted([file.short_path for file in files.to_list()])
