/* Patches of images, as a convolution meets them: each tap of its kernel is a row of all places. */
#include <stdint.h>
#include <string.h>

/* Of an axis: its length, the taps of the kernel, their distance, that of two places, and zeros before the image. */
typedef struct {
    int64_t size, taps, dilation, stride, before, places;
} Axis;

/* The first place whose tap lies at `from` or behind it, if the tap of place 0 lies at `start`. */
static inline int64_t first_from(const Axis *a, int64_t start, int64_t from) {
    const int64_t gap = from - start;
    const int64_t place = gap <= 0 ? 0 : (gap + a->stride - 1) / a->stride;
    return place < a->places ? place : a->places;
}

#define BODY "images.h"
#include "for_types.h"
