// Included before upstream's schema converter, which prints what a client wrote to standard error. stratad
// asks about such schemas beforehand (stratad/chat/json_schema.py) and says it to the client.
#pragma once

#include <cstdio>
#define fprintf(...) static_cast<void>(0)
