# Warnings are errors in our own C++; llama.cpp's headers are system headers to us. A designated initialiser that
# leaves members at their defaults is meant, so that one warning of -Wextra is off.
add_library(stratad-warnings INTERFACE)
target_compile_options(stratad-warnings INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wpedantic -Wcast-align
  -Wold-style-cast -Wno-missing-field-initializers -Werror)
