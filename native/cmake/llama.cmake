# llama.cpp and ggml as shared libraries, unpatched, from the pinned source (ADR 0001).
include(CheckCXXCompilerFlag)

if(STRATAD_LLAMA_LIBRARIES)
  # Sanitizer builds instrument our own code only and link the libraries that the ordinary build made.
  foreach(library llama ggml ggml-base ggml-cpu)
    add_library(${library} SHARED IMPORTED)
    file(GLOB_RECURSE location "${STRATAD_LLAMA_LIBRARIES}/lib${library}.so")
    if(NOT location)
      message(FATAL_ERROR "no lib${library}.so under ${STRATAD_LLAMA_LIBRARIES}: run `make setup` first")
    endif()
    list(GET location 0 location)
    set_target_properties(${library} PROPERTIES IMPORTED_LOCATION "${location}")
    target_include_directories(${library} INTERFACE "${STRATAD_LLAMA_SOURCE}/include" "${STRATAD_LLAMA_SOURCE}/ggml/include")
  endforeach()
  return()
endif()

set(BUILD_SHARED_LIBS ON)
foreach(part COMMON TESTS TOOLS EXAMPLES SERVER APP UI MTMD)
  set(LLAMA_BUILD_${part} OFF CACHE BOOL "" FORCE)
endforeach()
set(GGML_CCACHE OFF CACHE BOOL "" FORCE)  # ours above serves both
set(LLAMA_BUILD_IS_DEV OFF CACHE BOOL "" FORCE)
# Our pool and ggml's own threads share the CPUs: only ggml's threadpool lets us set its polling to zero.
set(GGML_OPENMP OFF CACHE BOOL "" FORCE)
set(GGML_NATIVE ${STRATAD_NATIVE} CACHE BOOL "" FORCE)
if(NOT STRATAD_NATIVE)
  foreach(feature SSE42 AVX AVX2 BMI2 FMA F16C)
    set(GGML_${feature} ON CACHE BOOL "" FORCE)
  endforeach()
endif()

# GCC 12 drops the stores into ggml's tile configuration and the first tile instruction raises SIGILL
# (docs/adr/0001-llama-cpp-as-engine.md). ggml uses AMX only in repacked buffers, which stratad never asks for.
foreach(feature amx-tile amx-int8 amx-bf16)
  string(MAKE_C_IDENTIFIER "STRATAD_HAVE_MNO_${feature}" have_flag)
  check_cxx_compiler_flag("-mno-${feature}" ${have_flag})
  if(${have_flag})
    string(APPEND CMAKE_C_FLAGS " -mno-${feature}")
    string(APPEND CMAKE_CXX_FLAGS " -mno-${feature}")
  endif()
endforeach()

add_subdirectory("${STRATAD_LLAMA_SOURCE}" llama.cpp EXCLUDE_FROM_ALL)
foreach(library llama ggml ggml-base ggml-cpu)
  # One plain file per library: they live in the package, not in a system library directory.
  set_property(TARGET ${library} PROPERTY VERSION)
  set_property(TARGET ${library} PROPERTY SOVERSION)
  set_target_properties(${library} PROPERTIES INSTALL_RPATH "$ORIGIN" BUILD_WITH_INSTALL_RPATH ON)
endforeach()
