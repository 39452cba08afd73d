"""All rules. `load("@rules_epctx//epctx:defs.bzl", "epctx_context", ...)`."""

load("//epctx/private:collection.bzl", _epctx_contexts = "epctx_contexts")
load("//epctx/private:context.bzl", _epctx_context = "epctx_context")
load("//epctx/private:ep.bzl", _epctx_ep = "epctx_ep")
load("//epctx/private:group.bzl", _epctx_context_group = "epctx_context_group")
load("//epctx/private:matrix.bzl", _epctx_context_matrix = "epctx_context_matrix")
load("//epctx/private:model.bzl", _epctx_model = "epctx_model")
load("//epctx/private:package.bzl", _epctx_package = "epctx_package")
load("//epctx/private:test.bzl", _epctx_test = "epctx_test")
load("//epctx/private:toolchain.bzl", _epctx_toolchain = "epctx_toolchain")
load("//epctx/private:wheel.bzl", _epctx_wheel = "epctx_wheel")

epctx_context = _epctx_context
epctx_context_group = _epctx_context_group
epctx_context_matrix = _epctx_context_matrix
epctx_contexts = _epctx_contexts
epctx_ep = _epctx_ep
epctx_model = _epctx_model
epctx_package = _epctx_package
epctx_test = _epctx_test
epctx_toolchain = _epctx_toolchain
epctx_wheel = _epctx_wheel
