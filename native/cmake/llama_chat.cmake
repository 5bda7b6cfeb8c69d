# What llama.cpp's own server knows about chats (ADR 0031): how a template's model writes tool calls and thinking,
# and JSON schemas as grammars. A part of upstream's common library; the rest of it is not built.
set(STRATAD_LLAMA_COMMON "${STRATAD_LLAMA_SOURCE}/common")
set(STRATAD_LLAMA_CHAT_INCLUDES
  "${STRATAD_LLAMA_COMMON}" "${STRATAD_LLAMA_SOURCE}/vendor"
  "${STRATAD_LLAMA_SOURCE}/include" "${STRATAD_LLAMA_SOURCE}/ggml/include")

if(STRATAD_LLAMA_LIBRARIES)
  # As for llama.cpp itself: made by the ordinary build, whose folder holds the one for its libraries.
  set(location "${STRATAD_LLAMA_LIBRARIES}/../libllama-chat.a")
  if(NOT EXISTS "${location}")
    message(FATAL_ERROR "no libllama-chat.a beside ${STRATAD_LLAMA_LIBRARIES}: run `make setup` first")
  endif()
  add_library(llama-chat STATIC IMPORTED)
  set_target_properties(llama-chat PROPERTIES IMPORTED_LOCATION "${location}")
  target_include_directories(llama-chat SYSTEM INTERFACE ${STRATAD_LLAMA_CHAT_INCLUDES})
  target_link_libraries(llama-chat INTERFACE llama)
  return()
endif()

file(GLOB STRATAD_LLAMA_CHAT_SOURCES CONFIGURE_DEPENDS
  "${STRATAD_LLAMA_COMMON}/chat*.cpp"
  "${STRATAD_LLAMA_COMMON}/jinja/*.cpp"
  "${STRATAD_LLAMA_COMMON}/json*.cpp"
  "${STRATAD_LLAMA_COMMON}/parsers/*.cpp")
foreach(source peg-parser reasoning-budget trie unicode)
  list(APPEND STRATAD_LLAMA_CHAT_SOURCES "${STRATAD_LLAMA_COMMON}/${source}.cpp")
endforeach()
add_library(llama-chat STATIC ${STRATAD_LLAMA_CHAT_SOURCES} chat/llama_common.cpp)
target_include_directories(llama-chat SYSTEM PUBLIC ${STRATAD_LLAMA_CHAT_INCLUDES})
target_compile_options(llama-chat PRIVATE -w)
set_source_files_properties("${STRATAD_LLAMA_COMMON}/json-schema-to-grammar.cpp" PROPERTIES
  COMPILE_OPTIONS "-include;${CMAKE_CURRENT_SOURCE_DIR}/chat/quiet.hpp")
target_link_libraries(llama-chat PUBLIC llama)
