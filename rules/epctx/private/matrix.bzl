"""epctx_context_matrix: models x EPs, with a test suite."""

load("//epctx/private:collection.bzl", "epctx_contexts")
load("//epctx/private:context.bzl", "epctx_context")
load("//epctx/private:test.bzl", "epctx_test")

# Tags that say where an action may run and be cached hold for what the macro makes beside; others, such as
# "manual" or a team's own, are the main target's.
_CACHING_TAGS = ["local", "no-cache", "no-remote", "no-remote-cache", "no-remote-exec", "requires-network"]

def _last(label):
    """The last part of a label, as names are made of it."""
    text = str(label)
    return text.rpartition("/")[2].rpartition(":")[2]

def epctx_context_matrix(
        name,
        models,
        eps,
        tests = True,
        rtol = "0.05",
        atol = "0.01",
        allow_not_run = False,
        exec_properties = {},
        tags = [],
        test_tags = [],
        testonly = None,
        visibility = None):
    """Every model compiled for every EP, under one label, and a test suite that runs each against the CPU EP.

    For the models `:detector` and `:encoder` and the EP `:intel-cpu` it makes `<name>_detector_intel-cpu` and
    `<name>_encoder_intel-cpu`, of each the test `..._test`, the suite `<name>_tests`, and `<name>`, which
    epctx_package and epctx_wheel take.

    Args:
        name: of the whole.
        models: labels of epctx_model, whose last parts differ.
        eps: labels of epctx_ep, in the order of preference, whose last parts differ.
        tests: whether to make tests.
        rtol: relative tolerance of the tests, as text.
        atol: absolute tolerance of the tests, as text.
        allow_not_run: whether a test passes where the EP's device is not there.
        exec_properties: by the last part of an EP's label, execution properties of its compiles, which route them to
            machines that have what it needs.
        tags: of the whole and of every compile. Of these, what is about caching and remote execution holds for the
            tests too.
        test_tags: further tags of the tests.
        testonly: of everything.
        visibility: of `name` and its compiles.
    """
    for what, labels in [("models", models), ("eps", eps)]:
        parts = [_last(label) for label in labels]
        if not parts:
            fail("epctx_context_matrix %s: %s is empty" % (name, what))
        for index, part in enumerate(parts):
            if part in parts[:index]:
                fail("epctx_context_matrix %s: two labels of %s end in %r" % (name, what, part))
    unknown = [ep for ep in exec_properties if ep not in [_last(label) for label in eps]]
    if unknown:
        fail("epctx_context_matrix %s: exec_properties for %r, which is no EP of eps" % (name, unknown[0]))
    caching = [tag for tag in tags if tag in _CACHING_TAGS]
    contexts = []
    test_names = []
    for model in models:
        for ep in eps:
            context = "%s_%s_%s" % (name, _last(model), _last(ep))
            epctx_context(
                name = context,
                ep = ep,
                exec_properties = exec_properties.get(_last(ep), {}),
                model = model,
                tags = tags,
                testonly = testonly,
                visibility = visibility,
            )
            contexts.append(":" + context)
            if tests:
                epctx_test(
                    name = context + "_test",
                    allow_not_run = allow_not_run,
                    atol = atol,
                    context = ":" + context,
                    rtol = rtol,
                    tags = caching + test_tags,
                )
                test_names.append(":" + context + "_test")
    epctx_contexts(
        name = name,
        contexts = contexts,
        tags = tags,
        testonly = testonly,
        visibility = visibility,
    )
    if tests:
        native.test_suite(
            name = name + "_tests",
            tags = test_tags,
            tests = test_names,
        )
