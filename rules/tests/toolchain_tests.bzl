"""epctx_toolchain with the interpreter as a file: what is run is the declared one."""

load("@bazel_skylib//lib:unittest.bzl", "analysistest", "asserts")
load("//epctx:defs.bzl", "epctx_context", "epctx_test", "epctx_toolchain")
load(":support.bzl", "action_of", "content_of", "declare_ep", "declare_model", "short_paths")

_OF_A_FILE = {"//command_line_option:extra_toolchains": "//tests:toolchain_of_a_file"}

def _action_test_impl(ctx):
    env = analysistest.begin(ctx)
    action = action_of(env, "EpctxCompile")
    asserts.equals(env, "tests/bin/python", action.argv[0])
    asserts.true(env, "tests/bin/python" in short_paths(action.inputs), "the interpreter is an input")
    return analysistest.end(env)

_action_test = analysistest.make(_action_test_impl, config_settings = _OF_A_FILE)

def _test_test_impl(ctx):
    env = analysistest.begin(ctx)
    target = analysistest.target_under_test(env)
    lines = content_of(env, target.label.name).splitlines()
    asserts.equals(env, [
        "#!/bin/sh",
        "exec './tests/bin/python' -I -S -B 'epctx/private/driver.py' @'tests/%s.sites' -- test @'tests/%s.arguments'" % (
            target.label.name,
            target.label.name,
        ),
    ], [line for line in lines if not line.startswith("# ")], "an isolated interpreter, not one of PATH")
    asserts.true(env, "tests/bin/python" in short_paths(target[DefaultInfo].default_runfiles.files))
    return analysistest.end(env)

_test_test = analysistest.make(_test_test_impl, config_settings = _OF_A_FILE)

def toolchain_test_suite(name):
    """Tests of epctx_toolchain.

    Args:
        name: of the suite.
    """
    epctx_toolchain(
        name = "fake_toolchain_of_a_file",
        testonly = False,
        interpreter = "bin/python",
        runtime = [":runtime_tree"],
    )
    native.toolchain(
        name = "toolchain_of_a_file",
        testonly = False,
        toolchain = ":fake_toolchain_of_a_file",
        toolchain_type = "//epctx:toolchain_type",
    )
    declare_model(name = "toolchain_model")
    declare_ep(name = "toolchain_ep")
    epctx_context(
        name = "toolchain_context",
        testonly = True,
        ep = ":toolchain_ep",
        model = ":toolchain_model",
        tags = ["manual"],
    )
    epctx_test(
        name = "toolchain_subject_test",
        context = ":toolchain_context",
        tags = ["manual"],
    )
    _action_test(name = name + "_action_test", target_under_test = ":toolchain_context")
    _test_test(name = name + "_test_test", target_under_test = ":toolchain_subject_test")
    native.test_suite(
        name = name,
        tests = [":%s_%s_test" % (name, test) for test in ["action", "test"]],
    )
