"""All rules. `load("@rules_epctx//epctx:defs.bzl", "epctx_context", ...)`."""

load("//epctx/private:context.bzl", _epctx_context = "epctx_context")
load("//epctx/private:ep.bzl", _epctx_ep = "epctx_ep")
load("//epctx/private:model.bzl", _epctx_model = "epctx_model")
load("//epctx/private:toolchain.bzl", _epctx_toolchain = "epctx_toolchain")

epctx_context = _epctx_context
epctx_ep = _epctx_ep
epctx_model = _epctx_model
epctx_toolchain = _epctx_toolchain
