/* Second derivatives of GELU, x times the normal distribution, and of its approximation by tanh.
 *
 * Everything is computed in float64, a block at a time, which stays in the cache.
 */
#include <stdint.h>
#include <string.h>

enum { BLOCK = 256 };

/* Replace numbers y that are not positive by e^y = 2^k e^r, with |r| <= log(2) / 2. Added to `shift`, k is rounded to
 * where it is the last bits of the sum. */
static void exponentials(double *restrict y) {
    const double shift = 0x1.8p52, high = 0x1.62e42fefa3800p-1, low = 0x1.ef35793c76730p-45;
    for (int j = 0; j < BLOCK; j++) {
        const double limited = y[j] < -700 ? -700 : y[j], sum = limited * 0x1.71547652b82fep0 + shift;
        const double k = sum - shift, r = limited - k * high - k * low;
        double power = 1, scale;
        for (int n = 13; n > 0; n--) power = 1 + power * r * (1.0 / n);
        uint64_t bits;
        memcpy(&bits, &sum, sizeof bits);
        bits = (bits + 1023) << 52;
        memcpy(&scale, &bits, sizeof scale);
        y[j] = power * scale;
    }
}

/* Replace x by the second derivative of GELU there. */
static void second(double *restrict x) {
    double e[BLOCK];
    for (int j = 0; j < BLOCK; j++) e[j] = -0.5 * x[j] * x[j];
    exponentials(e);
    for (int j = 0; j < BLOCK; j++) x[j] = 0.3989422804014327 * e[j] * (2 - x[j] * x[j]);
}

/* The same of x (1 + tanh u) / 2. */
static void second_by_tanh(double *restrict x) {
    const double k = 0.7978845608028654, c = 0.044715;
    double e[BLOCK];
    for (int j = 0; j < BLOCK; j++) {
        const double u = k * (x[j] + c * x[j] * x[j] * x[j]);
        e[j] = u < 0 ? 2 * u : -2 * u;
    }
    exponentials(e);
    for (int j = 0; j < BLOCK; j++) {
        const double size = 1 / (1 + e[j]), steep = 4 * e[j] * size * size, t = (1 - e[j]) * size;
        const double slope = k * (1 + 3 * c * x[j] * x[j]), bend = 3 * k * c * x[j];
        x[j] = steep * (slope + x[j] * (bend - (x[j] < 0 ? -t : t) * slope * slope));
    }
}

#define BODY "gelu.h"
#include "for_types.h"
