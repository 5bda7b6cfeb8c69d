// What a CPU says of its tile registers (AMX), and the operating system of saving them.
#pragma once

namespace stratad {

struct TileSupport {
  bool has_vectors = false;       // what the AVX-512 kernels use, with which products are scaled
  bool has_tiles = false;         // AMX-TILE
  bool multiplies_bytes = false;  // AMX-INT8
  bool has_known_shape = false;   // palette 1: eight tiles of 16 rows of 64 bytes
  bool is_state_enabled = false;  // the operating system saves tiles (XCR0, bits 17 and 18)
};

TileSupport tile_support() noexcept;

}  // namespace stratad
