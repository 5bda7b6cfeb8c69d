# One GPU backend of ggml as a loadable module, from the pinned source and for the libggml-base.so of the package.
#
# Upstream's GGML_BACKEND_DL is all or nothing: it would turn the CPU backend into a module, too, whose kernels our
# core links. So the module has a build of its own, where the CPU backend is off; what it shares with the package is
# libggml-base.so, compiled from the same source there and here, and found in the process by its name at run time.
include(CheckCXXSourceCompiles)

if(NOT STRATAD_GPU MATCHES "^(cuda|hip|vulkan)$")
  message(FATAL_ERROR "STRATAD_GPU is '${STRATAD_GPU}': it may be cuda, hip or vulkan")
endif()
string(TOUPPER "GGML_${STRATAD_GPU}" enabled)
set(BUILD_SHARED_LIBS ON)
set(GGML_BACKEND_DL ON CACHE BOOL "" FORCE)
set(GGML_CPU OFF CACHE BOOL "" FORCE)
set(GGML_OPENMP OFF CACHE BOOL "" FORCE)
set(GGML_CCACHE OFF CACHE BOOL "" FORCE)  # ours serves both
set(GGML_CUDA_NCCL OFF CACHE BOOL "" FORCE)  # one proxy for each GPU: none computes together with another
# Upstream's default outside of llama.cpp is off; recorded graphs spare a launch for every small kernel of a step.
set(GGML_CUDA_GRAPHS ON CACHE BOOL "" FORCE)
set(GGML_NATIVE ${STRATAD_NATIVE} CACHE BOOL "" FORCE)
set(GGML_BUILD_TESTS OFF CACHE BOOL "" FORCE)
set(GGML_BUILD_EXAMPLES OFF CACHE BOOL "" FORCE)
set(${enabled} ON CACHE BOOL "" FORCE)
if(STRATAD_GPU STREQUAL "cuda")
  set(CMAKE_CUDA_ARCHITECTURES "${CUDA_ARCHITECTURES}" CACHE STRING "" FORCE)
  if(CCACHE_PROGRAM)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
  endif()
  if(STRATAD_CUBLAS)
    # The wheel's libraries carry their version in the name, and CMake looks for plain ones.
    foreach(library cublas cublasLt)
      file(GLOB location "${STRATAD_CUBLAS}/lib/lib${library}.so.*")
      set(CUDA_${library}_LIBRARY "${location}" CACHE FILEPATH "" FORCE)
    endforeach()
    include_directories(SYSTEM "${STRATAD_CUBLAS}/include")
  endif()
  find_package(CUDAToolkit REQUIRED)
  if(NOT TARGET CUDA::cuda_driver)
    # Without the driver's stub library ggml takes VRAM by cudaMalloc instead of mapping it piece by piece.
    set(GGML_CUDA_NO_VMM ON CACHE BOOL "" FORCE)
  endif()
elseif(STRATAD_GPU STREQUAL "vulkan")
  find_package(Vulkan REQUIRED COMPONENTS glslc)
  set(CMAKE_REQUIRED_INCLUDES ${Vulkan_INCLUDE_DIRS})
  check_cxx_source_compiles("#include <vulkan/vulkan.hpp>
    int main() { return sizeof(vk::LayerSettingEXT) == 0; }" STRATAD_HAVE_LAYER_SETTINGS)
  if(NOT STRATAD_HAVE_LAYER_SETTINGS)
    string(APPEND CMAKE_CXX_FLAGS " -include \"${CMAKE_CURRENT_LIST_DIR}/vulkan_layer_settings.hpp\"")
  endif()
endif()

add_subdirectory("${STRATAD_LLAMA_SOURCE}/ggml" ggml EXCLUDE_FROM_ALL)
# The package's libraries have plain names, and the module asks for libggml-base.so by that name.
set_property(TARGET ggml-base PROPERTY VERSION)
set_property(TARGET ggml-base PROPERTY SOVERSION)
set_property(TARGET ggml-${STRATAD_GPU} PROPERTY VERSION)
set_property(TARGET ggml-${STRATAD_GPU} PROPERTY SOVERSION)
# A toolkit's folder is often none where the system's loader looks: the module remembers where it was linked from.
# CMake leaves out the folders that nvcc links from by itself.
set_target_properties(ggml-${STRATAD_GPU} PROPERTIES
  INSTALL_RPATH "$ORIGIN/..;${CUDAToolkit_LIBRARY_DIR}" INSTALL_RPATH_USE_LINK_PATH ON BUILD_WITH_INSTALL_RPATH ON
  LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/module")
add_custom_target(gpu-module ALL DEPENDS ggml-${STRATAD_GPU})
