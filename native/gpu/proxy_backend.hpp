// The backend of a proxy device: an inner backend, and the pool for the expert chains between its stretches.
#pragma once

#include "backend/device.hpp"
#include "gpu/proxy_device.hpp"

namespace stratad {

// Throws std::runtime_error when the inner device gives no backend.
ggml_backend_t make_proxy_backend(ProxyDevice& device, const BackendSettings& settings);

}  // namespace stratad
