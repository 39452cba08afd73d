// A plugin EP for tests: it takes Neg nodes, and its context data is what makes the answer right.
//
// The context data of a node is "EPCTXTEST", the factor that the input is multiplied by (-1 for Neg) as text, and
// padding up to the option `payload` (bytes). So whoever hands it other data gets another answer, and whoever hands it
// none gets an error. Data goes through ONNX Runtime's EPContext data callbacks when they are set, and then never to
// the file system; else to files beside the model.
//
// Sessions with ep.share_ep_contexts share, by name and for the whole process, as QNN's do: compiles write one binary
// for all their nodes, named by the first model; sessions read it once. ep.stop_share_ep_contexts ends that.
//
// Provider options: payload (bytes, default 64); reads (how many threads read the data of each node at once, default 1);
// support (0 none, 1 reads, 2 writes, 3 both: what the EP says that it supports; default 3).

#include "abi.h"

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

const char* const kName = "EpctxTestExecutionProvider";
const char* const kOptions = "ep.epctxtestexecutionprovider.";
const char* const kMagic = "EPCTXTEST ";
const int kFail = 1, kString = 5, kInt = 1;

Table api, ep_api, editor_api;

template <class F>
F entry(Table table, int place) {
  return reinterpret_cast<F>(table[place]);
}

OrtStatus* fail(const std::string& text) {
  return entry<OrtStatus* (*)(int, const char*)>(api, 0)(kFail, text.c_str());
}

#define TRY(call)                            \
  do {                                       \
    if (OrtStatus* failed = (call)) return failed; \
  } while (0)

// ---- ONNX Runtime's functions, by place -------------------------------------------------------------------------

std::string option(const void* options, const std::string& key, const std::string& otherwise) {
  int there = 0;
  if (entry<OrtStatus* (*)(const void*, const char*, int*)>(api, 237)(options, key.c_str(), &there) || !there)
    return otherwise;
  auto get = entry<OrtStatus* (*)(const void*, const char*, char*, size_t*)>(api, 238);
  size_t size = 0;
  get(options, key.c_str(), nullptr, &size);
  std::string value(size, '\0');
  get(options, key.c_str(), value.data(), &size);
  return value.c_str();
}

std::vector<const void*> nodes_of(const void* graph) {
  size_t count = 0;
  entry<OrtStatus* (*)(const void*, size_t*)>(api, 344)(graph, &count);
  std::vector<const void*> nodes(count);
  entry<OrtStatus* (*)(const void*, const void**, size_t)>(api, 345)(graph, nodes.data(), count);
  return nodes;
}

std::string text_of(int place, const void* thing) {
  const char* text = "";
  entry<OrtStatus* (*)(const void*, const char**)>(api, place)(thing, &text);
  return text ? text : "";
}

std::vector<std::string> value_names(const void* node, int count_place) {
  size_t count = 0;
  entry<OrtStatus* (*)(const void*, size_t*)>(api, count_place)(node, &count);
  std::vector<const void*> values(count);
  entry<OrtStatus* (*)(const void*, const void**, size_t)>(api, count_place + 1)(node, values.data(), count);
  std::vector<std::string> names;
  for (const void* value : values) names.push_back(text_of(289, value));
  return names;
}

bool attribute(const void* node, const char* name, std::string* text, int64_t* number) {
  const void* found = nullptr;
  OrtStatus* status = entry<OrtStatus* (*)(const void*, const char*, const void**)>(api, 361)(node, name, &found);
  if (status) entry<void (*)(OrtStatus*)>(api, 93)(status);
  if (status || !found) return false;
  auto read = entry<OrtStatus* (*)(const void*, int, void*, size_t, size_t*)>(api, 272);
  size_t size = 0;
  if (number) return !read(found, kInt, number, sizeof *number, &size);
  if (OrtStatus* small = read(found, kString, nullptr, 0, &size)) entry<void (*)(OrtStatus*)>(api, 93)(small);
  text->resize(size);
  if (OrtStatus* bad = read(found, kString, text->data(), size, &size)) {
    entry<void (*)(OrtStatus*)>(api, 93)(bad);
    return false;
  }
  text->resize(size);
  return true;
}

// ---- context data ------------------------------------------------------------------------------------------------

struct Callbacks {
  ReadNamedBuffer read = nullptr;
  void* read_state = nullptr;
  WriteNamedBuffer write = nullptr;
  void* write_state = nullptr;
};

OrtStatus* callbacks_of(const void* options, Callbacks* found) {
  void* config = nullptr;
  TRY(entry<OrtStatus* (*)(const void*, void**)>(ep_api, 74)(options, &config));
  size_t unused = 0;
  OrtStatus* status = entry<OrtStatus* (*)(void*, ReadNamedBuffer*, void**, size_t*)>(ep_api, 76)(
      config, &found->read, &found->read_state, &unused);
  if (!status)
    status = entry<OrtStatus* (*)(void*, WriteNamedBuffer*, void**)>(ep_api, 77)(config, &found->write,
                                                                                 &found->write_state);
  entry<void (*)(void*)>(ep_api, 75)(config);
  return status;
}

OrtStatus* read_by_callback(const Callbacks& callbacks, const std::string& name, std::string* data) {
  OrtAllocator* allocator = nullptr;
  TRY(entry<OrtStatus* (*)(OrtAllocator**)>(api, 78)(&allocator));
  void* buffer = nullptr;
  size_t size = 0;
  TRY(callbacks.read(callbacks.read_state, name.c_str(), allocator, &buffer, &size));
  if (buffer) data->assign(static_cast<const char*>(buffer), size);
  if (buffer) allocator->Free(allocator, buffer);
  return nullptr;
}

OrtStatus* read_at_once(const Callbacks& callbacks, const std::string& name, int times, std::string* data) {
  std::vector<std::string> parts(times);
  std::vector<OrtStatus*> results(times);
  std::vector<std::thread> threads;
  for (int n = 0; n < times; ++n)
    threads.emplace_back([&, n] { results[n] = read_by_callback(callbacks, name, &parts[n]); });
  for (auto& thread : threads) thread.join();
  OrtStatus* first = nullptr;
  for (OrtStatus* result : results) {
    if (result && first) entry<void (*)(OrtStatus*)>(api, 93)(result);
    if (result && !first) first = result;
  }
  if (first) return first;
  for (const auto& part : parts)
    if (part != parts[0]) return fail("the same name gave different context data");
  *data = parts[0];
  return nullptr;
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash + 1);
}

OrtStatus* factor_of(const std::string& data, float* factor) {
  if (data.compare(0, strlen(kMagic), kMagic) != 0) return fail("this is no context data of the test EP");
  *factor = strtof(data.c_str() + strlen(kMagic), nullptr);
  return nullptr;
}

// ---- the EP --------------------------------------------------------------------------------------------------------

struct TestEp : Ep {
  Callbacks callbacks;
  bool context = false, embed = false, share = false, stop = false;
  std::string model_path, output_path;
  size_t payload = 64;
  int reads = 1;
  uint32_t support = 3;
};

// What sessions that share have in common; used by one of them at a time.
struct Shared {
  std::string stem;
  std::map<std::string, std::string> data;
} shared;

struct Scaling : NodeComputeInfo {
  float factor = 0;
};

OrtStatus* compute(NodeComputeInfo* self, void*, void* kernel) {
  const void* input = nullptr;
  TRY(entry<OrtStatus* (*)(void*, size_t, const void**)>(api, 90)(kernel, 0, &input));
  void* info = nullptr;
  TRY(entry<OrtStatus* (*)(const void*, void**)>(api, 65)(input, &info));
  size_t rank = 0, count = 0;
  entry<OrtStatus* (*)(const void*, size_t*)>(api, 61)(info, &rank);
  std::vector<int64_t> shape(rank);
  entry<OrtStatus* (*)(const void*, int64_t*, size_t)>(api, 62)(info, shape.data(), rank);
  entry<OrtStatus* (*)(const void*, size_t*)>(api, 64)(info, &count);
  entry<void (*)(void*)>(api, 99)(info);
  void* output = nullptr;
  TRY(entry<OrtStatus* (*)(void*, size_t, const int64_t*, size_t, void**)>(api, 91)(kernel, 0, shape.data(), rank,
                                                                                  &output));
  void *from = nullptr, *to = nullptr;
  auto data_of = entry<OrtStatus* (*)(const void*, void**)>(api, 51);
  TRY(data_of(input, &from));
  TRY(data_of(output, &to));
  for (size_t n = 0; n < count; ++n)
    static_cast<float*>(to)[n] = static_cast<const float*>(from)[n] * static_cast<Scaling*>(self)->factor;
  return nullptr;
}

OrtStatus* create_state(NodeComputeInfo*, void*, void** state) {
  *state = nullptr;
  return nullptr;
}

void release_state(NodeComputeInfo*, void*) {}

OrtStatus* get_capability(Ep*, const void* graph, void* support) {
  auto add = entry<OrtStatus* (*)(void*, const void* const*, size_t, const void*)>(ep_api, 2);
  for (const void* node : nodes_of(graph)) {
    std::string source;
    const std::string type = text_of(350, node);
    const bool compiled = type == "EPContext" && attribute(node, "source", &source, nullptr) && source == kName;
    if (type == "Neg" || compiled) TRY(add(support, &node, 1, nullptr));
  }
  return nullptr;
}

// The context data of a compiled node: embedded, from the callback, or from a file beside the model.
OrtStatus* context_data(const TestEp* ep, const void* graph, const void* node, std::string* data) {
  int64_t embedded = 1;
  std::string name;
  attribute(node, "embed_mode", nullptr, &embedded);
  if (!attribute(node, "ep_cache_context", &name, nullptr)) return fail("the EPContext node has no ep_cache_context");
  if (embedded) {
    *data = name;
    return nullptr;
  }
  if (ep->share && shared.data.count(name)) {
    *data = shared.data[name];
    return nullptr;
  }
  if (ep->callbacks.read) {
    TRY(read_at_once(ep->callbacks, name, ep->reads, data));
    if (ep->share) shared.data[name] = *data;
    return nullptr;
  }
  if (name.find("..") != std::string::npos || name[0] == '/') return fail("'" + name + "' leaves the model's folder");
  std::string folder = folder_of(text_of(334, graph));
  if (!ep->model_path.empty()) folder = folder_of(ep->model_path);
  std::ifstream file(folder + name, std::ios::binary);
  if (!file) return fail("the context data " + name + " cannot be read");
  std::ostringstream content;
  content << file.rdbuf();
  *data = content.str();
  if (ep->share) shared.data[name] = *data;
  return nullptr;
}

OrtStatus* context_node(const TestEp* ep, const void* node, const std::string& fused, const std::string& data, void** made) {
  std::string reference = data;
  if (!ep->embed) {
    const size_t slash = ep->output_path.rfind('/') + 1;  // 0 without one
    std::string stem = ep->output_path.substr(slash);
    stem = stem.substr(0, stem.rfind('.'));
    if (ep->share && shared.stem.empty()) shared.stem = stem;
    reference = ep->share ? shared.stem + ".bin" : stem + "_" + fused + ".bin";
    if (ep->share && shared.data.count(reference)) {
      // Written by an earlier node: all nodes have the same data.
    } else if (ep->callbacks.write) {
      TRY(ep->callbacks.write(ep->callbacks.write_state, reference.c_str(), data.data(), data.size()));
    } else {
      std::ofstream file(folder_of(ep->output_path) + reference, std::ios::binary);
      if (!(file << data).flush()) return fail("the context data " + reference + " cannot be written");
    }
    if (ep->share) shared.data[reference] = data;
  }
  const int64_t one = 1, embed = ep->embed ? 1 : 0;
  auto make = entry<OrtStatus* (*)(const char*, const void*, int, int, void**)>(api, 211);
  void* attributes[5];
  const std::string source = kName;
  TRY(make("ep_cache_context", reference.data(), static_cast<int>(reference.size()), kString, &attributes[0]));
  TRY(make("source", source.data(), static_cast<int>(source.size()), kString, &attributes[1]));
  TRY(make("embed_mode", &embed, 1, kInt, &attributes[2]));
  TRY(make("main_context", &one, 1, kInt, &attributes[3]));
  TRY(make("partition_name", fused.data(), static_cast<int>(fused.size()), kString, &attributes[4]));
  const std::vector<std::string> inputs = value_names(node, 353), outputs = value_names(node, 355);
  const char *in = inputs[0].c_str(), *out = outputs[0].c_str();
  auto create = entry<OrtStatus* (*)(const char*, const char*, const char*, const char* const*, size_t,
                                     const char* const*, size_t, void**, size_t, void**)>(editor_api, 6);
  return create("EPContext", "com.microsoft", fused.c_str(), &in, 1, &out, 1, attributes, 5, made);
}

OrtStatus* compile(Ep* self, const void** graphs, const void** fused, size_t count, NodeComputeInfo** infos,
                   void** context_nodes) {
  auto* ep = static_cast<TestEp*>(self);
  for (size_t n = 0; n < count; ++n) {
    const void* node = nodes_of(graphs[n])[0];
    const std::string name = text_of(349, fused[n]);
    const bool compiled = text_of(350, node) == "EPContext";
    std::string data = std::string(kMagic) + "-1 ";
    if (compiled) TRY(context_data(ep, graphs[n], node, &data));
    if (!compiled && data.size() < ep->payload) data.resize(ep->payload, '.');
    auto info = std::make_unique<Scaling>();
    info->version = 24;
    info->CreateState = create_state;
    info->Compute = compute;
    info->ReleaseState = release_state;
    TRY(factor_of(data, &info->factor));
    if (!compiled && ep->context) TRY(context_node(ep, fused[n], name, data, &context_nodes[n]));
    infos[n] = info.release();
  }
  if (ep->stop) shared = {};
  return nullptr;
}

void release_infos(Ep*, NodeComputeInfo** infos, size_t count) {
  for (size_t n = 0; n < count; ++n) delete static_cast<Scaling*>(infos[n]);
}

const char* ep_name(const Ep*) { return kName; }

OrtStatus* callback_support(const Ep* self, uint32_t* flags) {
  *flags = static_cast<const TestEp*>(self)->support;
  return nullptr;
}

const char* name_of(const EpFactory*) { return kName; }
const char* vendor_of(const EpFactory*) { return "epctx"; }
uint32_t vendor_id(const EpFactory*) { return 0; }
const char* version_of(const EpFactory*) { return "1.0.0"; }

OrtStatus* devices(EpFactory* self, const void* const* hardware, size_t count, void** made, size_t most, size_t* found) {
  *found = 0;
  for (size_t n = 0; n < count && *found < most; ++n) {
    if (entry<int (*)(const void*)>(api, 307)(hardware[n]) != 0) continue;  // 0 is a CPU
    TRY(entry<OrtStatus* (*)(EpFactory*, const void*, const void*, const void*, void**)>(ep_api, 0)(
        self, hardware[n], nullptr, nullptr, &made[*found]));
    ++*found;
  }
  return nullptr;
}

OrtStatus* create_ep(EpFactory*, const void* const*, const void* const*, size_t, const void* options, const void*,
                     Ep** made) {
  auto ep = std::make_unique<TestEp>();
  ep->version = 32;
  ep->GetName = ep_name;
  ep->GetCapability = get_capability;
  ep->Compile = compile;
  ep->ReleaseNodeComputeInfos = release_infos;
  ep->ContextDataSupport = callback_support;
  TRY(callbacks_of(options, &ep->callbacks));
  ep->context = option(options, "ep.context_enable", "0") == "1";
  ep->embed = option(options, "ep.context_embed_mode", "0") == "1";
  ep->share = option(options, "ep.share_ep_contexts", "0") == "1";
  ep->stop = option(options, "ep.stop_share_ep_contexts", "0") == "1";
  ep->output_path = ep->model_path = option(options, "ep.context_file_path", "");
  const std::string head = kOptions;
  ep->payload = std::stoul(option(options, head + "payload", "64"));
  ep->reads = std::stoi(option(options, head + "reads", "1"));
  ep->support = std::stoul(option(options, head + "support", "3"));
  *made = ep.release();
  return nullptr;
}

void release_ep(EpFactory*, Ep* ep) { delete static_cast<TestEp*>(ep); }

OrtStatus* validate(EpFactory*, const void* const*, size_t, const char*, int* verdict) {
  *verdict = 1;  // optimal
  return nullptr;
}

// Plain CPU memory: no allocator, no copies, no streams of its own.
OrtStatus* no_allocator(EpFactory*, const void*, const void*, OrtAllocator** made) {
  *made = nullptr;
  return nullptr;
}
void release_allocator(EpFactory*, OrtAllocator*) {}
OrtStatus* no_transfer(EpFactory*, void** made) {
  *made = nullptr;
  return nullptr;
}
bool stream_aware(const EpFactory*) { return false; }

EpFactory factory;

}  // namespace

EXPORT OrtStatus* CreateEpFactories(const char*, const OrtApiBase* base, const void*, EpFactory** factories, size_t most,
                                    size_t* count) {
  api = base->GetApi(24);
  ep_api = entry<Table (*)()>(api, 317)();
  editor_api = entry<Table (*)()>(api, 291)();
  if (most < 1) return fail("no room for a factory");
  factory.version = 24;
  factory.GetName = name_of;
  factory.GetVendor = vendor_of;
  factory.GetSupportedDevices = devices;
  factory.CreateEp = create_ep;
  factory.ReleaseEp = release_ep;
  factory.GetVendorId = vendor_id;
  factory.GetVersion = version_of;
  factory.ValidateCompatibility = validate;
  factory.CreateAllocator = no_allocator;
  factory.ReleaseAllocator = release_allocator;
  factory.CreateDataTransfer = no_transfer;
  factory.IsStreamAware = stream_aware;
  *factories = &factory;
  *count = 1;
  return nullptr;
}

EXPORT OrtStatus* ReleaseEpFactory(EpFactory*) { return nullptr; }
