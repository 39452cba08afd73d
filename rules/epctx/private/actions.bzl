"""The actions of all rules: one program, inputs declared, paths in arguments alone."""

load("//epctx:providers.bzl", "EpctxContextInfo", "EpctxModelInfo")

TOOLCHAIN_TYPE = "@rules_epctx//epctx:toolchain_type"

FORMAT = "epctx-bazel/1"

# An action sees nothing undeclared: no network, no variable of the user's shell.
_HERMETIC = {
    "block-network": "1",
    "supports-path-mapping": "1",
}
_NOT_CACHEABLE = {
    "no-cache": "1",
    "no-remote": "1",
}
_MARK = "/site-packages/"

def _site_of(file):
    """The folder that Python imports from: the site-packages tree of a file. Runs when the action is made."""
    at = file.path.rfind(_MARK)
    return None if at < 0 else file.path[:at + len(_MARK) - 1]

def site_in_runfiles(file):
    """The same as a test sees it."""
    at = file.short_path.rfind(_MARK)
    return None if at < 0 else file.short_path[:at + len(_MARK) - 1]

def toolchain_of(ctx):
    """The EpctxToolchainInfo of a rule that names the toolchain type."""
    return ctx.toolchains[TOOLCHAIN_TYPE].epctx

def run_driver(ctx, args, inputs, outputs, mnemonic, progress_message, runtime = None, requirements = None):
    """Run the driver of the toolchain.

    Args:
        ctx: of a rule that names the toolchain type.
        args: Args of the driver's command.
        inputs: list of File, beside the toolchain's and the driver's own.
        outputs: list of File.
        mnemonic: of the action.
        progress_message: of the action.
        runtime: depset of File with further site-packages trees.
        requirements: further execution requirements.
    """
    toolchain = toolchain_of(ctx)
    trees = depset(transitive = [toolchain.runtime] + ([runtime] if runtime else []))
    start = ctx.actions.args()
    start.add_all(["-I", "-S", "-B"])
    start.add(toolchain.driver)
    start.add_all(trees, map_each = _site_of, uniquify = True, format_each = "--site=%s")
    start.add("--")
    ctx.actions.run(
        executable = toolchain.interpreter or toolchain.interpreter_path,
        arguments = [start, args],
        inputs = depset(inputs + [toolchain.driver], transitive = [trees]),
        outputs = outputs,
        mnemonic = mnemonic,
        progress_message = progress_message,
        env = {},
        execution_requirements = dict(_HERMETIC, **(requirements or {})),
    )

def compile_models(ctx, name, models, ep, group = ""):
    """Declare the compile of models for one EP, or the packing of one source.

    Args:
        ctx: of a rule that names the toolchain type.
        name: of the outputs.
        models: list of EpctxModelInfo; several for a group alone.
        ep: EpctxEpInfo; None to take the source as it is.
        group: name of the weight-sharing group.

    Returns:
        A struct as EpctxContextInfo.contexts holds it.
    """
    folder = ctx.actions.declare_directory(name + ".epctx")
    manifest = ctx.actions.declare_file(name + ".epctx.json")
    config = ctx.actions.declare_file(name + ".epctx.config.json")
    ctx.actions.write(config, json.encode({
        "cacheable": ep.cacheable if ep else True,
        "format": FORMAT,
        "group": group,
        "models": [{"name": model.model, "settings": model.settings} for model in models],
        "target": {"name": ep.target, "settings": ep.settings} if ep else None,
    }))

    args = ctx.actions.args()
    args.add("compile")
    args.add("--config", config)
    inputs = [config] + add_models(args, models)
    if ep:
        inputs += add_options(args, ep)
        if ep.machine:
            args.add("--machine", ep.machine)
            inputs.append(ep.machine)
    args.add_all("--out", [folder], expand_directories = False)
    args.add("--manifest", manifest)
    names = ", ".join([model.model for model in models])
    run_driver(
        ctx,
        args,
        inputs = inputs,
        outputs = [folder, manifest],
        mnemonic = "EpctxCompile" if ep else "EpctxSource",
        progress_message = "Compiling %s for %s" % (names, ep.target) if ep else "Taking %s as it is" % names,
        runtime = ep.runtime if ep else None,
        requirements = dict(
            ep.execution_requirements if ep else {},
            **({} if not ep or ep.cacheable else _NOT_CACHEABLE)
        ),
    )
    return struct(
        ep = ep,
        folder = folder,
        manifest = manifest,
        models = models,
        target = ep.target if ep else "",
    )

def add_models(args, models):
    """Name models with their data to the driver.

    Args:
        args: Args of the driver's command.
        models: list of EpctxModelInfo.

    Returns:
        Their files.
    """
    files = []
    for model in models:
        args.add_all("--model", [model.model])
        args.add(model.source)
        files.append(model.source)
        for data in model.data:
            args.add_all("--data", [model.model, data.location])
            args.add(data.file)
            files.append(data.file)
        for library in model.custom_ops:
            args.add_all("--custom-ops", [model.model])
            args.add(library)
            files.append(library)
        if model.calibration:
            args.add_all("--calibration", [model.model])
            args.add(model.calibration)
            files.append(model.calibration)
    return files

def add_options(args, ep):
    """Name what is behind an EP's options to the driver.

    Args:
        args: Args of the driver's command.
        ep: EpctxEpInfo.

    Returns:
        The files.
    """
    for option in ep.options:
        args.add_all("--option", [option.name])
        args.add_all([option.file], expand_directories = False)
    return [option.file for option in ep.options]

def model_arguments(context):
    """Arguments that name a compile's models and option files to the driver, as a test sees them.

    Args:
        context: as EpctxContextInfo.contexts holds it.

    Returns:
        The arguments, and the files that they name.
    """
    lines = []
    files = []
    for model in context.models:
        lines += ["--model", model.model, model.source.short_path]
        files.append(model.source)
        for data in model.data:
            lines += ["--data", model.model, data.location, data.file.short_path]
            files.append(data.file)
        for library in model.custom_ops:
            lines += ["--custom-ops", model.model, library.short_path]
            files.append(library)
        if model.calibration:
            lines += ["--calibration", model.model, model.calibration.short_path]
            files.append(model.calibration)
    for option in context.ep.options if context.ep else []:
        lines += ["--option", option.name, option.file.short_path]
        files.append(option.file)
    return lines, files

def add_contexts(args, contexts):
    """Name compiles to the driver.

    Args:
        args: Args of the driver's command.
        contexts: as EpctxContextInfo.contexts holds them.

    Returns:
        Their files.
    """
    for context in contexts:
        args.add("--context", context.manifest)
        args.add_all([context.folder], expand_directories = False)
    return [file for context in contexts for file in [context.manifest, context.folder]]

def context_providers(contexts):
    """What a target with these compiles provides.

    Args:
        contexts: as EpctxContextInfo.contexts holds them.

    Returns:
        A list of providers.
    """
    files = depset([file for context in contexts for file in [context.manifest, context.folder]])
    return [
        DefaultInfo(files = files),
        EpctxContextInfo(contexts = contexts),
        OutputGroupInfo(
            folders = depset([context.folder for context in contexts]),
            manifests = depset([context.manifest for context in contexts]),
        ),
    ]

def contexts_of(targets):
    """The compiles of several targets in their order."""
    return [context for target in targets for context in target[EpctxContextInfo].contexts]

def shipped_sources(ctx):
    """Declare the packing of the models that the attribute `sources` names.

    Args:
        ctx: of a rule with `sources` that names the toolchain type.

    Returns:
        A list as EpctxContextInfo.contexts holds it.
    """
    models = [target[EpctxModelInfo] for target in ctx.attr.sources]
    return [
        compile_models(ctx, "%s.source-%s" % (ctx.label.name, model.model), [model], None)
        for model in models
    ]

def check_variants(ctx, contexts):
    """Fail where two compiles would have one name in a package folder.

    Args:
        ctx: of the rule that packs.
        contexts: as EpctxContextInfo.contexts holds them.
    """
    seen = {}
    for context in contexts:
        for model in context.models:
            name = "%s.%s" % (model.model, context.target or "source")
            if name in seen:
                fail("%s: the variant %s stands twice: in %s and %s; name it once, or set target_name or model_name" % (
                    ctx.label,
                    name,
                    seen[name],
                    context.manifest.short_path,
                ))
            seen[name] = context.manifest.short_path

PACKING_ATTRS = {
    "contexts": attr.label_list(
        doc = "Compiles, in the order of preference of their targets.",
        providers = [EpctxContextInfo],
    ),
    "package": attr.string(
        doc = "Import name of the Python package that gets the folder `_epctx`, such as acme_vision.",
        mandatory = True,
    ),
    "sources": attr.label_list(
        doc = "Models to ship as they are too, as variant \"source\" for the CPU EP.",
        providers = [EpctxModelInfo],
    ),
    "version": attr.string(
        doc = "Version of the distribution, for the manifest.",
        mandatory = True,
    ),
}
