// The three names of VK_EXT_layer_settings that ggml-vulkan uses, for Vulkan headers older than 1.3.272.
//
// ggml fills them for the validation layer only; a loader that does not know the structure skips it by its
// type. vulkan.hpp itself is not included: ggml first says how that header is to dispatch its calls.
#pragma once
#include <vulkan/vulkan_core.h>

#include <cstdint>
#include <vector>

namespace vk {
enum class LayerSettingTypeEXT : std::uint32_t { eBool32 = 0 };

struct LayerSettingEXT {
  const char* pLayerName;
  const char* pSettingName;
  LayerSettingTypeEXT type;
  std::uint32_t valueCount;
  const void* pValues;
};

struct LayerSettingsCreateInfoEXT {
  explicit LayerSettingsCreateInfoEXT(const std::vector<LayerSettingEXT>& settings)
      : settingCount(static_cast<std::uint32_t>(settings.size())), pSettings(settings.data()) {}
  VkStructureType sType = static_cast<VkStructureType>(1000496000);  // LAYER_SETTINGS_CREATE_INFO_EXT
  const void* pNext = nullptr;
  std::uint32_t settingCount;
  const LayerSettingEXT* pSettings;
};
}  // namespace vk
