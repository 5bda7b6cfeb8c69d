#include "kernels/tiles.hpp"

namespace stratad {

std::string prepare_tiles() {
  return "no row kernel has a form for tiles";
}

std::string prepare_tiles(Pool&) {
  return prepare_tiles();
}

}  // namespace stratad
