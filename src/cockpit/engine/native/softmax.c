/* The gradient of a softmax, derived once more, and roots of its cross-entropy's Hessian. */
#include <math.h>
#include <stdint.h>

enum { LANES = 16 };

#define BODY "softmax.h"
#include "for_types.h"
