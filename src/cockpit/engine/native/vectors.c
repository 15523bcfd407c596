/* Products, combinations and lengths of long vectors of float32 or float64, each had from one look at them.
 *
 * Everything is summed in float64, where the product of two float32 numbers is exact. A block of every vector is
 * widened at a time, and stays in the cache for all that is done with it.
 */
#include <stdint.h>

enum { BLOCK = 256, LANES = 8 };

/* The sum is kept in LANES parts, which compilers vectorise without leave to reorder sums. */
static double dot(const double *restrict a, const double *restrict b) {
    double part[LANES] = {0}, sum = 0;
    for (int j = 0; j < BLOCK; j += LANES)
        for (int l = 0; l < LANES; l++) part[l] += a[j + l] * b[j + l];
    for (int l = 0; l < LANES; l++) sum += part[l];
    return sum;
}

#define BODY "vectors.h"
#include "for_types.h"
