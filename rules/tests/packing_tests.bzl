"""epctx_package, epctx_wheel and epctx_test."""

load("@bazel_skylib//lib:unittest.bzl", "analysistest", "asserts")
load("//epctx:defs.bzl", "epctx_context", "epctx_package", "epctx_test", "epctx_wheel")
load("//epctx:providers.bzl", "EpctxPackageInfo")
load(":support.bzl", "action_of", "content_of", "declare_ep", "declare_model", "short_paths")

def _driver_arguments(action):
    """What the driver gets, from "--" on."""
    return action.argv[action.argv.index("--"):]

def _without_arguments(files):
    """Short paths of inputs; not those of a file that only holds arguments."""
    return [path for path in short_paths(files) if not path.endswith(".params")]

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
    asserts.equals(env, [
        "epctx/private/driver.py",
        "tests/packing_context.epctx",
        "tests/packing_context.epctx.json",
        "tests/packing_package.source-detector.epctx",
        "tests/packing_package.source-detector.epctx.json",
        "tests/runtime/site-packages/fake_runtime/__init__.py",
        "tests/runtime/site-packages/fake_runtime/second.py",
    ], _without_arguments(action.inputs), "packing reads compiles, and no source and no EP")
    bin_dir = analysistest.target_bin_dir_path(env) + "/tests"
    asserts.equals(env, [
        "--",
        "package",
        "--context",
        bin_dir + "/packing_context.epctx.json",
        bin_dir + "/packing_context.epctx",
        "--context",
        bin_dir + "/packing_package.source-detector.epctx.json",
        bin_dir + "/packing_package.source-detector.epctx",
        "--package",
        "acme.vision",
        "--version",
        "1.2.3",
        "--out",
        bin_dir + "/acme/vision/_epctx",
    ], _driver_arguments(action))
    asserts.equals(env, {}, action.env)
    target = analysistest.target_under_test(env)
    asserts.equals(env, ["tests/acme/vision/_epctx"], short_paths(target[DefaultInfo].default_runfiles.files))
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
    asserts.equals(env, [], config["license_files"])
    return analysistest.end(env)

_wheel_test = analysistest.make(_wheel_test_impl)

def _whole_wheel_test_impl(ctx):
    env = analysistest.begin(ctx)
    action = action_of(env, "EpctxWheel")
    wheel = "acme_vision-1.2_rc-cp311-abi3-linux_x86_64.whl"
    asserts.equals(env, ["tests/" + wheel], short_paths(action.outputs))
    asserts.equals(env, {
        "author": "A",
        "author_email": "a@example.com",
        "classifiers": ["Topic :: Software Development"],
        "compression": "deflated",
        "description_content_type": "text/markdown",
        "distinfo": {"entry_points.txt": "[acme.plugins]\np = acme:p\n\n[console_scripts]\na = acme:a\nb = acme:b\n"},
        "distribution": "Acme-Vision",
        "extra_requires": {"fast": ["numpy"]},
        "homepage": "https://example.com",
        "license": "MIT",
        "license_files": ["LICENSE"],
        "package": "acme",
        "project_urls": {"Home": "https://example.com"},
        "python_requires": ">=3.10",
        "requires": ["onnx"],
        "summary": "One line.",
        "version": "1.2-rc",
    }, json.decode(content_of(env, ".wheel.json")), "every attribute is in the configuration")
    bin_dir = analysistest.target_bin_dir_path(env) + "/tests"
    asserts.equals(env, [
        "--",
        "wheel",
        "--config",
        bin_dir + "/packing_whole_wheel.wheel.json",
        "--context",
        bin_dir + "/packing_context.epctx.json",
        bin_dir + "/packing_context.epctx",
        "--file",
        "acme/__init__.py",
        "tests/wheel/src/acme/__init__.py",
        "--file",
        "acme/data.txt",
        "tests/wheel/src/acme/data.txt",
        "--file",
        "acme_vision-1.2_rc.dist-info/licenses/LICENSE",
        "tests/wheel/LICENSE",
        "--file",
        "acme_vision-1.2_rc.dist-info/notes.txt",
        "tests/wheel/notes.txt",
        "--description",
        "tests/wheel/README.md",
        "--out",
        bin_dir + "/" + wheel,
    ], _driver_arguments(action), "files by their place, without third-party trees")
    asserts.equals(env, [
        "epctx/private/driver.py",
        "tests/packing_context.epctx",
        "tests/packing_context.epctx.json",
        "tests/packing_whole_wheel.wheel.json",
        "tests/runtime/site-packages/fake_runtime/__init__.py",
        "tests/runtime/site-packages/fake_runtime/second.py",
        "tests/wheel/LICENSE",
        "tests/wheel/README.md",
        "tests/wheel/notes.txt",
        "tests/wheel/src/acme/__init__.py",
        "tests/wheel/src/acme/data.txt",
    ], _without_arguments(action.inputs))
    asserts.equals(env, {}, action.env)
    return analysistest.end(env)

_whole_wheel_test = analysistest.make(_whole_wheel_test_impl)

def _whole_test_test_impl(ctx):
    env = analysistest.begin(ctx)
    asserts.equals(env, [
        "--model",
        "encoder",
        "tests/models/encoder.onnx",
        "--data",
        "encoder",
        "encoder.bin",
        "tests/models/encoder.bin",
        "--custom-ops",
        "encoder",
        "tests/ops/libfirst.so",
        "--calibration",
        "encoder",
        "tests/samples.npz",
        "--option",
        "op_packages",
        "tests/outside.bin",
        "--context",
        "tests/packing_whole_context.epctx.json",
        "tests/packing_whole_context.epctx",
        "--rtol",
        "0.05",
        "--atol",
        "0.01",
        "--cosine",
        "0.9",
        "--seed",
        "0",
        "--inputs",
        "tests/inputs.npz",
        "--allow-not-run",
    ], content_of(env, ".arguments").splitlines())
    files = short_paths(analysistest.target_under_test(env)[DefaultInfo].default_runfiles.files)
    asserts.equals(env, [
        "epctx/private/driver.py",
        "tests/ep/site-packages/fake_ep/__init__.py",
        "tests/ep/site-packages/fake_ep/by_runfiles.txt",
        "tests/inputs.npz",
        "tests/models/encoder.bin",
        "tests/models/encoder.onnx",
        "tests/ops/libfirst.so",
        "tests/outside.bin",
        "tests/packing_whole_context.epctx",
        "tests/packing_whole_context.epctx.json",
        "tests/packing_whole_subject_test",
        "tests/packing_whole_subject_test.arguments",
        "tests/packing_whole_subject_test.sites",
        "tests/runtime/site-packages/fake_runtime/__init__.py",
        "tests/runtime/site-packages/fake_runtime/second.py",
        "tests/samples.npz",
    ], files, "what the test reads is in its runfiles")
    asserts.equals(env, [
        "--site=tests/ep/site-packages",
        "--site=tests/runtime/site-packages",
    ], sorted(content_of(env, ".sites").splitlines()), "the declared trees, each once")
    return analysistest.end(env)

_whole_test_test = analysistest.make(_whole_test_test_impl)

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
    epctx_wheel(
        name = "packing_whole_wheel",
        testonly = True,
        abi = "abi3",
        author = "A",
        author_email = "a@example.com",
        classifiers = ["Topic :: Software Development"],
        compression = "deflated",
        console_scripts = {"b": "acme:b"},
        contexts = [":packing_context"],
        deps = [
            "wheel/src/acme/data.txt",
            "wheel/src/acme/__init__.py",
            ":ep_tree",
        ],
        description_content_type = "text/markdown",
        description_file = "wheel/README.md",
        distribution = "Acme-Vision",
        entry_points = {
            "acme.plugins": ["p = acme:p"],
            "console_scripts": ["a = acme:a"],
        },
        extra_distinfo_files = {
            "wheel/LICENSE": "licenses/LICENSE",
            "wheel/notes.txt": "notes.txt",
        },
        extra_requires = {"fast": ["numpy"]},
        homepage = "https://example.com",
        license = "MIT",
        package = "acme",
        platform = "linux_x86_64",
        project_urls = {"Home": "https://example.com"},
        python_requires = ">=3.10",
        python_tag = "cp311",
        requires = ["onnx"],
        strip_path_prefixes = [
            "elsewhere",
            "tests/wheel/src",
        ],
        summary = "One line.",
        tags = ["manual"],
        version = "1.2-rc",
    )
    declare_model(
        name = "packing_encoder",
        src = "models/encoder.onnx",
        calibration = "samples.npz",
        custom_ops = ["ops/libfirst.so"],
        data = ["models/encoder.bin"],
        model_name = "encoder",
    )
    declare_ep(name = "packing_whole_ep", option_files = {"outside.bin": "op_packages"})
    epctx_context(
        name = "packing_whole_context",
        testonly = True,
        ep = ":packing_whole_ep",
        model = ":packing_encoder",
        tags = ["manual"],
    )
    epctx_test(
        name = "packing_whole_subject_test",
        allow_not_run = True,
        context = ":packing_whole_context",
        cosine = "0.9",
        inputs = "inputs.npz",
        tags = ["manual"],
    )
    _whole_wheel_test(name = name + "_whole_wheel_test", target_under_test = ":packing_whole_wheel")
    _whole_test_test(name = name + "_whole_test_test", target_under_test = ":packing_whole_subject_test")
    _package_test(name = name + "_package_test", target_under_test = ":packing_package")
    _wheel_test(name = name + "_wheel_test", target_under_test = ":packing_wheel")
    _test_test(name = name + "_test_test", target_under_test = ":packing_subject_test")
    native.test_suite(
        name = name,
        tests = [":%s_%s_test" % (name, test) for test in ["package", "wheel", "whole_wheel", "test", "whole_test"]],
    )
