"""What the rules tell each other, and what rules of yours can ask them for."""

EpctxToolchainInfo = provider(
    doc = "What runs the actions: an interpreter, ONNX Runtime and the driver.",
    fields = {
        "driver": "File: the program that the interpreter starts.",
        "interpreter": "File of the Python interpreter; None where it is named by its path.",
        "interpreter_path": "Absolute path of the interpreter; empty where it is a file.",
        "runtime": "depset of File: the site-packages trees of ONNX Runtime, hatch-epctx and what they need.",
    },
)

EpctxEpInfo = provider(
    doc = "An execution provider with its options: a target of the compile.",
    fields = {
        "cacheable": "bool: whether equal actions give equal results on every machine.",
        "execution_requirements": "dict: requirements of the actions that compile for it.",
        "machine": "File: description of the machine that executes; None where the EP bakes nothing of it in.",
        "options": "list of struct(name, file): what is behind file and folder options.",
        "runtime": "depset of File: the EP's site-packages tree.",
        "settings": "dict: the target's table of `[tool.epctx]`, without paths.",
        "target": "str: the target's name in package folders.",
    },
)

EpctxModelInfo = provider(
    doc = "An ONNX model with its external data.",
    fields = {
        "calibration": "File of samples for quantising; None without one.",
        "custom_ops": "list of File: shared libraries of custom operators in their order.",
        "data": "list of struct(location, file): external data by its location as the model names it.",
        "model": "str: the model's name in package folders.",
        "settings": "dict: the model's table of `[tool.epctx]`, without paths.",
        "source": "File: the ONNX file.",
    },
)

EpctxContextInfo = provider(
    doc = "Compiled models.",
    fields = {
        "contexts": "list of struct(folder, manifest, models, target, ep): the outputs of each compile, of which " +
                    "models (list of EpctxModelInfo) and for which target (empty: sources as they are) and " +
                    "EpctxEpInfo (None for sources).",
    },
)

EpctxPackageInfo = provider(
    doc = "A package folder, which ONNX Runtime and hatch_epctx.runtime open.",
    fields = {
        "folder": "File: the folder `_epctx`.",
        "package": "str: import name of the Python package that it belongs to.",
    },
)
