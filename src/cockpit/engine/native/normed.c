/* What single examples add to the gradients of batch normalisation's weight and bias. */
#include <math.h>
#include <stdint.h>

enum { BLOCK = 256, LANES = 16 };

#define BODY "normed.h"
#include "for_types.h"
