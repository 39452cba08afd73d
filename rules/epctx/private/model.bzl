"""epctx_model: an ONNX model with its external data."""

load("//epctx:providers.bzl", "EpctxModelInfo")

def _location(ctx, file):
    """Where a data file lies, seen from the model's folder: what the ONNX file must call it."""
    path = file.short_path
    base = ctx.file.src.short_path.rpartition("/")[0]
    if base and not path.startswith(base + "/"):
        fail("%s: external data %s lies outside the model's folder %s; ONNX Runtime refuses that" % (
            ctx.label,
            path,
            base,
        ))
    return path[len(base) + 1:] if base else path

def _numbers(ctx, name, values):
    for key, text in values.items():
        if not text.isdigit() or int(text) < 1:
            fail("%s: %s: %r is %r; expected a whole number above zero" % (ctx.label, name, key, text))
    return {key: int(text) for key, text in values.items()}

def _sizes(ctx, name, texts):
    for text in texts:
        if text != "-1" and not text.isdigit():
            fail("%s: input_shapes: %r has the size %r; expected a whole number, or -1" % (ctx.label, name, text))
    return [int(text) for text in texts]

def _custom_ops(ctx):
    """The files of custom_ops in their order, each label being one."""
    files = []
    for target in ctx.attr.custom_ops:
        found = target[DefaultInfo].files.to_list()
        if len(found) != 1:
            fail("%s: custom_ops: %s has %d files; expected one shared library" % (ctx.label, target.label, len(found)))
        files += found
    return files

def _modules(ctx):
    for name in ctx.attr.custom_ops_modules:
        if not all([part and part.replace("_", "a").isalnum() for part in name.split(".")]):
            fail("%s: custom_ops_modules: %r is no import name; libraries that are files go into custom_ops" % (
                ctx.label,
                name,
            ))
    return ctx.attr.custom_ops_modules

def _epctx_model_impl(ctx):
    settings = {}
    for key, value in [
        ("custom-ops", _modules(ctx)),
        ("free-dimension-denotations", _numbers(
            ctx,
            "free_dimension_denotations",
            ctx.attr.free_dimension_denotations,
        )),
        ("free-dimensions", _numbers(ctx, "free_dimensions", ctx.attr.free_dimensions)),
        ("input-shapes", {name: _sizes(ctx, name, texts) for name, texts in ctx.attr.input_shapes.items()}),
        ("license", ctx.attr.license),
        ("min-coverage", ctx.attr.min_coverage),
        ("prepare", ctx.attr.prepare),
    ]:
        if value:
            settings[key] = value
    data = [struct(file = file, location = _location(ctx, file)) for file in ctx.files.data]
    return [
        DefaultInfo(files = depset([ctx.file.src]), runfiles = ctx.runfiles([ctx.file.src] + ctx.files.data)),
        EpctxModelInfo(
            calibration = ctx.file.calibration,
            custom_ops = _custom_ops(ctx),
            data = sorted(data, key = _location_of),
            model = ctx.attr.model_name or ctx.label.name,
            settings = settings,
            source = ctx.file.src,
        ),
    ]

def _location_of(data):
    return data.location

epctx_model = rule(
    implementation = _epctx_model_impl,
    doc = "An ONNX model with its external data, and how it is compiled whichever the EP.",
    attrs = {
        "calibration": attr.label(
            allow_single_file = [".npz"],
            doc = "An .npz file of inputs by name, for the step quantize-qdq of `prepare`.",
        ),
        "custom_ops": attr.label_list(
            allow_files = True,
            doc = "Shared libraries of the custom operators that the model uses, one file a label, in the order in " +
                  "which they are registered. Their content counts; running the model needs them too, and a wheel " +
                  "does not carry them.",
        ),
        "custom_ops_modules": attr.string_list(
            doc = "Import names of modules with get_library_path(), such as onnxruntime_extensions, which the " +
                  "toolchain's or the EP's runtime holds; registered before the files of `custom_ops`.",
        ),
        "data": attr.label_list(
            allow_files = True,
            doc = "External data, in the model's folder or below it, where the ONNX file names it.",
        ),
        "free_dimension_denotations": attr.string_dict(
            doc = "Sizes of input dimensions by denotation, such as {\"DATA_BATCH\": \"1\"}.",
        ),
        "free_dimensions": attr.string_dict(
            doc = "Sizes of symbolic input dimensions by name, such as {\"batch\": \"1\"}.",
        ),
        "input_shapes": attr.string_list_dict(
            doc = "Whole shapes by input, for dimensions without a name; -1 leaves a dimension as the model has it.",
        ),
        "license": attr.string(doc = "The model's licence, for the bill of materials."),
        "min_coverage": attr.string(
            doc = "Share of source nodes, 0 to 1, that must end up in EPContext nodes, such as 0.9.",
        ),
        "model_name": attr.string(doc = "Name of the model in package folders; the rule's when left out."),
        "prepare": attr.string_list(
            doc = "Steps that change the model before the compile, in order; see docs/correctness.md.",
        ),
        "src": attr.label(
            allow_single_file = [".onnx"],
            doc = "The ONNX file.",
            mandatory = True,
        ),
    },
)
