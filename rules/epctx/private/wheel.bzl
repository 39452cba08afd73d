"""epctx_wheel: a wheel of Python files and compiles. Attributes have the names of rules_python's py_wheel."""

load(
    "//epctx/private:actions.bzl",
    "PACKING_ATTRS",
    "TOOLCHAIN_TYPE",
    "add_contexts",
    "check_variants",
    "contexts_of",
    "run_driver",
    "shipped_sources",
)

def _place(ctx, file):
    """Where a file goes in the wheel: its path below the workspace without the first prefix that fits."""
    path = file.short_path
    if path.startswith("../"):
        path = path[len("../"):].partition("/")[2]
    for prefix in ctx.attr.strip_path_prefixes:
        if path.startswith(prefix):
            return path[len(prefix):].lstrip("/")
    return path

def _escaped(text):
    """A distribution's name or version as file names of wheels write it."""
    out = ""
    for char in text.elems():
        out += char if char.isalnum() or char in "._+!" else "_"
    return out

def _distinfo(ctx):
    """Further files of .dist-info: entry points."""
    sections = dict(ctx.attr.entry_points)
    if ctx.attr.console_scripts:
        scripts = ["%s = %s" % item for item in ctx.attr.console_scripts.items()]
        sections["console_scripts"] = scripts + sections.get("console_scripts", [])
    if not sections:
        return {}
    text = "\n\n".join(["[%s]\n%s" % (name, "\n".join(sorted(sections[name]))) for name in sorted(sections)])
    return {"entry_points.txt": text + "\n"}

def _epctx_wheel_impl(ctx):
    contexts = contexts_of(ctx.attr.contexts) + shipped_sources(ctx)
    check_variants(ctx, contexts)
    distribution = _escaped(ctx.attr.distribution.lower()).replace(".", "_")
    wheel = ctx.actions.declare_file("%s-%s-%s-%s-%s.whl" % (
        distribution,
        _escaped(ctx.attr.version),
        ctx.attr.python_tag,
        ctx.attr.abi,
        ctx.attr.platform,
    ))
    config = ctx.actions.declare_file(ctx.label.name + ".wheel.json")
    folder = "%s-%s.dist-info" % (distribution, _escaped(ctx.attr.version))
    extra = [(target, name) for target, name in ctx.attr.extra_distinfo_files.items()]
    ctx.actions.write(config, json.encode({
        "author": ctx.attr.author,
        "author_email": ctx.attr.author_email,
        "classifiers": ctx.attr.classifiers,
        "compression": ctx.attr.compression,
        "description_content_type": ctx.attr.description_content_type,
        "distinfo": _distinfo(ctx),
        "distribution": ctx.attr.distribution,
        "extra_requires": ctx.attr.extra_requires,
        "homepage": ctx.attr.homepage,
        "license": ctx.attr.license,
        "license_files": sorted([name[len("licenses/"):] for _, name in extra if name.startswith("licenses/")]),
        "package": ctx.attr.package,
        "project_urls": ctx.attr.project_urls,
        "python_requires": ctx.attr.python_requires,
        "requires": ctx.attr.requires,
        "summary": ctx.attr.summary,
        "version": ctx.attr.version,
    }))

    args = ctx.actions.args()
    args.add("wheel")
    args.use_param_file("@%s")
    args.set_param_file_format("multiline")
    args.add("--config", config)
    inputs = [config] + add_contexts(args, contexts)
    files = depset(transitive = [
        depset(transitive = [target[DefaultInfo].files, target[DefaultInfo].default_runfiles.files])
        for target in ctx.attr.deps
    ]).to_list()
    own = {(_place(ctx, file), file.path): file for file in files if _is_own(file)}
    for place, path in sorted(own):
        file = own[(place, path)]
        args.add_all("--file", [place])
        args.add(file)
        inputs.append(file)
    for target, name in extra:
        file = target[DefaultInfo].files.to_list()[0]
        args.add_all("--file", ["%s/%s" % (folder, name)])
        args.add(file)
        inputs.append(file)
    if ctx.file.description_file:
        args.add("--description", ctx.file.description_file)
        inputs.append(ctx.file.description_file)
    args.add("--out", wheel)
    run_driver(
        ctx,
        args,
        inputs = inputs,
        outputs = [wheel],
        mnemonic = "EpctxWheel",
        progress_message = "Building the wheel of %s" % ctx.attr.distribution,
    )
    return [DefaultInfo(files = depset([wheel]), runfiles = ctx.runfiles([wheel]))]

def _is_own(file):
    """Package folders come by `contexts`, and a wheel holds no third-party trees."""
    return not file.is_directory and "/site-packages/" not in file.path

epctx_wheel = rule(
    implementation = _epctx_wheel_impl,
    doc = """A wheel of Python files and compiles, written by the plugin's own packer: the folder `_epctx` and the bill
of materials have the bytes that a build with the hatch plugin gives them. Attributes that rules_python's py_wheel has
too have its names.""",
    attrs = dict(
        PACKING_ATTRS,
        abi = attr.string(
            default = "none",
            doc = "ABI tag.",
        ),
        author = attr.string(doc = "Author's name."),
        author_email = attr.string(doc = "Author's address."),
        classifiers = attr.string_list(doc = "Trove classifiers."),
        compression = attr.string(
            default = "stored",
            doc = "Of context binaries and weights.",
            values = ["stored", "deflated"],
        ),
        console_scripts = attr.string_dict(doc = "Commands: name to object reference, such as {\"demo\": \"acme.demo:main\"}."),
        deps = attr.label_list(
            allow_files = True,
            doc = "Files and libraries of the package, with their runfiles.",
        ),
        description_content_type = attr.string(doc = "Of the long description; text/plain when left out."),
        description_file = attr.label(
            allow_single_file = True,
            doc = "The long description.",
        ),
        distribution = attr.string(
            doc = "The distribution's name.",
            mandatory = True,
        ),
        entry_points = attr.string_list_dict(doc = "Entry points by group, each as `name = object.reference:attr`."),
        extra_distinfo_files = attr.label_keyed_string_dict(
            allow_files = True,
            doc = "Further files of .dist-info: label to name. Those below licenses/ are licence files.",
        ),
        extra_requires = attr.string_list_dict(doc = "Requirements by extra."),
        homepage = attr.string(doc = "The project's page."),
        license = attr.string(doc = "SPDX expression."),
        platform = attr.string(
            default = "any",
            doc = "Platform tag.",
        ),
        project_urls = attr.string_dict(doc = "URLs by label."),
        python_requires = attr.string(doc = "Versions of Python, such as >=3.10."),
        python_tag = attr.string(
            default = "py3",
            doc = "Python tag.",
        ),
        requires = attr.string_list(doc = "Requirements."),
        strip_path_prefixes = attr.string_list(
            doc = "Prefixes to strip from paths below the workspace; the first that fits counts.",
        ),
        summary = attr.string(doc = "One line."),
    ),
    toolchains = [TOOLCHAIN_TYPE],
)
