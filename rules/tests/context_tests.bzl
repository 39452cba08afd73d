"""epctx_context and epctx_context_group: the one action, its command line, environment, inputs and configuration."""

load("@bazel_skylib//lib:unittest.bzl", "analysistest", "asserts")
load("//epctx:defs.bzl", "epctx_context", "epctx_context_group")
load("//epctx:providers.bzl", "EpctxContextInfo")
load(":support.bzl", "action_of", "content_of", "declare_ep", "declare_model", "short_paths")

def _action_test_impl(ctx):
    env = analysistest.begin(ctx)
    actions = [action.mnemonic for action in analysistest.target_actions(env)]
    asserts.equals(env, ["EpctxCompile", "FileWrite"], sorted(actions), "one compile, one configuration")
    action = action_of(env, "EpctxCompile")
    bin_dir = analysistest.target_bin_dir_path(env) + "/tests"

    driver = "epctx/private/driver.py"
    asserts.equals(env, [
        "/usr/bin/python3",
        "-I",
        "-S",
        "-B",
        driver,
        "--site=tests/ep/site-packages",
        "--site=tests/runtime/site-packages",
    ], action.argv[:5] + sorted(action.argv[5:7]), "an isolated interpreter, the declared trees, each once")
    asserts.equals(env, [
        "--",
        "compile",
        "--config",
        bin_dir + "/context_subject.epctx.config.json",
        "--model",
        "encoder",
        "tests/models/encoder.onnx",
        "--data",
        "encoder",
        "encoder.bin",
        "tests/models/encoder.bin",
        "--custom-ops",
        "encoder",
        "tests/ops/libsecond.so",
        "--custom-ops",
        "encoder",
        "tests/ops/libfirst.so",
        "--calibration",
        "encoder",
        "tests/samples.npz",
        "--option",
        "op_packages",
        "tests/outside.bin",
        "--machine",
        "tests/machine.json",
        "--out",
        bin_dir + "/context_subject.epctx",
        "--manifest",
        bin_dir + "/context_subject.epctx.json",
    ], action.argv[7:], "the driver's arguments")
    asserts.equals(env, {}, action.env, "nothing of the user's environment")
    asserts.equals(env, [
        driver,
        "tests/context_subject.epctx.config.json",
        "tests/ep/site-packages/fake_ep/__init__.py",
        "tests/ep/site-packages/fake_ep/by_runfiles.txt",
        "tests/machine.json",
        "tests/models/encoder.bin",
        "tests/models/encoder.onnx",
        "tests/ops/libfirst.so",
        "tests/ops/libsecond.so",
        "tests/outside.bin",
        "tests/runtime/site-packages/fake_runtime/__init__.py",
        "tests/runtime/site-packages/fake_runtime/second.py",
        "tests/samples.npz",
    ], short_paths(action.inputs), "declared inputs and nothing else")
    asserts.equals(env, [
        "tests/context_subject.epctx",
        "tests/context_subject.epctx.json",
    ], short_paths(action.outputs), "a flat folder and its manifest")
    return analysistest.end(env)

_action_test = analysistest.make(_action_test_impl)

def _config_test_impl(ctx):
    env = analysistest.begin(ctx)
    text = content_of(env, ".epctx.config.json")
    asserts.false(env, "/" in text.replace("epctx-bazel/1", ""), "no path stands in the configuration: " + text)
    asserts.equals(env, {
        "cacheable": True,
        "format": "epctx-bazel/1",
        "group": "",
        "models": [{
            "name": "encoder",
            "settings": {
                "custom-ops": ["onnxruntime_extensions"],
                "free-dimensions": {"batch": 1},
                "min-coverage": "0.9",
            },
        }],
        "target": {
            "name": "snapdragon-60",
            "settings": {
                "ep": "qnn",
                "load-check": False,
                "optimization": "basic",
                "provider-options": {"soc_model": "60"},
            },
        },
    }, json.decode(text))
    return analysistest.end(env)

_config_test = analysistest.make(_config_test_impl)

def _provider_test_impl(ctx):
    env = analysistest.begin(ctx)
    contexts = analysistest.target_under_test(env)[EpctxContextInfo].contexts
    asserts.equals(env, 1, len(contexts))
    asserts.equals(env, "snapdragon-60", contexts[0].target)
    asserts.equals(env, ["encoder"], [model.model for model in contexts[0].models])
    asserts.true(env, contexts[0].folder.is_directory, "the outputs are one folder")
    target = analysistest.target_under_test(env)
    folder, manifest = "tests/context_subject.epctx", "tests/context_subject.epctx.json"
    asserts.equals(env, [folder, manifest], short_paths(target[DefaultInfo].files))
    asserts.equals(env, [folder], short_paths(target[OutputGroupInfo].folders))
    asserts.equals(env, [manifest], short_paths(target[OutputGroupInfo].manifests))
    return analysistest.end(env)

_provider_test = analysistest.make(_provider_test_impl)

def _whole_test_impl(ctx):
    env = analysistest.begin(ctx)
    asserts.equals(env, {
        "cacheable": False,
        "format": "epctx-bazel/1",
        "group": "",
        "models": [{
            "name": "context_whole_model",
            "settings": {
                "custom-ops": ["acme.ops"],
                "free-dimension-denotations": {"DATA_BATCH": 2},
                "free-dimensions": {"batch": 1},
                "input-shapes": {"x": [1, -1, 3]},
                "license": "MIT",
                "min-coverage": "0.5",
                "prepare": ["infer-shapes", "quantize-qdq"],
            },
        }],
        "target": {
            "name": "context_whole_ep",
            "settings": {
                "allow-unknown-options": ["new"],
                "context-io": "callbacks",
                "device": "npu",
                "embed": True,
                "env": {"FLAG": "1"},
                "ep": "openvino",
                "memory-limit": "4GiB",
                "optimization": "all",
                "provider-options": {"num_of_threads": "2"},
                "requires": ["onnxruntime-ep-openvino>=1.8"],
                "runtime-options": {"cache": "1"},
                "session-options": {"session.x": "1"},
                "timeout": 60,
            },
        },
    }, json.decode(content_of(env, ".epctx.config.json")), "every attribute is in the configuration")
    argv = action_of(env, "EpctxCompile").argv
    options = [argv[index + 1] for index, text in enumerate(argv) if text == "--option"]
    asserts.equals(env, ["a_option", "b_option"], options, "options by name")
    data = [argv[index + 2] for index, text in enumerate(argv) if text == "--data"]
    asserts.equals(env, ["encoder.bin", "encoder.onnx"], data, "external data by location")
    return analysistest.end(env)

_whole_test = analysistest.make(_whole_test_impl)

def _group_test_impl(ctx):
    env = analysistest.begin(ctx)
    action = action_of(env, "EpctxCompile")
    names = [action.argv[index + 1] for index, text in enumerate(action.argv) if text == "--model"]
    asserts.equals(env, ["second", "first"], names, "members in the declared order: it is part of the identity")
    config = json.decode(content_of(env, ".epctx.config.json"))
    asserts.equals(env, "llm", config["group"])
    asserts.equals(env, 2, len(action.outputs.to_list()), "one folder and one manifest for all members")
    return analysistest.end(env)

_group_test = analysistest.make(_group_test_impl)

def _model_test_impl(ctx):
    env = analysistest.begin(ctx)
    target = analysistest.target_under_test(env)
    asserts.equals(env, ["tests/models/encoder.onnx"], short_paths(target[DefaultInfo].files))
    asserts.equals(
        env,
        ["tests/models/encoder.bin", "tests/models/encoder.onnx"],
        short_paths(target[DefaultInfo].default_runfiles.files),
        "a program that has the model as data finds its weights",
    )
    return analysistest.end(env)

_model_test = analysistest.make(_model_test_impl)

def _group_name_test_impl(ctx):
    env = analysistest.begin(ctx)
    asserts.equals(env, "chat", json.decode(content_of(env, ".epctx.config.json"))["group"])
    return analysistest.end(env)

_group_name_test = analysistest.make(_group_name_test_impl)

def context_test_suite(name):
    """Tests of epctx_context and epctx_context_group.

    Args:
        name: of the suite.
    """
    declare_model(
        name = "context_encoder",
        src = "models/encoder.onnx",
        calibration = "samples.npz",
        custom_ops = [
            "ops/libsecond.so",
            "ops/libfirst.so",
        ],
        custom_ops_modules = ["onnxruntime_extensions"],
        data = ["models/encoder.bin"],
        free_dimensions = {"batch": "1"},
        min_coverage = "0.9",
        model_name = "encoder",
    )
    declare_ep(
        name = "context_ep",
        load_check = False,
        machine = "machine.json",
        optimization = "basic",
        option_files = {"outside.bin": "op_packages"},
        provider_options = {"soc_model": "60"},
        target_name = "snapdragon-60",
    )
    epctx_context(
        name = "context_subject",
        testonly = True,
        ep = ":context_ep",
        model = ":context_encoder",
        tags = ["manual"],
    )
    declare_model(
        name = "context_whole_model",
        custom_ops_modules = ["acme.ops"],
        data = [
            "models/encoder.onnx",
            "models/encoder.bin",
        ],
        free_dimension_denotations = {"DATA_BATCH": "2"},
        free_dimensions = {"batch": "1"},
        input_shapes = {"x": ["1", "-1", "3"]},
        license = "MIT",
        min_coverage = "0.5",
        prepare = [
            "infer-shapes",
            "quantize-qdq",
        ],
    )
    declare_ep(
        name = "context_whole_ep",
        allow_unknown_options = ["new"],
        cacheable = False,
        context_io = "callbacks",
        device = "npu",
        embed = True,
        env = {"FLAG": "1"},
        ep = "openvino",
        execution_requirements = {"requires-npu": "1"},
        memory_limit = "4GiB",
        optimization = "all",
        option_files = {
            "machine.json": "b_option",
            "outside.bin": "a_option",
        },
        provider_options = {"num_of_threads": "2"},
        requires = ["onnxruntime-ep-openvino>=1.8"],
        runtime_options = {"cache": "1"},
        session_options = {"session.x": "1"},
        timeout_seconds = 60,
    )
    epctx_context(
        name = "context_whole",
        testonly = True,
        ep = ":context_whole_ep",
        model = ":context_whole_model",
        tags = ["manual"],
    )
    declare_model(name = "context_first", model_name = "first")
    declare_model(name = "context_second", model_name = "second")
    epctx_context_group(
        name = "llm",
        testonly = True,
        ep = ":context_ep",
        models = [
            ":context_second",
            ":context_first",
        ],
        tags = ["manual"],
    )
    epctx_context_group(
        name = "context_named_group",
        testonly = True,
        ep = ":context_ep",
        group_name = "chat",
        models = [
            ":context_first",
            ":context_second",
        ],
        tags = ["manual"],
    )
    _action_test(name = name + "_action_test", target_under_test = ":context_subject")
    _config_test(name = name + "_config_test", target_under_test = ":context_subject")
    _provider_test(name = name + "_provider_test", target_under_test = ":context_subject")
    _model_test(name = name + "_model_test", target_under_test = ":context_encoder")
    _whole_test(name = name + "_whole_test", target_under_test = ":context_whole")
    _group_test(name = name + "_group_test", target_under_test = ":llm")
    _group_name_test(name = name + "_group_name_test", target_under_test = ":context_named_group")
    native.test_suite(
        name = name,
        tests = [
            ":%s_%s_test" % (name, test)
            for test in ["action", "config", "provider", "model", "whole", "group", "group_name"]
        ],
    )
