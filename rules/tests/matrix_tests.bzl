"""epctx_context_matrix: what it makes, and which tags it hands on."""

load("@bazel_skylib//lib:unittest.bzl", "analysistest", "asserts", "unittest")
load("//epctx:defs.bzl", "epctx_context_matrix")
load("//epctx:providers.bzl", "EpctxContextInfo")
load(":support.bzl", "declare_ep", "declare_model")

def _order_test_impl(ctx):
    env = analysistest.begin(ctx)
    contexts = analysistest.target_under_test(env)[EpctxContextInfo].contexts
    asserts.equals(
        env,
        ["a.one", "a.two", "b.one", "b.two"],
        ["%s.%s" % (context.models[0].model[-1], context.target.rpartition("_")[2]) for context in contexts],
        "models in order, of each its EPs in theirs",
    )
    return analysistest.end(env)

_order_test = analysistest.make(_order_test_impl)

def _tags_test_impl(ctx):
    env = unittest.begin(ctx)
    asserts.equals(env, ["manual", "no-remote-cache", "team-a"], sorted(ctx.attr.context_tags))
    asserts.equals(env, ["no-remote-cache"], sorted(ctx.attr.test_tags), "caching tags alone go on to tests")
    asserts.equals(env, 4, ctx.attr.tests)
    asserts.equals(env, ["no-remote-cache", "team-a"], sorted(ctx.attr.whole_tags))
    asserts.equals(env, ["team-a"], [tag for tag in ctx.attr.whole_tags if tag not in ctx.attr.test_tags])
    asserts.equals(env, {"matrix_one": "{}", "matrix_two": "{\"Pool\": \"npu\"}"}, ctx.attr.properties)
    asserts.equals(env, {"allow_not_run": "True", "atol": "0.5", "rtol": "0.25"}, ctx.attr.tolerances)
    asserts.equals(env, ["//visibility:public"], ctx.attr.seen_by)
    asserts.equals(env, 4, ctx.attr.suite)
    return unittest.end(env)

_tags_test = unittest.make(
    _tags_test_impl,
    attrs = {
        "context_tags": attr.string_list(),
        "properties": attr.string_dict(),
        "seen_by": attr.string_list(),
        "suite": attr.int(),
        "test_tags": attr.string_list(),
        "tests": attr.int(),
        "tolerances": attr.string_dict(),
        "whole_tags": attr.string_list(),
    },
)

def matrix_test_suite(name):
    """Tests of epctx_context_matrix.

    Args:
        name: of the suite.
    """
    for model in ["a", "b"]:
        declare_model(name = "matrix_" + model)
    for ep in ["one", "two"]:
        declare_ep(name = "matrix_" + ep)
    epctx_context_matrix(
        name = "matrix_subject",
        testonly = True,
        allow_not_run = True,
        atol = "0.5",
        eps = [
            ":matrix_one",
            ":matrix_two",
        ],
        exec_properties = {"matrix_two": {"Pool": "npu"}},
        models = [
            ":matrix_a",
            ":matrix_b",
        ],
        rtol = "0.25",
        tags = [
            "manual",
            "no-remote-cache",
            "team-a",
        ],
        test_tags = ["manual"],
        visibility = ["//visibility:public"],
    )
    made = native.existing_rules()
    _order_test(name = name + "_order_test", target_under_test = ":matrix_subject")
    _tags_test(
        name = name + "_tags_test",
        properties = {
            ep: str(made["matrix_subject_matrix_a_" + ep].get("exec_properties", {}))
            for ep in ["matrix_one", "matrix_two"]
        },
        seen_by = made["matrix_subject_matrix_a_matrix_one"]["visibility"],
        suite = len(made["matrix_subject_tests"]["tests"]),
        tolerances = {
            key: str(made["matrix_subject_matrix_b_matrix_two_test"][key])
            for key in ["allow_not_run", "atol", "rtol"]
        },
        whole_tags = [tag for tag in made["matrix_subject"]["tags"] if tag != "manual"],
        context_tags = made["matrix_subject_matrix_a_matrix_one"]["tags"],
        test_tags = [
            tag
            for tag in made["matrix_subject_matrix_a_matrix_one_test"]["tags"]
            if tag != "manual"
        ],
        tests = len([rule for rule in made if rule.startswith("matrix_subject_") and rule.endswith("_test")]),
    )
    native.test_suite(
        name = name,
        tests = [":%s_%s_test" % (name, test) for test in ["order", "tags"]],
    )
