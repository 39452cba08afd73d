"""epctx_package, epctx_wheel and epctx_test."""

load("@bazel_skylib//lib:unittest.bzl", "analysistest", "asserts")
load("//epctx:defs.bzl", "epctx_context", "epctx_package", "epctx_test", "epctx_wheel")
load("//epctx:providers.bzl", "EpctxPackageInfo")
load(":support.bzl", "action_of", "content_of", "declare_ep", "declare_model", "short_paths")

def _package_test_impl(ctx):
    env = analysistest.begin(ctx)
    mnemonics = sorted([action.mnemonic for action in analysistest.target_actions(env)])
    asserts.equals(
        env,
        ["EpctxPackage", "EpctxSource", "FileWrite"],
        [mnemonic for mnemonic in mnemonics if mnemonic != "ParameterFileWrite"],
    )
    action = action_of(env, "EpctxPackage")
    asserts.equals(env, ["tests/acme/vision/_epctx"], short_paths(action.outputs))
    inputs = short_paths(action.inputs)
    for wanted in [
        "tests/packing_context.epctx",
        "tests/packing_context.epctx.json",
        "tests/packing_package.source-detector.epctx",
        "tests/packing_package.source-detector.epctx.json",
    ]:
        asserts.true(env, wanted in inputs, wanted + " is an input of packing")
    asserts.false(env, "tests/models/detector.onnx" in inputs, "packing reads no source")
    asserts.equals(env, {}, action.env)
    info = analysistest.target_under_test(env)[EpctxPackageInfo]
    asserts.equals(env, "acme.vision", info.package)
    return analysistest.end(env)

_package_test = analysistest.make(_package_test_impl)

def _wheel_test_impl(ctx):
    env = analysistest.begin(ctx)
    action = action_of(env, "EpctxWheel")
    asserts.equals(env, ["tests/acme_vision-1.2.3-py3-none-win_arm64.whl"], short_paths(action.outputs))
    config = json.decode(content_of(env, ".wheel.json"))
    asserts.equals(env, "Acme-Vision", config["distribution"])
    asserts.equals(env, ["numpy>=1.26"], config["requires"])
    asserts.equals(
        env,
        {"entry_points.txt": "[console_scripts]\ndemo = acme.demo:main\n"},
        config["distinfo"],
    )
    return analysistest.end(env)

_wheel_test = analysistest.make(_wheel_test_impl)

def _test_test_impl(ctx):
    env = analysistest.begin(ctx)
    arguments = content_of(env, ".arguments").splitlines()
    asserts.equals(env, [
        "--model",
        "detector",
        "tests/models/detector.onnx",
        "--context",
        "tests/packing_context.epctx.json",
        "tests/packing_context.epctx",
        "--rtol",
        "0.1",
        "--atol",
        "0.01",
        "--seed",
        "7",
    ], arguments)
    files = short_paths(analysistest.target_under_test(env)[DefaultInfo].default_runfiles.files)
    for wanted in ["tests/models/detector.onnx", "tests/packing_context.epctx", "epctx/private/driver.py"]:
        asserts.true(env, wanted in files, wanted + " is in the runfiles")
    return analysistest.end(env)

_test_test = analysistest.make(_test_test_impl)

def packing_test_suite(name):
    """Tests of what is made of compiles.

    Args:
        name: of the suite.
    """
    declare_model(name = "packing_detector", model_name = "detector")
    declare_ep(name = "packing_ep")
    epctx_context(
        name = "packing_context",
        testonly = True,
        ep = ":packing_ep",
        model = ":packing_detector",
        tags = ["manual"],
    )
    epctx_package(
        name = "packing_package",
        testonly = True,
        contexts = [":packing_context"],
        package = "acme.vision",
        sources = [":packing_detector"],
        tags = ["manual"],
        version = "1.2.3",
    )
    epctx_wheel(
        name = "packing_wheel",
        testonly = True,
        console_scripts = {"demo": "acme.demo:main"},
        contexts = [":packing_context"],
        distribution = "Acme-Vision",
        package = "acme.vision",
        platform = "win_arm64",
        requires = ["numpy>=1.26"],
        tags = ["manual"],
        version = "1.2.3",
    )
    epctx_test(
        name = "packing_subject_test",
        context = ":packing_context",
        rtol = "0.1",
        seed = 7,
        tags = ["manual"],
    )
    _package_test(name = name + "_package_test", target_under_test = ":packing_package")
    _wheel_test(name = name + "_wheel_test", target_under_test = ":packing_wheel")
    _test_test(name = name + "_test_test", target_under_test = ":packing_subject_test")
    native.test_suite(
        name = name,
        tests = [":%s_%s_test" % (name, test) for test in ["package", "wheel", "test"]],
    )
