/* Products, combinations and lengths of long vectors of float32 or float64, each had from one look at them; copies.
 *
 * Everything is summed in float64, where the product of two float32 numbers is exact. A block of every vector is
 * widened at a time, and stays in the cache for all that is done with it.
 */
#include <stdint.h>
#include <string.h>

enum { BLOCK = 256, LANES = 8 };

/* As many numbers as the widest registers hold; compilers use several where they are narrower. */
typedef double wide __attribute__((vector_size(LANES * sizeof(double)), aligned(sizeof(double))));

/* The sum is kept in parts, none of which has to wait for the one before. */
static double dot(const double *restrict a, const double *restrict b) {
    wide first = {0}, second = {0}, third = {0}, fourth = {0};
    double sum = 0;
    for (int j = 0; j < BLOCK; j += 4 * LANES) {
        const wide *x = (const wide *)(a + j), *y = (const wide *)(b + j);
        first += x[0] * y[0], second += x[1] * y[1], third += x[2] * y[2], fourth += x[3] * y[3];
    }
    first += second + third + fourth;
    for (int l = 0; l < LANES; l++) sum += first[l];
    return sum;
}

/* Put vectors behind each other, in words of 8 bytes: float32 where it is `narrow`, which becomes float64. */
void words(const void *const *vectors, const int64_t *sizes, const int64_t *narrow, int64_t count, char *out) {
    for (int64_t k = 0; k < count; out += 8 * sizes[k++])
        if (narrow[k])
            for (int64_t i = 0; i < sizes[k]; i++) ((double *)out)[i] = ((const float *)vectors[k])[i];
        else
            memcpy(out, vectors[k], 8 * (size_t)sizes[k]);
}

/* Copy so many bytes of each. */
void copies(void *const *to, const void *const *from, const int64_t *bytes, int64_t count) {
    for (int64_t k = 0; k < count; k++) memcpy(to[k], from[k], (size_t)bytes[k]);
}

#define BODY "vectors.h"
#include "for_types.h"
