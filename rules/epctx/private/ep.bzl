"""epctx_ep: an execution provider with its options, as a label."""

load("//epctx:providers.bzl", "EpctxEpInfo")

def _epctx_ep_impl(ctx):
    settings = {"ep": ctx.attr.ep}
    for key, value in [
        ("allow-unknown-options", ctx.attr.allow_unknown_options),
        ("context-io", ctx.attr.context_io),
        ("device", ctx.attr.device),
        ("embed", ctx.attr.embed),
        ("env", ctx.attr.env),
        ("memory-limit", ctx.attr.memory_limit),
        ("optimization", ctx.attr.optimization),
        ("provider-options", ctx.attr.provider_options),
        ("requires", ctx.attr.requires),
        ("runtime-options", ctx.attr.runtime_options),
        ("session-options", ctx.attr.session_options),
        ("timeout", ctx.attr.timeout_seconds),
    ]:
        if value:
            settings[key] = value
    if not ctx.attr.load_check:
        settings["load-check"] = False
    options = []
    for target, name in ctx.attr.option_files.items():
        files = target[DefaultInfo].files.to_list()
        if len(files) != 1:
            fail("%s: option_files: %s has %d files; expected one file or folder for the option %r" % (
                ctx.label,
                target.label,
                len(files),
                name,
            ))
        if name in ctx.attr.provider_options:
            fail("%s: the option %r stands in provider_options and in option_files" % (ctx.label, name))
        options.append(struct(file = files[0], name = name))
    runtime = depset(transitive = [
        depset(transitive = [target[DefaultInfo].files, target[DefaultInfo].default_runfiles.files])
        for target in ctx.attr.runtime
    ])
    return [
        EpctxEpInfo(
            cacheable = ctx.attr.cacheable,
            execution_requirements = ctx.attr.execution_requirements,
            machine = ctx.file.machine,
            options = sorted(options, key = _name_of),
            runtime = runtime,
            settings = settings,
            target = ctx.attr.target_name or ctx.label.name,
        ),
    ]

def _name_of(option):
    return option.name

epctx_ep = rule(
    implementation = _epctx_ep_impl,
    doc = """An execution provider with its options: one target that models are compiled for.

Options are checked by the driver against the EP's table, as those of `[tool.epctx.targets]` are; a typo fails the
action before it compiles.""",
    attrs = {
        "allow_unknown_options": attr.string_list(
            doc = "Provider options to pass although the EP's table does not know them.",
        ),
        "cacheable": attr.bool(
            default = True,
            doc = "Whether equal actions give equal results on every machine. False keeps results out of every cache " +
                  "and the action off remote machines; an EP whose driver cannot be named demands it.",
        ),
        "context_io": attr.string(
            doc = "How context data gets from the EP and back: files or callbacks.",
            values = ["", "files", "callbacks"],
        ),
        "device": attr.string(doc = "cpu, gpu or npu; the EP's first one when left out."),
        "embed": attr.bool(doc = "Put the context binary into the ONNX file."),
        "env": attr.string_dict(doc = "The only environment that a compile sees beside a fixed allow-list."),
        "ep": attr.string(
            doc = "Short or registered name of the EP, such as openvino or qnn.",
            mandatory = True,
        ),
        "execution_requirements": attr.string_dict(
            doc = "Execution requirements of the actions that compile for this EP, such as {\"requires-npu\": \"1\"}.",
        ),
        "load_check": attr.bool(
            default = True,
            doc = "Open the result in another fresh process with the shipped options, one inference.",
        ),
        "machine": attr.label(
            allow_single_file = [".json"],
            doc = "Description of the machines that execute, for an EP that bakes facts of them into its results " +
                  "(OpenVINO: instruction set and cores). It is part of the key; an action that lands on another " +
                  "machine fails. Made by `python -m hatch_epctx.bazel machine --ep EP --device KIND`.",
        ),
        "memory_limit": attr.string(doc = "Memory that a compile may use, such as 4GiB."),
        "optimization": attr.string(
            doc = "Graph optimisation level of the compile; the EP's tested default when left out.",
            values = ["", "disable-all", "basic", "extended", "all"],
        ),
        "option_files": attr.label_keyed_string_dict(
            allow_files = True,
            doc = "Files and folders behind provider options: label to option's name. Their content counts.",
        ),
        "provider_options": attr.string_dict(
            doc = "The EP's options as text; a table such as OpenVINO's load_config as JSON (json.encode).",
        ),
        "requires": attr.string_list(
            doc = "Distributions that the runtime must hold, such as onnxruntime-ep-openvino>=1.8.",
        ),
        "runtime": attr.label_list(
            allow_files = True,
            cfg = "exec",
            doc = "The EP's tree of site-packages, beside the toolchain's.",
        ),
        "runtime_options": attr.string_dict(doc = "Provider options that loading alone gets."),
        "session_options": attr.string_dict(doc = "Session options of the compile."),
        "target_name": attr.string(doc = "Name of the target in package folders; the rule's when left out."),
        "timeout_seconds": attr.int(doc = "Seconds of one compile. It is not in the identity."),
    },
)
