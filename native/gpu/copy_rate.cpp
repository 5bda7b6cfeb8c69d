#include "gpu/copy_rate.hpp"

#include <algorithm>
#include <chrono>
#include <span>
#include <stdexcept>
#include <vector>

#include "gpu/device_memory.hpp"
#include "gpu/inner_device.hpp"

namespace stratad {
namespace {

// Two targets take turns, so that a copy never waits for the one before it to be done with its target.
constexpr size_t kTargetBytes = size_t{64} << 20;
constexpr int kTargets = 2;
constexpr size_t kWarmBytes = size_t{64} << 20;

using Piece = std::span<const std::byte>;

class Target {
 public:
  explicit Target(const InnerDevice& device)
      : backend_(ggml_backend_dev_init(device.device, nullptr)), context_(make_tensor_context(kTargets)) {
    if (!backend_) throw std::runtime_error(device.name + " cannot be opened");
    for (ggml_tensor*& tensor : tensors_)
      tensor = ggml_new_tensor_1d(context_.get(), GGML_TYPE_I8, static_cast<int64_t>(kTargetBytes));
    buffer_.reset(ggml_backend_alloc_ctx_tensors(context_.get(), backend_.get()));
    if (!buffer_)
      throw std::runtime_error(device.name + " has no room for " + std::to_string(kTargets * kTargetBytes) +
                               " bytes");
  }

  // Bytes copied, and all of them there on return.
  size_t copy(std::span<const Piece> pieces, size_t limit_bytes) {
    size_t copied = 0;
    int turn = 0;
    for (const Piece piece : pieces) {
      for (size_t done = 0; done < piece.size() && copied < limit_bytes;) {
        const size_t size = std::min({piece.size() - done, kTargetBytes, limit_bytes - copied});
        ggml_backend_tensor_set_async(backend_.get(), tensors_[turn], piece.data() + done, 0, size);
        turn = (turn + 1) % kTargets;
        done += size;
        copied += size;
      }
    }
    ggml_backend_synchronize(backend_.get());
    return copied;
  }

 private:
  InnerBackend backend_;
  DeviceBuffer buffer_;
  TensorContext context_;
  ggml_tensor* tensors_[kTargets] = {};
};

InnerDevice device_named(const std::string& name) {
  for (InnerDevice& device : inner_devices())
    if (device.name == name) return std::move(device);
  throw std::invalid_argument("no GPU is called '" + name + "'");
}

}  // namespace

double measure_copy_rate(const Arena& arena, int slice, const std::string& device_name, size_t limit_bytes) {
  if (slice < 0 || slice >= static_cast<int>(arena.layout().slices.size()))
    throw std::invalid_argument("the arena has no slice " + std::to_string(slice));
  const std::vector<Piece> pieces = arena.slice_pieces(slice);
  Target target(device_named(device_name));
  target.copy(pieces, std::min(limit_bytes, kWarmBytes));
  const auto start = std::chrono::steady_clock::now();
  const size_t copied = target.copy(pieces, limit_bytes);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  return copied == 0 ? 0.0 : static_cast<double>(copied) / elapsed.count();
}

}  // namespace stratad
