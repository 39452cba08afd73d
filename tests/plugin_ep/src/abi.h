// The part of ONNX Runtime's plugin EP ABI that the test EP needs, in declarations of this project's own.
//
// ONNX Runtime's tables of functions are append-only: an entry keeps its place for ever (the comments in its
// onnxruntime_c_api.cc say so, and it asserts it). So an entry is named here by its place, counted in pointers, and by
// its type. Places up to version 24 were checked against the anchors that ONNX Runtime itself asserts (SetEpDynamicOptions
// 284, GetEpApi 317, CreateExternalInitializerInfo 389); those of the EPContext data callbacks, which are newer, were
// found in 1.32 by calling each in turn: with null arguments they answer in words of their own, and of an EP's entries
// the one that is called before "does not support the registered EPContext data write callback" is the one.

#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

struct OrtStatus;
struct OrtAllocator {
  uint32_t version;
  void* (*Alloc)(OrtAllocator*, size_t);
  void (*Free)(OrtAllocator*, void*);
};

using Table = void* const*;
struct OrtApiBase {
  Table (*GetApi)(uint32_t version);
  const char* (*GetVersionString)();
};

using ReadNamedBuffer = OrtStatus* (*)(void* state, const char* name, OrtAllocator*, void** buffer, size_t* size);
using WriteNamedBuffer = OrtStatus* (*)(void* state, const char* name, const void* buffer, size_t size);

// What an EP hands to ONNX Runtime. A null entry is one that the EP does not have.

struct NodeComputeInfo {
  uint32_t version;
  OrtStatus* (*CreateState)(NodeComputeInfo*, void* context, void** state);
  OrtStatus* (*Compute)(NodeComputeInfo*, void* state, void* kernel_context);
  void (*ReleaseState)(NodeComputeInfo*, void* state);
};

struct Ep {
  uint32_t version;
  const char* (*GetName)(const Ep*);
  OrtStatus* (*GetCapability)(Ep*, const void* graph, void* support);
  OrtStatus* (*Compile)(Ep*, const void** graphs, const void** fused, size_t count, NodeComputeInfo** infos,
                        void** context_nodes);
  void (*ReleaseNodeComputeInfos)(Ep*, NodeComputeInfo**, size_t);
  void* between[21];  // GetPreferredDataLayout to GetWeightlessSupport
  OrtStatus* (*ContextDataSupport)(const Ep*, uint32_t* flags);  // 1 reads, 2 writes
};

struct EpFactory {
  uint32_t version;
  const char* (*GetName)(const EpFactory*);
  const char* (*GetVendor)(const EpFactory*);
  OrtStatus* (*GetSupportedDevices)(EpFactory*, const void* const* hardware, size_t count, void** devices, size_t most,
                                    size_t* found);
  OrtStatus* (*CreateEp)(EpFactory*, const void* const* hardware, const void* const* metadata, size_t count,
                         const void* options, const void* logger, Ep** ep);
  void (*ReleaseEp)(EpFactory*, Ep*);
  uint32_t (*GetVendorId)(const EpFactory*);
  const char* (*GetVersion)(const EpFactory*);
  OrtStatus* (*ValidateCompatibility)(EpFactory*, const void* const* hardware, size_t count, const char* info,
                                      int* verdict);
  OrtStatus* (*CreateAllocator)(EpFactory*, const void* memory, const void* options, OrtAllocator** made);
  void (*ReleaseAllocator)(EpFactory*, OrtAllocator*);
  OrtStatus* (*CreateDataTransfer)(EpFactory*, void** made);
  bool (*IsStreamAware)(const EpFactory*);
  void* further[20];  // CreateSyncStreamForDevice and so on
};

}  // extern "C"
