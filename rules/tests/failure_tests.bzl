"""What the rules refuse, and in which words."""

load("@bazel_skylib//lib:unittest.bzl", "analysistest", "asserts")
load(
    "//epctx:defs.bzl",
    "epctx_context",
    "epctx_context_group",
    "epctx_contexts",
    "epctx_package",
    "epctx_test",
    "epctx_toolchain",
    "epctx_wheel",
)
load(":support.bzl", "declare_ep", "declare_model")

def _failure_test_impl(ctx):
    env = analysistest.begin(ctx)
    asserts.expect_failure(env, ctx.attr.message)
    return analysistest.end(env)

_failure_test = analysistest.make(
    _failure_test_impl,
    attrs = {"message": attr.string(mandatory = True)},
    expect_failure = True,
)

def _refused(name, message):
    _failure_test(name = name + "_test", message = message, target_under_test = ":" + name)
    return ":%s_test" % name

def failure_test_suite(name):
    """Tests of refusals.

    Args:
        name: of the suite.
    """
    common = {"tags": ["manual"], "testonly": True}
    declare_model(name = "refused_outside", data = ["outside.bin"])
    declare_model(name = "refused_size", free_dimensions = {"batch": "two"})
    declare_model(name = "refused_shape", input_shapes = {"x": ["1", "-2"]})
    declare_model(
        name = "refused_module",
        custom_ops_modules = ["libs/parts.so"],
    )
    native.filegroup(
        name = "refused_two_libraries",
        testonly = True,
        srcs = [
            "ops/libfirst.so",
            "ops/libsecond.so",
        ],
        tags = ["manual"],
    )
    declare_model(name = "refused_libraries", custom_ops = [":refused_two_libraries"])
    declare_ep(name = "refused_option", option_files = {":refused_two_libraries": "op_packages"})
    declare_ep(
        name = "refused_twice",
        option_files = {"outside.bin": "backend_path"},
        provider_options = {"backend_path": "x"},
    )
    epctx_toolchain(name = "refused_toolchain", runtime = ["machine.json"], **common)
    epctx_toolchain(
        name = "refused_relative",
        interpreter_path = "bin/python3",
        runtime = ["machine.json"],
        **common
    )
    declare_model(name = "refused_model", model_name = "detector")
    declare_model(name = "refused_other", model_name = "detector")
    declare_ep(name = "refused_ep", target_name = "phone")
    epctx_context(name = "refused_one", ep = ":refused_ep", model = ":refused_model", **common)
    epctx_context(name = "refused_two", ep = ":refused_ep", model = ":refused_other", **common)
    epctx_context_group(name = "refused_alone", ep = ":refused_ep", models = [":refused_model"], **common)
    epctx_context_group(
        name = "refused_names",
        ep = ":refused_ep",
        models = [
            ":refused_model",
            ":refused_other",
        ],
        **common
    )
    epctx_package(name = "refused_empty", package = "acme_a", version = "1", **common)
    both = [
        ":refused_one",
        ":refused_two",
    ]
    epctx_package(name = "refused_package", contexts = both, package = "acme_b", version = "1", **common)
    epctx_contexts(name = "refused_contexts", contexts = both, **common)
    epctx_wheel(
        name = "refused_wheel",
        contexts = both,
        distribution = "acme",
        package = "acme_c",
        version = "1",
        **common
    )
    epctx_test(name = "refused_subject_test", context = ":refused_contexts", tags = ["manual"])
    native.test_suite(
        name = name,
        tests = [
            _refused("refused_outside", "external data tests/outside.bin lies outside the model's folder"),
            _refused("refused_size", "free_dimensions: \"batch\" is \"two\"; expected a whole number above zero"),
            _refused("refused_shape", "input_shapes: \"x\" has the size \"-2\"; expected a whole number, or -1"),
            _refused("refused_module", "custom_ops_modules: \"libs/parts.so\" is no import name"),
            _refused(
                "refused_libraries",
                "//tests:refused_two_libraries has 2 files; expected one shared library",
            ),
            _refused("refused_option", "has 2 files; expected one file or folder for the option \"op_packages\""),
            _refused("refused_twice", "the option \"backend_path\" stands in provider_options and in option_files"),
            _refused("refused_toolchain", "give either interpreter or interpreter_path"),
            _refused("refused_relative", "interpreter_path is \"bin/python3\"; expected an absolute path"),
            _refused("refused_alone", "a group has 1 model; expected two or more"),
            _refused("refused_names", "two models of the group are called \"detector\"; set model_name"),
            _refused("refused_empty", "neither contexts nor sources are given"),
            _refused("refused_package", "the variant detector.phone stands twice"),
            _refused("refused_wheel", "the variant detector.phone stands twice"),
            _refused("refused_subject_test", "holds 2 compiles; expected one"),
        ],
    )
