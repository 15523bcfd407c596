/* The gradient of a softmax, derived once more. */
#include <stdint.h>

enum { LANES = 16 };

#define BODY "softmax.h"
#include "for_types.h"
