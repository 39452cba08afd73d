"""The driver of the Bazel rule set's actions: `python -m hatch_epctx.bazel`, over the same pipeline as every front end.

An action reads declared inputs alone: a configuration without paths, and the paths of models, option files and the
machine's description as arguments. It compiles into a private store beside its output, which dies with the action;
the user's own store, EPCTX_* variables and remote caches are out of its sight.

| module | what it holds |
|---|---|
| `settings` | an action's configuration: a part of `[tool.epctx]`, and the project that it stands for |
| `machine` | facts of a machine that an EP bakes into its results, declared and verified |
| `records` | the manifest of a compile: what packing needs beside the bytes |
| `compiling` | the action that compiles |
| `packing` | the build that compiles are parts of, and the action that makes its package folder |
| `wheels` | the action that makes a wheel |
| `checking` | the test that runs a compile against the CPU EP |
"""
