"""The child program: one fresh process for each look at an ONNX file and each touch of an EP.

The parent imports `protocol` alone; everything else here runs in the child, which `__main__` starts. onnx and
onnxruntime are imported only here (and, lazily, in the run-time look-up).

| module | what it holds |
|---|---|
| `protocol` | job and result, the words of both sides |
| `__main__` | start of the child: limits, supervision, import path, result file |
| `procedure` | which task is done by whom |
| `scanning` | facts of an ONNX file |
| `shapes` | free dimensions and dynamic shapes, before anything compiles |
| `session` | EP registration, device choice, SessionOptions |
| `probing` | what an EP reports of itself and its devices |
| `compiling` | ModelCompiler, and what became of it |
| `validating` | the rules that a compiled model has to keep |
| `rewriting` | content-addressed names, metadata |
| `describing` | what an ONNX file refers to, for inspection; giving these files other names |
| `loading` `feeds` | opening a model as users will, one inference on generated inputs |
| `graphs` | walking an ONNX model |
| `wording` | one-line messages without this machine's paths |
"""
